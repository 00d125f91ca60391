"""Small facts about files: syncing them, and the lock and the reserve of a data directory."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import sleep
from typing import Final, Self

from headwater.errors import StoreLocked
from headwater.storage.disk import faults
from headwater.storage.disk.syncing import SyncFailed

NUMBER: Final = "[0-9]" * 16
"""How files are numbered in their names, as a pattern."""
NO_ROOM: Final = frozenset({errno.EFBIG, errno.ENOSPC, errno.EDQUOT})
"""Errors that more room would help against."""
_LOOK_SECONDS: Final = 0.1


def sync_directory(folder: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        if faults.fails("directory-sync-fails"):
            raise OSError(errno.EIO, "injected")  # noqa: TRY301 - as the line above would
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error
    finally:
        os.close(fd)


def make_directory(folder: Path) -> None:
    """Make a directory and those above it, where they are missing; their names are durable."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in made:
        sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Make what a file holds durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(fd, path)
    finally:
        os.close(fd)


def sync(fd: int, path: Path) -> None:
    """Make what an open file holds durable."""
    os.fsync(fd)
    faults.synced(path)


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


class DirectoryLock:
    """One writer per directory: held by the file `LOCK`, released when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take()
        except OSError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise StoreLocked(str(folder), holder) from None
        with suppress(OSError):  # who holds it is only told to people, and the disk may be full
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _take(self) -> None:
        """Lock, and try once more: `headwater check` may have looked at that very moment."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sleep(_LOOK_SECONDS)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
