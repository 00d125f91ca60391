"""Journal files: `journal/<number>.log`, each with a header and batches one after another.

    file    magic "HWJOURNL" | version u32 | salt u32 | number u64 | crc u32        and that again
    batch   magic "BTCH" | length u32 | sequence u64 | crc u32       then `length` bytes of records
    record  length u32 | crc u32 | what `records` describes

A batch contains the records that one fsync makes durable.

Journal files are recycled: a new file is written over one that is obsolete, whose blocks are
already allocated. So a sync writes data only, no file system metadata, and takes half the time.
Every CRC-32 of a batch starts from the file's number and a random salt, so that neither the
remains of the recycled file nor bytes that a client made look like a batch are taken for a batch
of this file. The header is stored twice, because nothing in the file can be read without its salt.

`journal_reader` reads this format.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct as Layout
from typing import Final

from zlib_ng.zlib_ng import crc32

from headwater.storage.disk.data_directory import HEADER_BYTES, NUMBER, FileHeader
from headwater.storage.disk.disk_space import DISK_FULL_ERRORS, free_bytes
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import SyncFailed, sync, sync_directory
from headwater.storage.disk.records import HEADER, MAX_LENGTH

log: Final = logging.getLogger("headwater.disk")

VERSION: Final = 1
MAGIC: Final = b"HWJOURNL"
CRC: Final = Layout("<I")
_SEED: Final = Layout("<QI")
START: Final = 2 * HEADER_BYTES
BATCH_MAGIC: Final = b"BTCH"
BATCH: Final = Layout("<4sIQ")
BATCH_HEADER: Final = BATCH.size + CRC.size
_MAX_BATCH: Final = 2**32 - 1
_MAX_VECTOR: Final = 512
_COPY_BYTES: Final = 256 * 1024
ZEROS: Final = bytes(1 << 20)
_FILL_SHARE: Final = 4
"""A file is filled with zeros only if this many would fit on the disk."""
_UNFILLED_BYTES: Final = 1024 * 1024
"""The size at which a journal file without prefilled blocks is full: a prefilled one follows."""
_SPARES: Final = f"{NUMBER}.spare"
_MAX_SPARES: Final = 2


def journal_path(folder: Path, number: int) -> Path:
    """Return the path of a journal file."""
    return folder / f"{number:016d}.log"


def journal_numbers(folder: Path) -> list[int]:
    """Return the numbers of the journal files, oldest first; other files are ignored."""
    return sorted(int(path.stem) for path in folder.glob(f"{NUMBER}.log"))


def retire(folder: Path, before: int) -> None:
    """Remove the files below a number; a few are kept as spares to be recycled."""
    for number in journal_numbers(folder):
        if number < before:
            path = journal_path(folder, number)
            if len(list(folder.glob(_SPARES))) < _MAX_SPARES:
                path.rename(path.with_suffix(".spare"))
            else:
                path.unlink()


def drop_spares(folder: Path) -> None:
    """Delete the spare files to free their disk space."""
    for spare in folder.glob(_SPARES):
        spare.unlink(missing_ok=True)


def seed_for(number: int, salt: int) -> int:
    """Return the value from which the checksums of a file start."""
    return crc32(_SEED.pack(number, salt))


class JournalWriter:
    """Writes batches to one journal file."""

    def __init__(
        self,
        folder: Path,
        number: int,
        reserve: int,
        *,
        fill: bool = False,
        faults: Faults = NO_FAULTS,
    ) -> None:
        """Create a file of `reserve` bytes, or recycle a spare one.

        With `fill` it is filled with zeros. Otherwise its blocks are only reserved, and each sync
        costs more, because the file system must record which of them have been written.
        """
        self.number = number
        self.path = journal_path(folder, number)
        self.position = START
        self.records = 0
        self._salt = int.from_bytes(os.urandom(4), "little")
        self._seed = seed_for(number, self._salt)
        self._sequence = 0
        self._folder = folder
        self._faults = faults
        self._has_header = False
        self.is_filled = False
        """Whether all blocks of the file have been written before."""
        spare = next(folder.glob(_SPARES), None)
        if spare is not None:
            spare.rename(self.path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self.fd = os.open(self.path, flags if spare else flags | os.O_TRUNC, 0o644)
        try:
            self._reserve(reserve, fill=fill)
            self._write_header()
        except OSError as error:
            if error.errno in DISK_FULL_ERRORS:
                return  # the store can start and be read; the first batch tries again
            # Recovery takes an empty file for one that was never used, even if there is no other.
            os.ftruncate(self.fd, 0)
            os.close(self.fd)
            raise

    @property
    def is_empty(self) -> bool:
        return self.position == START

    def _write_header(self) -> None:
        header = FileHeader(MAGIC, VERSION, self._salt, self.number).encode()
        os.pwrite(self.fd, 2 * header, 0)
        try:
            sync(self.fd, self.path, self._faults)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
        sync_directory(self._folder, self._faults)
        self._has_header = True

    def _reserve(self, reserve: int, *, fill: bool) -> None:
        size = before = os.fstat(self.fd).st_size
        if before > reserve:  # a long batch extended the spare
            os.ftruncate(self.fd, reserve)
            size = before = reserve
        # Filling only saves time, so it must not use the last disk space.
        fill = fill and free_bytes(self.fd) > _FILL_SHARE * reserve
        try:
            while fill and size < reserve:
                size += os.pwrite(self.fd, ZEROS[: reserve - size], size)
            self.is_filled = size >= reserve
            if not self.is_filled:
                os.posix_fallocate(self.fd, 0, reserve)
        except OSError as error:
            os.ftruncate(self.fd, before)
            if error.errno not in DISK_FULL_ERRORS:
                raise

    def write(self, records: Sequence[Sequence[bytes]]) -> None:
        """Write a batch of records, each given in parts.

        A failure leaves the position unchanged: call `truncate` before the next write.
        """
        self._faults.reach("journal-before-write")
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
                raise OSError(errno.EFBIG, "the batch is too long to be read again")
        header = BATCH.pack(BATCH_MAGIC, total, self._sequence)
        vector[0] = header + CRC.pack(crc32(header, seed))
        total += BATCH_HEADER
        if total <= _COPY_BYTES:
            _write_all(self.fd, b"".join(vector), self.position)
        else:
            position = self.position
            for first in range(0, len(vector), _MAX_VECTOR):
                position += _write_vector(self.fd, vector[first : first + _MAX_VECTOR], position)
        self.position += total
        self.records += len(records)
        self._sequence += 1
        self._faults.reach("journal-written")

    def truncate(self) -> None:
        """Remove what a failed write left after the last complete batch."""
        os.ftruncate(self.fd, self.position)

    def close(self) -> None:
        """Close the file, and free unwritten blocks, which a spare must not have."""
        if not self.is_filled:
            with suppress(OSError):
                os.ftruncate(self.fd, self.position)
        os.close(self.fd)


class Journal:
    """The journal files of a directory: the current one, the next one, and those before.

    Files are created, closed and deleted in the thread of checkpoints: creating one syncs it.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        size: int,
        max_records: int,
        faults: Faults = NO_FAULTS,
    ) -> None:
        """Begin with a new file; it is full at `size` bytes or at `max_records` records."""
        self._folder = folder
        self._size = size
        self._max_records = max_records
        self._faults = faults
        self.current = JournalWriter(folder, number, size, faults=faults)
        self._next: JournalWriter | None = None
        self.preparing: asyncio.Future[JournalWriter] | None = None
        """The creation of the next file, while it is in progress."""
        self._prefill = True
        """Whether files can be prefilled: the disk may lack the space."""

    @property
    def fill_level(self) -> float:
        """How full the current file is, by its bytes or by its records; 1 is full."""
        current = self.current
        full = self._size
        if self._prefill and not current.is_filled:
            full = min(full, _UNFILLED_BYTES)
        return max(current.position / full, current.records / self._max_records)

    @property
    def has_next(self) -> bool:
        """Whether the next file is prepared."""
        return self._next is not None

    def prepare(
        self,
        worker: Executor,
        done: Callable[[BaseException | None], None],
        *,
        soon_full: bool = False,
    ) -> None:
        """Create the next file in a thread, then call `done` on the loop with None or the error.

        With few writes, prefilling a file would be most of the work: it is done if the current file
        is `soon_full`, or has many bytes.
        """
        busy = self.current.position >= _UNFILLED_BYTES // 2
        fill = soon_full or (busy and self._prefill)
        create = partial(self._create, self.current.number + 1, fill=fill)
        loop = asyncio.get_running_loop()
        self.preparing = loop.run_in_executor(worker, create)
        self.preparing.add_done_callback(partial(self._prepared, fill, done))

    def _create(self, number: int, *, fill: bool) -> JournalWriter:
        return JournalWriter(self._folder, number, self._size, fill=fill, faults=self._faults)

    def _prepared(
        self,
        fill: bool,
        done: Callable[[BaseException | None], None],
        preparing: "asyncio.Future[JournalWriter]",
    ) -> None:
        self.preparing = None
        error = preparing.exception()
        if error is None:
            self._next = preparing.result()
            if fill:
                self._prefill = self._next.is_filled
        done(error)

    def create_next(self) -> None:
        """Create the next file in this thread."""
        self._next = self._create(self.current.number + 1, fill=False)

    def rotate(self, worker: Executor) -> JournalWriter:
        """Switch to the next file, and return it; the one before is closed in a thread."""
        assert self._next is not None  # noqa: S101 - it was prepared
        worker.submit(self.current.close)
        self.current, self._next = self._next, None
        return self.current

    def retire(self, before: int) -> None:
        """Delete the files below a number, or keep them to be recycled; called in a thread."""
        retire(self._folder, before)

    def drop_spares(self) -> None:
        """Delete the files that are kept to be recycled; called in a thread."""
        drop_spares(self._folder)

    def close(self) -> None:
        """Close the current file, and delete the next one."""
        self.current.close()
        if self._next is not None:
            self._next.close()
            self._next.path.unlink()


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


def make_durable(path: Path, end: int, faults: Faults = NO_FAULTS) -> None:
    """Rewrite a file in place up to `end`, and sync it.

    The file may never have been synced. After a failed sync, the kernel may have marked pages as
    clean that never reached the disk, so that another sync would skip them. Writing the same bytes
    again marks them dirty, needs no disk space, and can't tear anything that was intact.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            for position in range(0, end, len(ZEROS)):
                piece = os.pread(fd, min(len(ZEROS), end - position), position)
                _write_all(fd, piece, position)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            # A copy-on-write file system needs space for this; the store can still be read.
            log.warning(
                "no disk space to rewrite the journal, it is only synced", extra={"file": path}
            )
        if faults.fails("recovery-sync-fails"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd, path, faults)
    finally:
        os.close(fd)
