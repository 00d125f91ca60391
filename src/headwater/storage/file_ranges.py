"""Stored bytes that are not in memory: ranges of files, which can be sent from where they lie."""

import os
from collections.abc import Iterator, Sequence

from headwater.protocol.byte_requests import Buffer


class Truncated(OSError):
    """A file ended before its bytes did."""


class FileRange:
    """Stored bytes that still lie in a file, and can be sent from there."""

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
        """Give what follows the first `count` bytes."""
        return FileRange(self._owner, self.fd, self.position + count, self._length - count)

    def first(self, count: int) -> "FileRange":
        """Give the first `count` bytes."""
        return FileRange(self._owner, self.fd, self.position, min(count, self._length))

    def read(self) -> bytes:
        """Bring them into memory."""
        data = os.pread(self.fd, self._length, self.position)
        if len(data) != self._length:
            raise Truncated
        return data


Part = Buffer | FileRange


def in_memory(parts: Sequence[Part]) -> list[Buffer]:
    """Bring parts into memory that are not there yet."""
    return [part.read() if isinstance(part, FileRange) else part for part in parts]


def pieces(parts: Sequence[Part], size: int) -> Iterator[Buffer]:
    """Bring parts into memory one after another, no more than `size` of a file at a time."""
    for part in parts:
        if isinstance(part, FileRange):
            for at in range(0, len(part), size):
                yield part.after(at).first(size).read()
        else:
            yield part
