"""Disk space: how much is free, and the reserve for deletions on a full disk."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

DISK_FULL_ERRORS: Final = frozenset({errno.EFBIG, errno.ENOSPC, errno.EDQUOT})
"""Errors that more disk space, or a higher limit on it, would fix."""


def free_bytes(place: Path | int) -> int:
    """Return the free space on the disk of a folder or an open file."""
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize


class Reserve:
    """Disk space held in the file `RESERVE`, released to delete streams on a full disk.

    A deletion writes a journal record and a catalog transaction before it frees anything. The loop
    and the threads of checkpoints and compactions share the reserve: the lock keeps `held` and the
    file consistent.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._path = folder / "RESERVE"
        self._size = size
        self._lock = Lock()
        self.held = False

    def hold(self) -> bool:
        """Allocate the reserve if the disk has the space; return whether it is held."""
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

    def release_if_full(self) -> None:
        """Release the reserve if the disk has less free space than that."""
        if free_bytes(self._path.parent) < self._size:
            self.release()

    def release(self) -> bool:
        """Free the space for the caller; return whether it was held."""
        with self._lock:
            was_held = self.held
            self._remove()
            return was_held

    def _remove(self) -> None:
        """Remove the file, with the lock held."""
        self.held = False
        with suppress(OSError):  # the space stays allocated, and the caller's write fails
            self._path.unlink(missing_ok=True)
