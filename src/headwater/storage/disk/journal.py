"""Journal files: `journal/<number>.log`, each with a header and batches one after another.

    file    magic "HWJOURNL" | version u32 | salt u32 | number u64 | crc u32        and that again
    batch   magic "BTCH" | length u32 | sequence u64 | crc u32       then `length` bytes of records
    record  length u32 | crc u32 | what `records` describes

A batch is what one sync made durable. Every CRC-32 of a batch starts from the file's number and a
random salt: a file is written over one that is no longer needed, whose blocks are in place already,
and neither what is left of that one nor what a client made look like a batch must be taken for its
own. So a sync changes nothing but data, and takes half the time. The salt stands there twice, since
nothing of the file can be read without it.

A batch that is not whole was never acknowledged if no whole one follows it: it is torn, and cut
off. If one does follow, the batch had been synced, and is damaged.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct as Layout
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from headwater.errors import NewerFormat, StoreDamaged
from headwater.storage.disk import faults
from headwater.storage.disk.files import free_bytes, sync_directory
from headwater.storage.disk.records import MAX_LENGTH, MIN_LENGTH
from headwater.storage.disk.syncing import SyncFailed

VERSION: Final = 1
_MAGIC: Final = b"HWJOURNL"
_FILE_HEADER: Final = Layout("<8sIIQ")
_CRC: Final = Layout("<I")
_SEED: Final = Layout("<QI")
_HEADER_COPY: Final = _FILE_HEADER.size + _CRC.size
START: Final = 2 * _HEADER_COPY
_BATCH_MAGIC: Final = b"BTCH"
_BATCH: Final = Layout("<4sIQ")
BATCH_HEADER: Final = _BATCH.size + _CRC.size
RECORD_HEADER: Final = Layout("<II")
_MAX_VECTOR: Final = 512
_COPY_BYTES: Final = 256 * 1024
_FILL: Final = bytes(1 << 20)
_FILL_SHARE: Final = 4
"""A file is filled only where there is room for so many."""
_MAX_SPARES: Final = 2
NO_ROOM: Final = frozenset({errno.EFBIG, errno.ENOSPC, errno.EDQUOT})
"""Errors that more room would help against."""


def journal_path(folder: Path, number: int) -> Path:
    """Name a journal file."""
    return folder / f"{number:016d}.log"


def journal_numbers(folder: Path) -> list[int]:
    """List the journal files that there are, oldest first."""
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def retire(folder: Path, before: int) -> None:
    """Let go of the files below a number; a few are kept to be written over."""
    for number in journal_numbers(folder):
        if number < before:
            path = journal_path(folder, number)
            if len(list(folder.glob("*.spare"))) < _MAX_SPARES:
                path.rename(path.with_suffix(".spare"))
            else:
                path.unlink()


def drop_spares(folder: Path) -> None:
    """Give back the room of the files that are kept to be written over."""
    for spare in folder.glob("*.spare"):
        spare.unlink(missing_ok=True)


def _seed(number: int, salt: int) -> int:
    return crc32(_SEED.pack(number, salt))


class JournalWriter:
    """One journal file that is being written."""

    def __init__(self, folder: Path, number: int, reserve: int, *, fill: bool = False) -> None:
        """Make a file ready; filled with zeros its blocks are in place from the first batch on.

        Blocks that are only reserved have to be entered in the file system when they are written
        to, which makes each sync dearer.
        """
        self.number = number
        self.path = journal_path(folder, number)
        self.position = START
        self._salt = int.from_bytes(os.urandom(4), "little")
        self._seed = _seed(number, self._salt)
        self._sequence = 0
        self._folder = folder
        self._has_header = False
        self.is_filled = False
        """Whether all blocks were written to before."""
        spare = next(folder.glob("*.spare"), None)
        if spare is not None:
            spare.rename(self.path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self.fd = os.open(self.path, flags if spare else flags | os.O_TRUNC, 0o644)
        try:
            self._reserve(reserve, fill=fill)
            self._write_header()
        except OSError as error:
            if error.errno in NO_ROOM:
                return  # a store starts on a full disk, to be read; the first batch tries again
            # An empty file counts as never used; at a start it may be the only one there is.
            os.ftruncate(self.fd, 0)
            os.close(self.fd)
            raise

    @property
    def is_empty(self) -> bool:
        return self.position == START

    def _write_header(self) -> None:
        header = _FILE_HEADER.pack(_MAGIC, VERSION, self._salt, self.number)
        os.pwrite(self.fd, 2 * (header + _CRC.pack(crc32(header))), 0)
        try:
            os.fsync(self.fd)
            sync_directory(self._folder)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
        self._has_header = True

    def _reserve(self, reserve: int, *, fill: bool) -> None:
        size = before = os.fstat(self.fd).st_size
        # What is only there to be written over must not take the last room from others.
        fill = fill and free_bytes(self.fd) > _FILL_SHARE * reserve
        try:
            while fill and size < reserve:
                size += os.pwrite(self.fd, _FILL[: reserve - size], size)
            self.is_filled = size >= reserve
            if not self.is_filled:
                os.posix_fallocate(self.fd, 0, reserve)
        except OSError as error:
            os.ftruncate(self.fd, before)
            if error.errno not in NO_ROOM:
                raise

    def write(self, records: Sequence[Sequence[bytes]]) -> None:
        """Write a batch of records, each given in parts.

        A failure leaves the position where it was: `cut`, then write again.
        """
        faults.reach("journal-before-write")
        if not self._has_header:
            self._write_header()
        seed = self._seed
        pack = RECORD_HEADER.pack
        vector: list[bytes] = [b""]
        total = 0
        for parts in records:
            length = 0
            crc = seed
            for part in parts:
                length += len(part)
                crc = crc32(part, crc)
            vector.append(pack(length, crc))
            vector += parts
            total += length + RECORD_HEADER.size
        header = _BATCH.pack(_BATCH_MAGIC, total, self._sequence)
        vector[0] = header + _CRC.pack(crc32(header, seed))
        total += BATCH_HEADER
        if total <= _COPY_BYTES:
            _write_all(self.fd, b"".join(vector), self.position)
        else:
            position = self.position
            for first in range(0, len(vector), _MAX_VECTOR):
                position += _write_vector(self.fd, vector[first : first + _MAX_VECTOR], position)
        self.position += total
        self._sequence += 1
        faults.reach("journal-written")

    def cut(self) -> None:
        """Make sure that nothing of a batch that failed is found behind the last whole one."""
        os.ftruncate(self.fd, self.position)

    def close(self) -> None:
        """Let go of the file; what was only reserved is given back, so that a spare is filled."""
        if not self.is_filled:
            with suppress(OSError):
                os.ftruncate(self.fd, self.position)
        os.close(self.fd)


def _write_vector(fd: int, vector: list[bytes], position: int) -> int:
    total = sum(map(len, vector))
    written = os.pwritev(fd, vector, position)
    if written < total:
        _write_all(fd, memoryview(b"".join(vector))[written:], position + written)
    return total


def _write_all(fd: int, data: bytes | memoryview, position: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, position)
        position += written
        rest = rest[written:]


class Entry(NamedTuple):
    """A record where it stands in a journal file."""

    position: int
    body: bytes


class Damage(NamedTuple):
    """A place in a journal file that does not hold what its checksum says."""

    position: int
    end: int
    """Where what can be read begins again, or the end of the file."""
    torn: bool
    """Nothing whole follows: this is a batch whose write never finished."""


def check_header(path: Path) -> None:
    """Refuse a file that is not a journal, or one of a newer version."""
    number = _number_in_header(path)
    if number != int(path.stem):
        raise StoreDamaged(str(path), 0, "its header is not that of a journal file")


def never_used(path: Path) -> bool:
    """Tell a file that was being made ready when the process died: its header is not its own."""
    try:
        number = _number_in_header(path)
    except StoreDamaged:
        with path.open("rb") as file:
            return not file.read(START).strip(b"\0")
    return number < int(path.stem)


def _number_in_header(path: Path) -> int:
    header = _header_of(path)
    found = _parse_header(path, header[:_HEADER_COPY])
    if found is None or header[:_HEADER_COPY] != header[_HEADER_COPY:]:
        raise StoreDamaged(str(path), 0, "its header is not that of a journal file")
    return found[0]


def _header_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(START)


def _parse_header(path: Path, header: bytes) -> tuple[int, int] | None:
    """Read one copy of a header: number and salt, or None if it is none."""
    if len(header) != _HEADER_COPY:
        return None
    magic, version, salt, number = _FILE_HEADER.unpack_from(header)
    (crc,) = _CRC.unpack_from(header, _FILE_HEADER.size)
    if magic != _MAGIC or crc != crc32(header[: _FILE_HEADER.size]):
        return None
    if version > VERSION:
        raise NewerFormat(str(path), version, VERSION)
    return number, salt


def seed_of(path: Path) -> int | None:
    """Give what the checksums of a file start from, by either copy of its header."""
    header = _header_of(path)
    for copy in (header[:_HEADER_COPY], header[_HEADER_COPY:]):
        found = _parse_header(path, copy)
        if found is not None and found[0] == int(path.stem):
            return _seed(*found)
    return None


def read_journal(path: Path) -> Iterator[Entry | Damage]:
    """Read a file from the start: whole records, and the places between them that are none.

    Records of a torn batch are not given, even those that are whole.
    """
    seed = seed_of(path)
    with path.open("rb") as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        if seed is None:
            yield Damage(0, size, torn=False)
            return
        position = START
        sequence = 0
        while position < size:
            length = _batch_at(fd, position, seed, sequence)
            if length is None:
                following = _next_batch(fd, position + 1, size, seed, sequence)
                if following is None:
                    return  # zeros, what is left of an older file, or a header that was torn
                yield Damage(position, following[0], torn=False)
                position, sequence = following
                continue
            position += BATCH_HEADER
            yield from _records(fd, position, position + length, size, seed, sequence)
            position += length
            sequence += 1


def _records(
    fd: int, position: int, end: int, size: int, seed: int, sequence: int
) -> Iterator[Entry | Damage]:
    """Read the records of one batch."""
    start = position
    found: list[Entry | Damage] = []
    damaged = False
    batch = os.pread(fd, end - start, start)
    while position < end:
        length, body = _record_in(batch, position - start, end - start, seed)
        upto = position + RECORD_HEADER.size + length
        if body is not None:
            found.append(Entry(position, body))
        else:
            damaged = True
            # Where the length can't be right either, the rest of the batch is lost with it.
            upto = upto if length else end
            found.append(Damage(position, upto, torn=False))
        position = upto
    if damaged and _next_batch(fd, start, size, seed, sequence + 1) is None:
        yield Damage(start - BATCH_HEADER, size, torn=True)
    else:
        yield from found


def _batch_at(fd: int, position: int, seed: int, least: int) -> int | None:
    """Give the length of the batch that begins here, if one does that is not too old."""
    header = os.pread(fd, BATCH_HEADER, position)
    if len(header) < BATCH_HEADER:
        return None
    magic, length, sequence = _BATCH.unpack_from(header)
    if magic != _BATCH_MAGIC or header[_BATCH.size :] != _CRC.pack(
        crc32(header[: _BATCH.size], seed)
    ):
        return None
    return int(length) if sequence >= least else None


def _next_batch(fd: int, position: int, size: int, seed: int, least: int) -> tuple[int, int] | None:
    """Look for a whole batch header further on: its position and its sequence."""
    window = 1 << 20
    while position < size:
        piece = os.pread(fd, window + len(_BATCH_MAGIC), position)
        at = piece.find(_BATCH_MAGIC)
        while at >= 0:
            if _batch_at(fd, position + at, seed, least) is not None:
                found = os.pread(fd, _BATCH.size, position + at)
                return position + at, _BATCH.unpack(found)[2]
            at = piece.find(_BATCH_MAGIC, at + 1)
        position += window
    return None


def _record_in(batch: bytes, at: int, end: int, seed: int) -> tuple[int, bytes | None]:
    """Give a record's length, 0 where it can't be right, and its body where that is whole."""
    first = at + RECORD_HEADER.size
    if first > len(batch):
        return 0, None
    length, crc = RECORD_HEADER.unpack_from(batch, at)
    if not MIN_LENGTH <= length <= min(MAX_LENGTH, end - first):
        return 0, None
    body = batch[first : first + length]
    return length, body if len(body) == length and crc32(body, seed) == crc else None
