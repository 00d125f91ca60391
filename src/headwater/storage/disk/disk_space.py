"""Disk space: how much is free, the reserve for deletions, and whether writes are refused.

A deletion writes a journal record and a catalog transaction before it frees anything. The file
`RESERVE` holds space for that. While the reserve can't be held, only deletions are accepted; they
and the checkpoints and compactions that free space may use it.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from headwater.storage.refusals import StoreUnwritable

DISK_FULL_ERRORS: Final = frozenset({errno.EFBIG, errno.ENOSPC, errno.EDQUOT})
"""Errors that more disk space, or a higher limit on it, would fix."""
_CATALOG_ROOM: Final = 128 * 1024
"""Disk space that the catalog transaction of a compaction may need."""
_NO_RESERVE: Final = StoreUnwritable("the disk is full but for a reserve", full=True)
"""The refusal while the reserve can't be held."""


def free_bytes(place: Path | int) -> int:
    """Return the free space on the disk of a folder or an open file."""
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize


class DiskSpace:
    """The disk space of a data directory.

    The loop and the threads of checkpoints and compactions share it: one lock keeps the file of the
    reserve, `held` and `refusal` consistent.
    """

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self._path = folder / "RESERVE"
        self._reserve_bytes = reserve_bytes
        self._lock = Lock()
        self.held = False
        """Whether the reserve is held."""
        self.refusal: StoreUnwritable | None = None
        """Why writes are refused, or None. Deletions are still accepted."""
        self.failure: StoreUnwritable | None = None
        """Why the last checkpoint or journal file failed; None after a success."""

    # The reserve

    def hold(self) -> bool:
        """Hold the reserve if the disk has the space; return whether it is held."""
        with self._lock:
            return self._hold()

    def release(self) -> bool:
        """Free the reserve for the caller; return whether it was held."""
        with self._lock:
            return self._release()

    def release_if_full(self) -> None:
        """Release the reserve if the disk has less free space than that."""
        if free_bytes(self._folder) < self._reserve_bytes:
            self.release()

    def _hold(self) -> bool:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(fd, 0, self._reserve_bytes)
            finally:
                os.close(fd)
        except OSError:
            self._release()
        else:
            self.held = True
        return self.held

    def _release(self) -> bool:
        was_held = self.held
        self.held = False
        with suppress(OSError):  # the space stays allocated, and the caller's write fails
            self._path.unlink(missing_ok=True)
        return was_held

    # A full disk

    def accept_writes(self) -> None:
        """Accept writes if the reserve can be held; called at the start, and after a refusal."""
        with self._lock:
            if self.refusal is None or self.refusal is _NO_RESERVE:
                self.refusal = None if self._hold() else _NO_RESERVE

    @property
    def lacks_reserve(self) -> bool:
        """Whether writes are refused only because the reserve can't be held."""
        return self.refusal is _NO_RESERVE

    def release_for_deletion(self) -> bool:
        """Release the reserve for a deletion, and refuse writes; return whether it was held."""
        with self._lock:
            if not self._release():
                return False
            self.refusal = _NO_RESERVE
            return True

    def release_for_compaction(self) -> int:
        """Return how much of a full disk a compaction may use; 0 while the disk is not full."""
        with self._lock:
            if self.refusal is None or not self.refusal.full:
                return 0
            self._release()
        return max(0, free_bytes(self._folder) - _CATALOG_ROOM)

    def checkpoint_succeeded(self, free_more: Callable[[], None]) -> None:
        """Accept writes if the reserve can be held; `free_more` deletes what can be spared."""
        with self._lock:
            self.failure = None
            if not self.held and not self._hold():
                with suppress(OSError):  # `_hold` finds out whether there is enough space
                    free_more()
                self._hold()
            self.refusal = None if self.held else _NO_RESERVE

    def checkpoint_failed(self) -> None:
        """Refuse writes if the failed checkpoint has used the reserve."""
        with self._lock:
            if self.refusal is None and not self.held:
                self.refusal = _NO_RESERVE

    def failed(self, reason: str, error: BaseException, *, memory_full: bool) -> None:
        """Record why nothing could be saved; refuse writes if memory is full as well."""
        full = isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS
        with self._lock:
            self.failure = StoreUnwritable(reason, full=full)
            if memory_full:
                self.refusal = self.failure

    def memory_filled_up(self) -> None:
        """Refuse writes: memory is full, and the last attempt to save it has failed."""
        with self._lock:
            self.refusal = self.failure or self.refusal
