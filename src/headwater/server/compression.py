"""Compression of responses and decompression of request bodies.

Small bodies are compressed on the loop, large ones in a thread: every codec releases the GIL.
Compression levels are low, since a stream is compressed for each reader. Decoders are iterators, so
that a body is counted, and may be refused, while it is decoded.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import brotli
import zstandard

from headwater.server.admission import Hold, Overload, TooLarge

MIN_BYTES: Final = 1024
_IN_PLACE_BYTES: Final = 32 * 1024
_STEP: Final = 64 * 1024
"""Bytes that are decoded before they are counted."""
_SLICE: Final = 64 * 1024
"""Bytes passed to zlib at once: at each step it copies those that it has not consumed."""
_ZSTD_SLICE: Final = 32
"""Bytes passed to zstd at once: 4 bytes can decode to a block of 128 KiB, so these to 1 MiB."""
_ZSTD_MAX_FRAMES: Final = 1024


def _zlib_compressor(window: int) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        worker = zlib.compressobj(1, zlib.DEFLATED, window)
        return worker.compress(data) + worker.flush()

    return compress


_COMPRESS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "zstd": lambda data: zstandard.ZstdCompressor(level=1).compress(data),
    "br": lambda data: bytes(brotli.compress(data, quality=1)),
    "gzip": _zlib_compressor(16 + zlib.MAX_WBITS),
    "deflate": _zlib_compressor(zlib.MAX_WBITS),
}


async def compress(data: bytes, coding: str) -> bytes:
    """Compress a response body."""
    if len(data) <= _IN_PLACE_BYTES:
        return _COMPRESS[coding](data)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, _COMPRESS[coding], data)


class UnknownCoding(ValueError):
    """The content coding is not supported."""


class CorruptBody(ValueError):
    """The body does not match its content coding."""


async def decompress(body: bytes, codings: str, hold: Hold) -> bytes | TooLarge | Overload:
    """Undo the content codings of a request body; decoded bytes are counted piece by piece."""
    names = [name.strip() for name in codings.lower().split(",")]
    for name in reversed([name for name in names if name not in {"", "identity"}]):
        codec = _DECOMPRESS.get(name)
        if codec is None:
            raise UnknownCoding(name)
        in_place = len(body) <= _IN_PLACE_BYTES
        decoded = hold.decoded()
        try:
            outcome = await _decode(codec(body), decoded, in_place=in_place)
            if not isinstance(outcome, bytes):
                return outcome
            body = outcome
            hold.replace(decoded)
        finally:
            decoded.release()
    return body


async def _decode(
    pieces: Iterator[bytes], hold: Hold, *, in_place: bool
) -> bytes | TooLarge | Overload:
    """Collect a decoded body; steps after the first are decoded in a thread."""
    loop = asyncio.get_running_loop()
    body: list[bytes] = []
    more = True
    while more:
        if in_place and not body:
            step, more = _take(pieces)
        else:
            step, more = await loop.run_in_executor(None, _take, pieces)
        body += step
        refusal = hold.add(sum(map(len, step)))
        if refusal is not None:
            return refusal
    if hold.size <= _STEP:
        return b"".join(body)
    return await loop.run_in_executor(None, b"".join, body)


def _take(pieces: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """Decode one step; return its pieces, and whether there may be more."""
    taken: list[bytes] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= _STEP:
            return taken, True
    return taken, False


def _inflate(window: int) -> Callable[[bytes], Iterator[bytes]]:
    def decode(body: bytes) -> Iterator[bytes]:
        worker = zlib.decompressobj(window)
        try:
            for start in range(0, len(body), _SLICE):
                rest = body[start : start + _SLICE]
                while rest and not worker.eof:
                    yield worker.decompress(rest, _STEP)
                    rest = worker.unconsumed_tail
                if worker.eof and (worker.unused_data or start + _SLICE < len(body)):
                    raise CorruptBody("it has trailing data")
            while not worker.eof:
                piece = worker.decompress(b"", _STEP)
                if not piece and not worker.eof:
                    raise CorruptBody("it is truncated")
                yield piece
        except zlib.error as error:
            raise CorruptBody(str(error)) from None

    return decode


def _deflate(body: bytes) -> Iterator[bytes]:
    """Decode with the zlib header or, as many clients send it, without (RFC 1950, 2.2)."""
    has_header = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    return _inflate(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)(body)


def _brotli(body: bytes) -> Iterator[bytes]:
    worker: Any = brotli.Decompressor()
    try:
        yield worker.process(body, output_buffer_limit=_STEP)
        while not worker.is_finished():
            if worker.can_accept_more_data():
                raise CorruptBody("it is truncated")
            yield worker.process(b"", output_buffer_limit=_STEP)
    except brotli.error as error:
        raise CorruptBody(str(error)) from None


def _zstd(body: bytes) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
    rest = memoryview(body)
    try:
        for _ in range(_ZSTD_MAX_FRAMES):
            frame = decompressor.decompressobj()
            while not frame.eof:
                if not rest:
                    raise CorruptBody("it is truncated")
                # Only the length of its input bounds the output of a step.
                step = rest[:_ZSTD_SLICE]
                rest = rest[len(step) :]
                yield frame.decompress(step)
            rest = memoryview(body)[len(body) - len(rest) - len(frame.unused_data) :]
            if not rest:
                return
    except zstandard.ZstdError as error:
        raise CorruptBody(str(error)) from None
    raise CorruptBody("it has too many frames")


_DECOMPRESS: Final[dict[str, Callable[[bytes], Iterator[bytes]]]] = {
    "gzip": _inflate(16 + zlib.MAX_WBITS),
    "x-gzip": _inflate(16 + zlib.MAX_WBITS),
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
