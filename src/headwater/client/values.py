"""What the operations on a stream answer."""

from typing import Final

import msgspec
from msgspec import Struct

from headwater.protocol.content_types import is_json, media_type

_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])


class Created(Struct, frozen=True):
    """A stream or a fork that exists now."""

    url: str
    new: bool
    """False where it was there before, or where an attempt without an answer had made it."""
    content_type: str
    next_offset: str
    closed: bool


class Appended(Struct, frozen=True):
    """An append, or a closing, that is acknowledged."""

    next_offset: str
    """Where the stream ends now."""
    closed: bool = False
    duplicate: bool = False
    """Whether an earlier attempt with the same producer headers had appended it."""


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


class Chunk(Struct, frozen=True):
    """Some of a stream's data, and where to go on behind it."""

    data: bytes
    """Bytes as they were appended; for a JSON stream, an array of messages."""
    next_offset: str
    up_to_date: bool
    """Whether this was all the data that there was."""
    closed: bool
    """Whether this was all the data that there will ever be."""
    content_type: str

    @property
    def is_json(self) -> bool:
        """Whether the data is an array of messages."""
        return is_json(media_type(self.content_type) or "")

    @property
    def empty(self) -> bool:
        """Whether there is no data, only news of the end."""
        return not (self.data.strip()[1:-1].strip() if self.is_json else self.data)

    def messages(self) -> list[bytes]:
        """Split a JSON chunk into its messages, each as it was sent; other data is one piece."""
        if not self.is_json:
            return [self.data] if self.data else []
        return [bytes(message) for message in _ARRAY.decode(self.data)] if self.data else []
