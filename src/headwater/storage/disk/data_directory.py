"""The data directory: numbers in file names, the header of numbered files, and the lock.

    header  magic (8 bytes) | version u32 | salt u32 | number u64 | crc u32

Journal files and segments begin with this header; numbers are little-endian, and the salt of a
segment is 0.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from struct import Struct as Layout
from time import sleep
from typing import Final, NamedTuple, Self

from zlib_ng.zlib_ng import crc32

from headwater.errors import NewerFormat, StoreLocked

NUMBER: Final = "[0-9]" * 16
"""A glob pattern for the number in a file name."""
_HEADER: Final = Layout("<8sIIQ")
_CRC: Final = Layout("<I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
_RETRY_SECONDS: Final = 0.1


class FileHeader(NamedTuple):
    """The header of a journal file or a segment."""

    magic: bytes
    version: int
    salt: int
    number: int

    def encode(self) -> bytes:
        """Return the header as it is stored."""
        header = _HEADER.pack(*self)
        return header + _CRC.pack(crc32(header))


def decode_header(stored: bytes, magic: bytes) -> FileHeader | None:
    """Return the header at the start of some bytes, or None if there is no intact one."""
    if len(stored) < HEADER_BYTES:
        return None
    header = FileHeader(*_HEADER.unpack_from(stored))
    (crc,) = _CRC.unpack_from(stored, _HEADER.size)
    return header if header.magic == magic and crc == crc32(stored[: _HEADER.size]) else None


def supported_header(path: Path, stored: bytes, magic: bytes, version: int) -> FileHeader | None:
    """Return the intact header of a file, if any; refuse one that is newer than `version`."""
    header = decode_header(stored, magic)
    if header is not None and header.version > version:
        raise NewerFormat(str(path), header.version, version)
    return header


class DirectoryLock:
    """The lock of the only writer, held on the file `LOCK` until the process ends."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
        except OSError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise StoreLocked(str(folder), holder) from None
        with suppress(OSError):  # the number only helps an operator, and the disk may be full
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _lock(self) -> None:
        """Take the lock, and retry once: `headwater check` may have tested it at that moment."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sleep(_RETRY_SECONDS)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
