"""Faults of the disk engine: the process dies or an operation fails at a named point."""

import os
import shutil
import signal
from pathlib import Path

from headwater.storage.disk.faults import Faults


class DiskFaults(Faults):
    """Faults that happen once each.

    `journal-written:3` kills the process the third time it reaches that point; `sync-fails:3` makes
    the third sync of the journal fail. `directory-sync-fails`, `catalog-sync-fails` and
    `recovery-sync-fails` do so with the syncs of directories, of checkpoints and of a start.
    """

    def __init__(
        self, points: str = "", copy_synced: Path | None = None, hold_file: Path | None = None
    ) -> None:
        """Read `point:count,point:count`.

        `copy_synced` is a folder that gets a copy of each file as it was when it was synced, which
        is what a power cut would leave of it. While `hold_file` exists, no batch is synced.
        """
        self._points = points
        self._copy_synced = copy_synced
        self._hold_file = hold_file
        pairs = (item.partition(":") for item in points.split(",") if item)
        self._left = {name: int(count or 1) for name, _, count in pairs}

    def arguments(self) -> list[str]:
        """Return the options of `tests.support.faulty` for these faults."""
        options: list[str] = []
        for name, value in (
            ("--faults", self._points),
            ("--copy-synced", self._copy_synced),
            ("--hold-file", self._hold_file),
        ):
            options += [name, str(value)] if value else []
        return options

    def reach(self, point: str) -> None:
        if self._is_due(point):
            os.kill(os.getpid(), signal.SIGKILL)

    def fails(self, point: str) -> bool:
        return self._is_due(point)

    def holds_sync(self) -> bool:
        return self._hold_file is not None and self._hold_file.exists()

    def synced(self, path: Path) -> None:
        if self._copy_synced is not None:
            shutil.copyfile(path, self._copy_synced / path.name)

    def _is_due(self, point: str) -> bool:
        left = self._left.get(point)
        if left is None:
            return False
        self._left[point] = left - 1
        return left == 1
