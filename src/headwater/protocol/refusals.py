"""What a store answers instead of a result: one value per cause, carrying its data.

A refusal is an answer, not an exception: the rules return it, the stores pass it on, and the server
turns it into a status code and a sentence (`headwater.server.problems`).
"""

from msgspec import Struct

from headwater.protocol.framing import EmptyArray, InvalidJson
from headwater.protocol.offsets import Offset, PositionRefusal
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


Missing = StreamNotFound | StreamGone
ProducerRefusal = Fenced | SequenceGap | EpochStartsAtZero
BodyRefusal = InvalidJson | EmptyArray
WriteRefusal = StreamClosed | ContentTypeMismatch | SeqRegression | ProducerRefusal | BodyRefusal
ForkRefusal = SourceNotFound | SourceGone | SubOffsetOvershoot | PositionRefusal
