"""Messages put at their place in a stream: once, whoever tries it, however often it is cut short.

A stream gets messages that are known beforehand, from a position on. Each append claims the byte
position where it begins as its producer's epoch. The server takes an epoch once and never an older
one, so of all appends for one position exactly one is taken, and it lies at that position. Whoever
begins again, or was told of a duplicate, looks at what is there, compares it with what has to be
there, and goes on behind it. See docs/decisions/0038.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from headwater.client import START, ProducerClaim, Stream, join_messages
from headwater.errors import ProducerFenced, StreamDiffers
from headwater.protocol.framing import SEPARATOR
from headwater.spark.ranges import byte_of

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""An append has about this size; a longer message is an append of its own."""


class Placed(Struct, frozen=True):
    """What a stream holds now of what had to be there."""

    messages: int
    """Messages (JSON) or pieces."""
    bytes: int
    """As the stream counts them: its separators included."""
    appended: int
    """How many of the bytes were not there before."""
    offset: str
    """The offset behind the last message."""


def place(
    stream: Stream,
    messages: Iterable[bytes],
    *,
    json: bool,
    producer: str,
    begin: str = START,
    chunk_bytes: int = CHUNK_BYTES,
) -> Placed:
    """Make a stream hold these messages behind an offset; nothing else may append to it meanwhile.

    Where the stream holds something else there, `StreamDiffers` is raised. It may hold more.
    """
    placing = _Placing(stream, json=json, producer=producer, begin=begin)
    count = 0
    for chunk in _chunks(messages, json=json, size=chunk_bytes):
        count += len(chunk)
        placing.put(chunk)
    return Placed(count, placing.at - byte_of(begin), placing.appended, placing.offset)


def framed(messages: Iterable[bytes], *, json: bool) -> bytes:
    """Give the bytes that a stream stores for messages."""
    return b"".join(message + SEPARATOR for message in messages) if json else b"".join(messages)


class _Placing:
    """One run over the messages: `at` is the position behind all that is known to be there."""

    def __init__(self, stream: Stream, *, json: bool, producer: str, begin: str) -> None:
        self.stream = stream
        self.json = json
        self.producer = producer
        self.offset = begin
        self.at = byte_of(begin)
        self.appended = 0
        self._path = stream.url
        self._tail = byte_of(stream.head().next_offset)
        self._stored = _Stored(stream, begin)
        if self._tail < self.at:
            raise StreamDiffers(self._path, begin, "it ends before that")

    def put(self, chunk: list[bytes]) -> None:
        """See to it that a chunk is in its place."""
        while chunk:
            if self._tail > self.at:
                chunk = self._compare(chunk)
            else:
                self._append(chunk)
                chunk = chunk if self._tail > self.at else []

    def _compare(self, chunk: list[bytes]) -> list[bytes]:
        """Compare a chunk with what is there; gives the messages that are not there yet."""
        known = 0
        room = self._tail - self.at
        for number, message in enumerate(chunk):
            size = len(message) + len(SEPARATOR) * self.json
            if known + size > room:
                if self.json or known == room:
                    break
                # Bytes have no boundaries: the stream ends within this piece.
                rest = message[room - known :]
                self._same(framed([*chunk[:number], message[: room - known]], json=False))
                return [rest, *chunk[number + 1 :]]
            known += size
        else:
            number = len(chunk)
        if number == 0:
            # Its end lies within a message: these are no messages of ours.
            raise StreamDiffers(self._path, self.offset, "there is something else")
        self._same(framed(chunk[:number], json=self.json))
        return chunk[number:]

    def _same(self, wanted: bytes) -> None:
        if self._stored.take(len(wanted)) != wanted:
            raise StreamDiffers(self._path, self.offset, "there is something else")
        self.at += len(wanted)
        self.offset = self._stored.offset_at(self.at)

    def _append(self, chunk: list[bytes]) -> None:
        content_type = self.stream.content_type()
        size = sum(map(len, chunk)) + len(SEPARATOR) * len(chunk) * self.json
        claim = ProducerClaim(self.producer, self.at, 0)
        try:
            done = self.stream.append(join_messages(chunk, content_type), producer=claim)
        except ProducerFenced:
            duplicate = True
        else:
            duplicate = done.duplicate
        if not duplicate:
            if byte_of(done.next_offset) != self.at + size:
                raise StreamDiffers(self._path, self.offset, "another writer appends to it")
            self.at = self._tail = self.at + size
            self.offset = done.next_offset
            self.appended += size
            self._stored = _Stored(self.stream, self.offset)
            return
        # Somebody else was here with the same claim: an earlier attempt, or a second run.
        self._tail = byte_of(self.stream.head().next_offset)
        if self._tail <= self.at:
            raise StreamDiffers(self._path, self.offset, "it was written and deleted meanwhile")


class _Stored:
    """The bytes that a stream stores behind an offset, in the order in which they are asked for."""

    def __init__(self, stream: Stream, offset: str) -> None:
        self._stream = stream
        self._next = offset
        self._held = b""

    def take(self, size: int) -> bytes:
        """Give the next bytes; fewer where there are no more."""
        parts = [self._held]
        length = len(self._held)
        while length < size:
            batch = next(self._stream.read(self._next).batches())
            if batch.empty:
                break
            parts.append(batch.data[1:-1] + SEPARATOR if batch.is_json else batch.data)
            length += len(parts[-1])
            self._next = batch.next_offset
        data = b"".join(parts)
        self._held = data[size:]
        return data[:size]

    def offset_at(self, byte: int) -> str:
        """Name a position that was read: what is written here is no fork, and has one epoch."""
        return f"{self._next[:16]}_{byte:016d}"


def _chunks(messages: Iterable[bytes], *, json: bool, size: int) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    held = 0
    for message in messages:
        for piece in [message] if json else _pieces(message, size):
            if chunk and held + len(piece) > size:
                yield chunk
                chunk, held = [], 0
            chunk.append(piece)
            held += len(piece) + len(SEPARATOR) * json
    if chunk:
        yield chunk


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
