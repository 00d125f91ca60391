"""Why a store refuses a request: the refusals of the rules, and those of stores."""

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
    """The cause is a full disk; nothing was written."""
    stopped: bool = False
    """Writes are stopped until a restart, which shows whether the change was written. Otherwise the
    request may be repeated."""


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
