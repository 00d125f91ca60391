"""What a store answers instead of a result: one value per cause, carrying its data.

A refusal is an answer, not an exception: the rules return it, the stores pass it on, and the server
turns it into a status code and a sentence (`headwater.server.problems`).
"""

from msgspec import Struct

from headwater.protocol.framing import EmptyArray, InvalidJson
from headwater.protocol.offsets import Offset, StaleIncarnation, UnknownPosition
from headwater.protocol.producers import EpochStartsAtZero, Fenced, ProducerState, SequenceGap


class StreamNotFound(Struct, frozen=True):
    """No stream lives at this path: it never did, or it was deleted or has expired."""

    path: str


class StreamGone(Struct, frozen=True):
    """The stream was deleted, and its bytes are kept only for its forks (PROTOCOL 4.2)."""

    path: str


class PathBlocked(Struct, frozen=True):
    """A deleted stream with living forks still holds this path."""

    path: str


class ConfigMismatch(Struct, frozen=True):
    """A stream exists here with another configuration."""

    path: str
    field: str
    existing: str
    requested: str


class StreamClosed(Struct, frozen=True):
    """The stream is closed and takes no more appends."""

    path: str
    tail: Offset
    producer: ProducerState | None = None
    """How far the stream has taken the appends of the producer that asks."""


class ContentTypeMismatch(Struct, frozen=True):
    """The content type of an append, or of a fork, is not the stream's."""

    path: str
    expected: str
    received: str


class SeqRegression(Struct, frozen=True):
    """`Stream-Seq` is not greater than the last one."""

    path: str
    last: str
    received: str


class OffsetBeyondTail(Struct, frozen=True):
    """The offset lies past the end of the stream."""

    offset: Offset
    tail: Offset


class OffsetInsideMessage(Struct, frozen=True):
    """The offset lies between the two ends of a message."""

    offset: Offset


class SourceNotFound(Struct, frozen=True):
    """The stream to fork from does not exist."""

    path: str


class SourceGone(Struct, frozen=True):
    """The stream to fork from was deleted and only serves the forks that it has."""

    path: str


class SubOffsetOvershoot(Struct, frozen=True):
    """The fork's sub-offset reaches past the end of its source."""

    sub_offset: int
    available: int
    unit: str


class StoreFull(Struct, frozen=True):
    """The store is at its limit; nothing was written."""

    limit: str


class StoreUnwritable(Struct, frozen=True):
    """The store could not make it durable."""

    reason: str
    full: bool = False
    """Whether room would help; nothing was written then."""
    stopped: bool = False
    """Whether only a restart helps, and shows what was written; else it may just be sent again."""


class BytesDamaged(Struct, frozen=True):
    """Stored bytes of this stream don't hold what their checksum says."""

    path: str
    place: str


Missing = StreamNotFound | StreamGone
PositionRefusal = StaleIncarnation | UnknownPosition | OffsetBeyondTail | OffsetInsideMessage
ReadRefusal = Missing | PositionRefusal | BytesDamaged
DeleteRefusal = Missing | StoreUnwritable
ProducerRefusal = Fenced | SequenceGap | EpochStartsAtZero
BodyRefusal = InvalidJson | EmptyArray
WriteRefusal = StreamClosed | ContentTypeMismatch | SeqRegression | ProducerRefusal | BodyRefusal
AppendRefusal = Missing | WriteRefusal | StoreFull | StoreUnwritable
ForkRefusal = SourceNotFound | SourceGone | SubOffsetOvershoot | PositionRefusal
CreateRefusal = (
    PathBlocked
    | ConfigMismatch
    | ContentTypeMismatch
    | ForkRefusal
    | BodyRefusal
    | BytesDamaged
    | StoreFull
    | StoreUnwritable
)
Refusal = ReadRefusal | AppendRefusal | CreateRefusal
