"""Writing a large file past the page cache.

A segment is written once, by a thread that shares its core with the loop, and few of its bytes are
read soon. Through the page cache each of them would be copied into a page that has to be found
first, and all of them would be waited for at one sync, with the journal's syncs behind them. Direct
writes take a third of the processor's time and go to the disk little by little.
"""

import errno
import mmap
import os
from contextlib import suppress
from fcntl import F_GETFL, F_SETFL, fcntl
from pathlib import Path
from typing import Final

from headwater.protocol.framing import Buffer

_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
_ALIGNMENT: Final = 4096
_BUFFER: Final = 1024 * 1024


class DirectFile:
    """A new file that is written from its start to its end."""

    def __init__(self, path: Path, room: int = 0) -> None:
        """Make the file, and take so much room for it beforehand; what is left is given back."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        if room:
            try:
                os.posix_fallocate(self._fd, 0, room)
            except OSError:
                os.close(self._fd)
                path.unlink()
                raise
        self._set_direct(wanted=True)
        self._buffer = mmap.mmap(-1, _BUFFER)  # direct writes want memory that begins with a page
        self._filled = 0
        self._written = 0

    def write(self, data: Buffer) -> None:
        """Add bytes at the end."""
        end = self._filled + len(data)
        if end < _BUFFER:  # most are short, and there are many
            self._buffer[self._filled : end] = data
            self._filled = end
            return
        rest = memoryview(data)
        while rest:
            taken = min(len(rest), _BUFFER - self._filled)
            self._buffer[self._filled : self._filled + taken] = rest[:taken]
            self._filled += taken
            rest = rest[taken:]
            if self._filled == _BUFFER:
                self._flush(_BUFFER)
                self._filled = 0

    def finish(self) -> None:
        """Make the file durable, and close it."""
        size = self._written + self._filled
        if self._filled:
            self._flush(-(-self._filled // _ALIGNMENT) * _ALIGNMENT)
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        self.close()

    def _flush(self, count: int) -> None:
        with memoryview(self._buffer) as view:
            done = 0
            while done < count:
                # A direct write may end early, but then at a boundary that the next can begin at.
                try:
                    done += os.pwrite(self._fd, view[done:count], self._written + done)
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._direct:
                        raise
                    self._set_direct(wanted=False)
        self._written += count

    def _set_direct(self, *, wanted: bool) -> None:
        """Ask for direct writes, or give them up; where there are none, the cache takes them."""
        self._direct = False
        if _O_DIRECT:
            flags = fcntl(self._fd, F_GETFL)
            with suppress(OSError):  # not every file system can
                fcntl(self._fd, F_SETFL, flags | _O_DIRECT if wanted else flags & ~_O_DIRECT)
                self._direct = wanted

    def close(self) -> None:
        """Let go of the file, whole or not; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._buffer.close()
