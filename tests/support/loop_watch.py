"""What the callbacks of an event loop do: how much work each of them is, and which calls it makes.

Work is counted in calls of functions, so that no busy machine changes the result.
"""

import sys
from asyncio.events import Handle
from collections import Counter
from types import FrameType, TracebackType
from typing import Any, Final, Self

BLOCKING: Final = frozenset(
    {
        *("execute", "executemany", "fetchall", "fetchone"),  # of SQLite
        *("pread", "preadv", "posix_fallocate", "ftruncate", "fsync", "fdatasync", "statvfs"),
        *("unlink", "rename", "scandir", "listdir"),
    }
)
"""Functions that wait for a disk, by their names."""


class LoopWatch:
    """Watches the callbacks of the loop that runs in this thread, in a `with` block."""

    def __init__(self) -> None:
        self.most = 0
        """The most calls that one callback has made."""
        self.busiest = ""
        """The callback that made them."""
        self.blocking: Counter[str] = Counter()
        """Calls that wait for a disk."""
        self._count = 0
        self._handle: Handle | None = None

    def __enter__(self) -> Self:
        sys.setprofile(self._profile)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            if frame.f_code is Handle._run.__code__:
                self._count = 0
                self._handle = frame.f_locals["self"]
            self._count += 1
        elif event == "c_call":
            self._count += 1
            if called.__name__ in BLOCKING:
                self.blocking[f"{called.__name__} in {frame.f_code.co_qualname}"] += 1
        elif event == "return" and frame.f_code is Handle._run.__code__ and self._count > self.most:
            self.most = self._count
            self.busiest = repr(self._handle)
