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
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct as Layout
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from headwater.errors import NewerFormat, StoreDamaged
from headwater.storage.disk import faults
from headwater.storage.disk.files import NUMBER, free_bytes, sync, sync_directory
from headwater.storage.disk.finding import whole_records
from headwater.storage.disk.records import HEADER, MAX_LENGTH, MIN_LENGTH
from headwater.storage.disk.syncing import SyncFailed

log: Final = logging.getLogger("headwater.disk")

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
_MAX_BATCH: Final = 2**32 - 1
_MAX_VECTOR: Final = 512
_COPY_BYTES: Final = 256 * 1024
_FILL: Final = bytes(1 << 20)
_FILL_SHARE: Final = 4
"""A file is filled only where there is room for so many."""
_SPARES: Final = f"{NUMBER}.spare"
_MAX_SPARES: Final = 2
_SEARCHED: Final = 1 << 20
"""So far behind a lost header a record is looked for: each start looks through what is left of an
older file, and all of it takes more than a second."""
NO_ROOM: Final = frozenset({errno.EFBIG, errno.ENOSPC, errno.EDQUOT})
"""Errors that more room would help against."""


def journal_path(folder: Path, number: int) -> Path:
    """Name a journal file."""
    return folder / f"{number:016d}.log"


def journal_numbers(folder: Path) -> list[int]:
    """List the journal files that there are, oldest first; files of others are left alone."""
    return sorted(int(path.stem) for path in folder.glob(f"{NUMBER}.log"))


def retire(folder: Path, before: int) -> None:
    """Let go of the files below a number; a few are kept to be written over."""
    for number in journal_numbers(folder):
        if number < before:
            path = journal_path(folder, number)
            if len(list(folder.glob(_SPARES))) < _MAX_SPARES:
                path.rename(path.with_suffix(".spare"))
            else:
                path.unlink()


def drop_spares(folder: Path) -> None:
    """Give back the room of the files that are kept to be written over."""
    for spare in folder.glob(_SPARES):
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
        spare = next(folder.glob(_SPARES), None)
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
            sync(self.fd, self.path)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
        sync_directory(self._folder)
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
        pack = HEADER.pack
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
            total += length + HEADER.size
            if length >= MAX_LENGTH or total > _MAX_BATCH:
                raise OSError(errno.EFBIG, "a batch that long could not be read again")
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


def make_durable(path: Path, end: int) -> None:
    """Make what was read of a file durable, up to its end.

    It may never have been synced; and where a sync has failed, the system may take for written
    what never reached the disk, so that another sync would do nothing. So the bytes are written
    over themselves, which takes no room and leaves nothing torn that was not so before.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            for position in range(0, end, len(_FILL)):
                piece = os.pread(fd, min(len(_FILL), end - position), position)
                _write_all(fd, piece, position)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # Some file systems never write in place. A full one can still be read.
            log.warning("no room to write the journal anew, it is only synced file=%s", path)
        if faults.fails("recovery-sync-fails"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd, path)
    finally:
        os.close(fd)


class Entry(NamedTuple):
    """A record where it stands in a journal file."""

    position: int
    body: bytes

    @property
    def end(self) -> int:
        return self.position + HEADER.size + len(self.body)


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
                    # Zeros, or what is left of an older file, unless a record of this one is there.
                    rest = _rest(fd, position, size)
                    if any(True for _ in whole_records(rest, seed, until=_SEARCHED)):
                        yield Damage(position, size, torn=True)
                    return
                yield from _salvaged(_read(fd, position, following[0]), position, seed)
                position, sequence = following
                continue
            position += BATCH_HEADER
            yield from _records(fd, position, position + length, size, seed, sequence)
            position += length
            sequence += 1


def salvage(path: Path, damage: Damage) -> Iterator[Entry | Damage]:
    """Read a damaged part of a file: the whole records in it, and what is between them."""
    seed = seed_of(path)
    if seed is None:
        yield damage
        return
    with path.open("rb") as file:
        part = _read(file.fileno(), damage.position, damage.end)
    yield from _salvaged(part, damage.position, seed)


def _salvaged(part: bytes, position: int, seed: int) -> Iterator[Entry | Damage]:
    at = 0
    for start, body in whole_records(part, seed):
        entry = Entry(position + start, body)
        if start > at:
            yield Damage(position + at, entry.position, torn=False)
        yield entry
        at = entry.end - position
    if at < len(part):
        yield Damage(position + at, position + len(part), torn=False)


def _records(
    fd: int, position: int, end: int, size: int, seed: int, sequence: int
) -> Iterator[Entry | Damage]:
    """Read the records of one batch."""
    batch = _read(fd, position, end)
    found: list[Entry] = []
    at = 0
    while at < end - position:
        body = _record_in(batch, at, seed)
        if body is None:
            break
        found.append(Entry(position + at, body))
        at += HEADER.size + len(body)
    if at == end - position:
        yield from found
    elif _next_batch(fd, position, size, seed, sequence + 1) is None:
        yield Damage(position - BATCH_HEADER, size, torn=True)
    else:
        # How long a damaged record is can't be known: its length may be what is damaged.
        yield from found
        yield from _salvaged(batch[at:], position + at, seed)


def _read(fd: int, position: int, end: int) -> bytes:
    """Read a part of a file, or less of it at the file's end; one call gives 2 GiB at most."""
    pieces = []
    while position < end and (piece := os.pread(fd, end - position, position)):
        pieces.append(piece)
        position += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _rest(fd: int, position: int, size: int) -> bytes:
    """Read a file to its end, without the zeros that it was filled with."""
    pieces = [_read(fd, at, min(at + len(_FILL), size)) for at in range(position, size, len(_FILL))]
    while pieces and pieces[-1] == _FILL[: len(pieces[-1])]:
        pieces.pop()
    return b"".join(pieces)


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


def _record_in(batch: bytes, at: int, seed: int) -> bytes | None:
    """Give the body of the record that begins here, if it is whole."""
    first = at + HEADER.size
    if first > len(batch):
        return None
    length, crc = HEADER.unpack_from(batch, at)
    if not MIN_LENGTH <= length < MAX_LENGTH:
        return None
    body = batch[first : first + length]
    return body if len(body) == length and crc32(body, seed) == crc else None
