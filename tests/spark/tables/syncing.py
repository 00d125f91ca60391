"""Which files and folders a test has had made durable."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any


class Synced:
    """The files and folders that were synced."""

    def __init__(self) -> None:
        self._inodes: set[int] = set()

    def __contains__(self, path: Path) -> bool:
        return path.stat().st_ino in self._inodes

    def note(self, frame: FrameType, event: str, called: Any) -> None:
        """Be told by the interpreter of every call, before it is made."""
        if event == "c_call" and called is os.fsync:
            self._inodes.add(os.fstat(frame.f_locals["fd"]).st_ino)


@contextmanager
def synced() -> Iterator[Synced]:
    """Watch the calls of `os.fsync` by this thread, and by those that begin meanwhile."""
    found = Synced()
    sys.setprofile(found.note)
    threading.setprofile(found.note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
