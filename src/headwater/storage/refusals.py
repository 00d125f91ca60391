"""Why a store refused: the refusals of the rules, and those that only a store can give."""

from msgspec import Struct

from headwater.protocol.offsets import PositionRefusal
from headwater.protocol.refusals import (
    BodyRefusal,
    ConfigMismatch,
    ContentTypeMismatch,
    ForkRefusal,
    Missing,
    PathBlocked,
    WriteRefusal,
)


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


ReadRefusal = Missing | PositionRefusal | BytesDamaged
DeleteRefusal = Missing | StoreUnwritable
AppendRefusal = Missing | WriteRefusal | StoreFull | StoreUnwritable
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
