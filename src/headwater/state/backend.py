"""Where a state lives: the interface of its backends, and what is committed to them.

A commit is one step: the rows, what is staged, what is kept aside and how far the stream was read
change together or not at all. So after a crash every event has been applied exactly once, or not
yet and will be.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

Changes: TypeAlias = dict[str, dict[str, bytes | None]]
"""By type and key: the new value as JSON, or None where the entity is removed."""

BEGINNING = "-1"


class Saved(Struct, frozen=True):
    """How far a state has come."""

    stream: str = ""
    """The URL of the stream, so that one file never mixes two of them."""
    incarnation: str = ""
    """Which stream it was at that URL, where the server tells."""
    fingerprint: str = ""
    """The schemas that the rows were checked by."""
    offset: str = BEGINNING
    """Everything before it is applied."""
    epoch: int = 0
    """How many resets there were."""
    complete: bool = False
    """Whether the stream's end was reached once, so that the rows were the state of some moment."""
    snapshot_open: bool = False
    """Whether the offset lies within a snapshot, so that changes go to the staged rows."""
    stopped: Mapping[str, tuple[str, str]] = {}
    """Types that don't go on: where they stopped, and why."""
    dropped: int = 0
    """How many events were passed over: of types without a collection, or by policy."""


class Quarantined(Struct, frozen=True):
    """A message that was kept aside instead of being applied."""

    position: str
    """Where on the stream: accepted wherever an offset is."""
    reason: str
    type: str
    """Empty where the message is no event."""
    key: str
    message: bytes

    def __str__(self) -> str:
        entity = f"{self.type} '{self.key}'" if self.type else "a message"
        return f"{entity} at {self.position}: {self.reason}"


class Work(Struct):
    """What one commit changes, in this order."""

    base: Literal["keep", "empty", "staged"]
    """What the rows begin with: those that are there, none, or the staged ones."""
    changes: Changes
    staged_base: Literal["keep", "empty"]
    staged: Changes
    """Changes to the staged rows of a snapshot that has not ended."""
    forget_quarantined: bool
    quarantined: list[Quarantined]
    saved: Saved


class Row(NamedTuple):
    """An entity of a known type."""

    key: str
    data: bytes


class Backend(Protocol):
    """Rows by type and key. All methods may be called from any thread, one at a time."""

    def load(self) -> Saved:
        """Tell how far the state is that is kept here; a new one is at the beginning."""
        ...

    def commit(self, work: Work) -> None:
        """Carry out the work as one step, durably where the backend is durable.

        Where this raises, nothing has changed.
        """
        ...

    def get(self, type: str, key: str) -> bytes | None:
        """Give one value."""
        ...

    def rows(self, type: str) -> Iterable[Row]:
        """Give all entities of a type, as of now, by key."""
        ...

    def staged_rows(self, type: str) -> Iterable[Row]:
        """Give all staged entities of a type."""
        ...

    def lookup(self, type: str, path: str, value: Any) -> Iterable[Row] | None:
        """Give at least the entities whose indexed member equals a value.

        None where there is no index for it, or none that can tell this value.
        """
        ...

    def create_index(self, type: str, path: str) -> None:
        """Make `lookup` by a member possible; done before where it is there already."""
        ...

    def count(self, type: str) -> int:
        """Count the entities of a type."""
        ...

    def types(self) -> list[str]:
        """List the types that have entities."""
        ...

    def quarantined(self) -> Iterator[Quarantined]:
        """Give what is kept aside, in the order of the stream."""
        ...

    def clear(self) -> None:
        """Forget everything, how far the state is included."""
        ...

    def close(self) -> None:
        """Let go of files. Closing twice is harmless."""
        ...
