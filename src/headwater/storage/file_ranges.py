"""Ranges of files: stored bytes that are not in memory and can be sent with `sendfile`."""

import os
from collections.abc import Iterator, Sequence

from headwater.protocol.byte_requests import Buffer


class Truncated(OSError):
    """A file ends before the end of a range."""


class FileRange:
    """Stored bytes in a file."""

    __slots__ = ("_length", "_owner", "fd", "position")

    def __init__(self, owner: object, fd: int, position: int, length: int) -> None:
        self._owner = owner
        """Keeps the file open."""
        self.fd = fd
        self.position = position
        self._length = length

    def __len__(self) -> int:
        return self._length

    def after(self, count: int) -> "FileRange":
        """Return the range without its first `count` bytes."""
        return FileRange(self._owner, self.fd, self.position + count, self._length - count)

    def first(self, count: int) -> "FileRange":
        """Return the first `count` bytes as a range."""
        return FileRange(self._owner, self.fd, self.position, min(count, self._length))

    def read(self) -> bytes:
        """Read the bytes."""
        data = os.pread(self.fd, self._length, self.position)
        if len(data) != self._length:
            raise Truncated
        return data


Part = Buffer | FileRange


def in_memory(parts: Sequence[Part]) -> list[Buffer]:
    """Return the parts as buffers, after reading those that are in files."""
    return [part.read() if isinstance(part, FileRange) else part for part in parts]


def pieces(parts: Sequence[Part], size: int) -> Iterator[Buffer]:
    """Yield the bytes of the parts in order, reading at most `size` bytes of a file at a time."""
    for part in parts:
        if isinstance(part, FileRange):
            for at in range(0, len(part), size):
                yield part.after(at).first(size).read()
        else:
            yield part
