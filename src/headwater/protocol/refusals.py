"""The reasons for refusing a request: one value per cause, with its data.

A refusal is a return value, not an exception: the rules return it, the stores pass it on, and
`headwater.server.problems` maps it to a response.
"""

from msgspec import Struct

from headwater.protocol.framing import EmptyArray, InvalidJson
from headwater.protocol.offsets import Offset, PositionRefusal
from headwater.protocol.producers import EpochStartsAtZero, Fenced, ProducerState, SequenceGap


class StreamNotFound(Struct, frozen=True):
    """There is no stream at this path: it never existed, was deleted, or has expired."""

    path: str


class StreamGone(Struct, frozen=True):
    """The stream was deleted; its bytes are stored only for its forks (PROTOCOL 4.2)."""

    path: str


class PathBlocked(Struct, frozen=True):
    """The path is taken by a deleted stream that still has forks."""

    path: str


class ConfigMismatch(Struct, frozen=True):
    """A stream with another configuration exists at this path."""

    path: str
    field: str
    existing: str
    requested: str


class StreamClosed(Struct, frozen=True):
    """The stream is closed and accepts no more appends."""

    path: str
    tail: Offset
    producer: ProducerState | None = None
    """The stored state of the producer that the request names."""


class ContentTypeMismatch(Struct, frozen=True):
    """The content type of an append, or of a fork, differs from the stream's."""

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
    """The stream to fork from was deleted and only serves its existing forks."""

    path: str


class SubOffsetOvershoot(Struct, frozen=True):
    """The sub-offset of a fork is past the end of its source."""

    sub_offset: int
    available: int
    unit: str


Missing = StreamNotFound | StreamGone
ProducerRefusal = Fenced | SequenceGap | EpochStartsAtZero
BodyRefusal = InvalidJson | EmptyArray
WriteRefusal = StreamClosed | ContentTypeMismatch | SeqRegression | ProducerRefusal | BodyRefusal
ForkRefusal = SourceNotFound | SourceGone | SubOffsetOvershoot | PositionRefusal
