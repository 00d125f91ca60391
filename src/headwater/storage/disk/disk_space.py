"""Disk space: how much is free, and the reserve with which a full disk can be emptied."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

DISK_FULL_ERRORS: Final = frozenset({errno.EFBIG, errno.ENOSPC, errno.EDQUOT})
"""Errors that more room would help against."""


def free_bytes(place: Path | int) -> int:
    """Say how much room is left on the disk of a folder, or of an open file."""
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize


class Reserve:
    """Room kept back by the file `RESERVE`: a full disk can only be emptied with some of it.

    A deletion is a record in the journal and a transaction of the catalog before it frees anything.
    The loop, the thread of checkpoints and that of compactions use it: its lock keeps `held` and
    the file in agreement.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._path = folder / "RESERVE"
        self._size = size
        self._lock = Lock()
        self.held = False

    def hold(self) -> bool:
        """Take the room, if there is so much; return whether it is held."""
        with self._lock:
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    os.posix_fallocate(fd, 0, self._size)
                finally:
                    os.close(fd)
            except OSError:
                self._remove()
            else:
                self.held = True
            return self.held

    def lend(self) -> None:
        """Give the room, if there is hardly any other; it has to be held again."""
        if free_bytes(self._path.parent) < self._size:
            self.release()

    def release(self) -> bool:
        """Free the room for the caller; return whether it was held."""
        with self._lock:
            was_held = self.held
            self._remove()
            return was_held

    def _remove(self) -> None:
        """Remove the file; the lock is held."""
        self.held = False
        with suppress(OSError):  # then the room stays taken, and the caller's write fails
            self._path.unlink(missing_ok=True)
