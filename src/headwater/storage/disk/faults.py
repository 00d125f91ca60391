"""Fault points: named places where a test can kill the process, fail an operation or hold a sync.

The engine calls these methods at its fault points. They do nothing; a test passes a subclass to the
store, or to an offline command, that does.
"""

from pathlib import Path
from typing import Final

KILL_POINTS: Final = (
    "journal-before-write",
    "journal-written",
    "journal-synced",
    "segment-before-write",
    "segment-written",
    "catalog-before-commit",
    "catalog-committed",
    "journal-before-delete",
    "journal-deleted",
    "recovery-started",
    "recovery-retired",
    "recovery-cleaned",
    "recovery-replayed",
    "compaction-written",
    "compaction-committed",
)
"""The points that a server reaches; offline commands have more."""

HOLD_SECONDS: Final = 0.01
"""How often a sync that is held checks whether it may start."""


class Faults:
    """What happens at fault points: nothing."""

    def reach(self, point: str) -> None:
        """Mark a point at which the process may die."""

    def fails(self, point: str) -> bool:  # noqa: ARG002 - a subclass decides by it
        """Return whether an operation has to be reported as failed."""
        return False

    def holds_sync(self) -> bool:
        """Return whether the sync of a batch has to wait."""
        return False

    def synced(self, path: Path) -> None:
        """Mark that a file was synced."""


NO_FAULTS: Final = Faults()
