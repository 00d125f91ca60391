"""Named points at which a test can end or fail the process: nothing happens unless it is asked for.

`HEADWATER_FAULTS=journal-written:3` kills the process the third time it reaches that point;
`HEADWATER_FAULTS=sync-fails:3` makes the third sync of the journal fail, and so do
`directory-sync-fails` and `catalog-sync-fails` with those of directories and of checkpoints.
`HEADWATER_SYNCED=DIR` keeps a copy there of each file that was synced, as it was then: what a power
cut would leave of it. `HEADWATER_HOLD=FILE` begins no sync of a batch as long as there is such a
file.
"""

import os
import shutil
import signal
from pathlib import Path
from typing import Final

VARIABLE: Final = "HEADWATER_FAULTS"
SYNCED_VARIABLE: Final = "HEADWATER_SYNCED"
HOLD_VARIABLE: Final = "HEADWATER_HOLD"
HOLD_SECONDS: Final = 0.01
"""So often is it looked whether a sync is still held."""

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


def _parse(text: str) -> dict[str, int]:
    """Read `name:count,name:count`."""
    pairs = (item.partition(":") for item in text.split(",") if item)
    return {name: int(count or 1) for name, _, count in pairs}


_armed: Final = _parse(os.environ.get(VARIABLE, ""))
_copies: Final = os.environ.get(SYNCED_VARIABLE)
_hold: Final = os.environ.get(HOLD_VARIABLE)


def _due(name: str) -> bool:
    left = _armed.get(name)
    if left is None:
        return False
    _armed[name] = left - 1
    return left == 1


def reach(point: str) -> None:
    """Die here, as a power cut would have it, if this point is armed."""
    if _armed and _due(point):
        os.kill(os.getpid(), signal.SIGKILL)


def fails(point: str) -> bool:
    """Tell whether an operation is to be reported as failed."""
    return bool(_armed) and _due(point)


def holds_sync() -> bool:
    """Tell whether the sync of a batch has to wait."""
    return _hold is not None and Path(_hold).exists()


def synced(path: Path) -> None:
    """Keep a file as it is, now that it is synced, if that is asked for."""
    if _copies:
        shutil.copyfile(path, Path(_copies) / path.name)
