"""What the operations on a stream answer, and the batches that reading one gives."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from headwater.errors import BadData
from headwater.protocol.content_types import holds_json

_RAW_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[Any])
_NEVER_IN_OFFSETS: Final = ","
"""PROTOCOL 8 forbids it in offsets, so it can part an offset from what follows in a position."""

_EMPTY_ARRAY_BYTES: Final = 64
"""An array without messages is shorter, whatever space is in it."""


class Position(NamedTuple):
    """Where to resume: an offset, and how many messages behind it are known already.

    Offsets are the server's, and it gives one per batch. Between two of them only counting helps,
    and that works with any server.
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
    """A stream or a fork that exists now."""

    url: str
    new: bool
    """False where it was there before, or where an attempt without an answer had made it."""
    content_type: str
    next_offset: str
    """Where the stream ends."""
    closed: bool


class Appended(Struct, frozen=True):
    """An append, or a closing, that is acknowledged."""

    next_offset: str
    """Where the stream ends now."""
    closed: bool = False
    duplicate: bool = False
    """Whether an earlier attempt with the same producer headers had appended it."""
    producer_seq: int | None = None
    """The greatest number that the server has accepted of this producer, where it tells."""


class StreamInfo(Struct, frozen=True):
    """What HEAD tells of a stream."""

    url: str
    content_type: str
    next_offset: str
    closed: bool
    ttl: int | None = None
    expires_at: str | None = None
    incarnation: str | None = None
    """Changes when the stream is deleted and created again, where the server tells it."""


class Batch(Struct, frozen=True):
    """Some of a stream's data, and where to go on behind it."""

    data: bytes
    """Bytes as they were appended; for a JSON stream, an array of messages."""
    start: str
    """The offset that it was read at."""
    next_offset: str
    """The offset to go on from."""
    up_to_date: bool
    """Whether this was all the data that there was."""
    closed: bool
    """Whether this was all the data that there will ever be."""
    content_type: str
    cursor: str | None = None
    skipped: int = 0
    """How many messages (JSON) or bytes between `start` and the data were known already."""
    url: str = ""

    @property
    def is_json(self) -> bool:
        """Whether the data is an array of messages."""
        return holds_json(self.content_type)

    @property
    def empty(self) -> bool:
        """Whether there is no data, only news of the end."""
        if not self.is_json or len(self.data) > _EMPTY_ARRAY_BYTES:
            return not self.data
        return not self.data.strip()[1:-1].strip()

    def items(self) -> list[Any]:
        """Parse a JSON batch into its messages."""
        return self._decode(_ARRAY)

    def raw_items(self) -> list[msgspec.Raw]:
        """Split a JSON batch into its messages, each as it was sent, without copying it."""
        return self._decode(_RAW_ARRAY)

    def messages(self) -> list[bytes]:
        """Split a JSON batch into messages of their own; other data is one piece."""
        if not self.is_json:
            return [self.data] if self.data else []
        return [bytes(message) for message in self.raw_items()]

    def items_with_offsets(self) -> Iterator[tuple[Any, Position]]:
        """Parse a JSON batch; each message comes with the position to resume behind it."""
        items = self.items()
        last = len(items) - 1
        for number, item in enumerate(items):
            if number == last:
                yield item, Position(self.next_offset)
            else:
                yield item, Position(self.start, self.skipped + number + 1)

    def without(self, known: int) -> "Batch":
        """Leave out messages (JSON) or bytes at the beginning that are known already."""
        if self.is_json:
            rest = self.raw_items()[known:]
            data = b"[" + b",".join(map(bytes, rest)) + b"]"
        else:
            data = self.data[known:]
        return msgspec.structs.replace(self, data=data, skipped=self.skipped + known)

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
