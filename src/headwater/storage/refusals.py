"""Why a store refused: the refusals of the rules, and those that only a store has."""

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
    """The store could not make a change durable."""

    reason: str
    full: bool = False
    """Whether free disk space would help; nothing was written then."""
    stopped: bool = False
    """Whether only a restart helps, and shows what was written; otherwise the request may be sent
    again."""


class BytesDamaged(Struct, frozen=True):
    """Stored bytes of this stream do not match their checksum."""

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
