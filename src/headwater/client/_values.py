"""Results of the operations on a stream, and the batches that reading one yields."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from headwater.errors import BadData
from headwater.protocol.content_types import holds_json

_RAW_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[Any])
_NEVER_IN_OFFSETS: Final = ","
"""PROTOCOL 8 forbids it in offsets, so it can separate an offset from the rest of a position."""

_EMPTY_ARRAY_BYTES: Final = 64
"""An array without messages is shorter than this, whatever whitespace is in it."""


class Position(NamedTuple):
    """Where to resume a read: an offset, and how many messages after it to skip.

    Servers return one offset per batch. A position inside a batch is its start and a count of
    messages, which works with any server.
    """

    offset: str
    skip: int = 0

    def __str__(self) -> str:
        return f"{self.offset}{_NEVER_IN_OFFSETS}{self.skip}" if self.skip else self.offset

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Parse an offset or a position."""
        offset, comma, skip = text.partition(_NEVER_IN_OFFSETS)
        if not offset or (comma and not (skip.isascii() and skip.isdigit())):
            raise ValueError(
                f"'{text}' is not an offset: use -1, now, or one returned by a read or an append"
            )
        return cls(offset, int(skip) if skip else 0)


class Created(Struct, frozen=True):
    """The result of creating a stream or a fork."""

    url: str
    new: bool
    """False if it existed before; also if an earlier attempt, whose response was lost, made it."""
    content_type: str
    next_offset: str
    """Where the stream ends."""
    closed: bool


class Appended(Struct, frozen=True):
    """An acknowledged append or close."""

    next_offset: str
    """Where the stream ends now."""
    closed: bool = False
    duplicate: bool = False
    """Whether an earlier attempt with the same producer headers has appended the data."""
    producer_seq: int | None = None
    """The last sequence number accepted from this producer, if the server reports it."""


class StreamInfo(Struct, frozen=True):
    """A stream's metadata, as HEAD returns it."""

    url: str
    content_type: str
    next_offset: str
    """Where the stream ends."""
    closed: bool
    ttl: int | None = None
    expires_at: str | None = None
    incarnation: str | None = None
    """Changes when the stream is deleted and created again, if the server reports it."""


class Batch(Struct, frozen=True):
    """A piece of a stream's data, and the offset after it."""

    data: bytes
    """Bytes as they were appended; for a JSON stream, an array of messages."""
    start: str
    """The offset that it was read from."""
    next_offset: str
    """The offset to continue from."""
    up_to_date: bool
    """Whether the stream had no data after this batch when it was read."""
    closed: bool
    """Whether the stream is closed, and will never have data after this batch."""
    content_type: str
    cursor: str | None = None
    skipped: int = 0
    """Messages (JSON) or bytes after `start` that the data does not include."""
    url: str = ""

    @property
    def is_json(self) -> bool:
        """Whether the data is an array of messages."""
        return holds_json(self.content_type)

    @property
    def empty(self) -> bool:
        """Whether there is no data: the batch only reports that the end was reached."""
        if not self.is_json or len(self.data) > _EMPTY_ARRAY_BYTES:
            return not self.data
        return not self.data.strip()[1:-1].strip()

    def items(self) -> list[Any]:
        """Parse a JSON batch into its messages."""
        return self._decode(_ARRAY)

    def raw_items(self) -> list[msgspec.Raw]:
        """Split a JSON batch into its messages, each as it was sent, without copying."""
        return self._decode(_RAW_ARRAY)

    def messages(self) -> list[bytes]:
        """Split a JSON batch into copies of its messages; other data is one piece."""
        if not self.is_json:
            return [self.data] if self.data else []
        return [bytes(message) for message in self.raw_items()]

    def items_with_offsets(self) -> Iterator[tuple[Any, Position]]:
        """Parse a JSON batch; yields each message with the position after it."""
        items = self.items()
        last = len(items) - 1
        for number, item in enumerate(items):
            if number == last:
                yield item, Position(self.next_offset)
            else:
                yield item, Position(self.start, self.skipped + number + 1)

    def without(self, count: int) -> "Batch":
        """Return the batch without its first messages (JSON) or bytes."""
        if self.is_json:
            rest = self.raw_items()[count:]
            data = b"[" + b",".join(map(bytes, rest)) + b"]"
        else:
            data = self.data[count:]
        return msgspec.structs.replace(self, data=data, skipped=self.skipped + count)

    def count(self) -> int:
        """Count the messages (JSON) or bytes."""
        return len(self.raw_items()) if self.is_json else len(self.data)

    def _decode(self, decoder: "msgspec.json.Decoder[list[Any]]") -> list[Any]:
        if not self.data:
            return []
        if not self.is_json:
            raise TypeError(
                f"{self.url} holds {self.content_type or 'no JSON'}: read it as bytes or text"
            )
        try:
            return decoder.decode(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadData(self.url, self.start, str(error)) from None
        except RecursionError:
            raise BadData(self.url, self.start, "it is nested too deeply") from None
