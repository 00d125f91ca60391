"""Compression of responses and decompression of request bodies.

Small bodies are compressed in place; large ones in a thread, since every codec lets go of the
interpreter while it works. The levels are the fast ones: a stream is compressed for each reader.
"""

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, Final

import brotli
import zstandard

MIN_BYTES: Final = 1024
_IN_PLACE_BYTES: Final = 32 * 1024
_STEP: Final = 64 * 1024
_ZSTD_BLOCK: Final = 128 * 1024
_ZSTD_SMALLEST_BLOCK: Final = 4
"""A block of zstd holds up to 128 KiB, and takes as little as a header with one repeated byte."""
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
    """The content coding is none that we know."""


class CorruptBody(ValueError):
    """The body is not what its content coding says."""


class BodyTooLarge(ValueError):
    """The body is larger than the limit once decompressed."""


async def decompress(body: bytes, codings: str, limit: int) -> bytes:
    """Undo the content codings of a request body, never making more than `limit` bytes."""
    names = [name.strip() for name in codings.lower().split(",")]
    for name in reversed([name for name in names if name not in {"", "identity"}]):
        worker = _DECOMPRESS.get(name)
        if worker is None:
            raise UnknownCoding(name)
        if len(body) <= _IN_PLACE_BYTES and limit <= _IN_PLACE_BYTES:
            body = worker(body, limit)
        else:
            # A small body may hold a large one: it is unpacked beside the loop.
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(None, worker, body, limit)
    return body


def _inflate(window: int) -> Callable[[bytes, int], bytes]:
    def run(body: bytes, limit: int) -> bytes:
        worker = zlib.decompressobj(window)
        try:
            data = worker.decompress(body, limit + 1)
        except zlib.error as error:
            raise CorruptBody(str(error)) from None
        if len(data) > limit:
            raise BodyTooLarge
        if not worker.eof or worker.unused_data:
            raise CorruptBody("it is cut short or goes on past its end")
        return data

    return run


def _unbrotli(body: bytes, limit: int) -> bytes:
    worker: Any = brotli.Decompressor()
    data = bytearray()
    try:
        # The output limit of each step keeps a small body from unfolding into gigabytes.
        data += worker.process(body, output_buffer_limit=_STEP)
        while not worker.is_finished():
            if len(data) > limit:
                raise BodyTooLarge
            if worker.can_accept_more_data():
                raise CorruptBody("it is cut short")
            data += worker.process(b"", output_buffer_limit=_STEP)
    except brotli.error as error:
        raise CorruptBody(str(error)) from None
    if len(data) > limit:
        raise BodyTooLarge
    return bytes(data)


def _unzstd(body: bytes, limit: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
    data = bytearray()
    rest = memoryview(body)
    try:
        for _ in range(_ZSTD_MAX_FRAMES):
            frame = decompressor.decompressobj()
            while not frame.eof:
                if not rest:
                    raise CorruptBody("it is cut short")
                # Each step takes in no more than may unfold into what is left of the limit.
                blocks = (limit - len(data)) // _ZSTD_BLOCK + 1
                step = rest[: blocks * _ZSTD_SMALLEST_BLOCK]
                rest = rest[len(step) :]
                data += frame.decompress(step)
                if len(data) > limit:
                    raise BodyTooLarge
            rest = memoryview(body)[len(body) - len(rest) - len(frame.unused_data) :]
            if not rest:
                return bytes(data)
    except zstandard.ZstdError as error:
        raise CorruptBody(str(error)) from None
    raise CorruptBody("it has too many frames")


def _undeflate(body: bytes, limit: int) -> bytes:
    # Half of the world sends 'deflate' without the zlib header.
    try:
        return _inflate(zlib.MAX_WBITS)(body, limit)
    except CorruptBody:
        return _inflate(-zlib.MAX_WBITS)(body, limit)


_DECOMPRESS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _inflate(16 + zlib.MAX_WBITS),
    "x-gzip": _inflate(16 + zlib.MAX_WBITS),
    "deflate": _undeflate,
    "br": _unbrotli,
    "zstd": _unzstd,
}
