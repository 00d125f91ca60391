"""The data directory: how its files are numbered, and the lock that one writer holds."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Final, Self

from headwater.errors import StoreLocked

NUMBER: Final = "[0-9]" * 16
"""How files are numbered in their names, as a pattern."""
_LOOK_SECONDS: Final = 0.1


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
