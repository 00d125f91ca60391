"""Segment files: `segments/<number>.seg`, written once and never changed.

    file    the header of `data_directory` with magic "HWSEGMNT", then extents
    extent  magic "EXTN" | stream u64 | start u64 | length u64 | crc u32 | bytes | crc u32 per block

An extent is a run of bytes of one stream, and `start` its position there; a block is 256 KiB of it.
The catalog lists the position of each extent in its file; the extents' own headers let a repair
find them without the catalog. A block is verified against its CRC-32 the first time that it is
read, so extents are readable even if the header of the file is damaged.

`SegmentWriter` writes a file past the page cache (`DirectFile`). A segment is written once, by a
thread that shares its core with the loop, and few of its bytes are read soon. Through the page
cache each byte would be copied into a page that has to be found first, and all of them would wait
for one sync, which delays the journal's syncs. Direct writes take a third of the processor time and
reach the disk little by little.

`SegmentReader` verifies headers and blocks. The offline commands use it as it is, since they
continue after damage; `SegmentFile` and `SegmentFiles` serve the engine.
"""

import errno
import logging
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fcntl import F_GETFL, F_SETFL, fcntl
from pathlib import Path
from struct import Struct as Layout
from typing import Final, NamedTuple
from weakref import WeakValueDictionary, finalize

from zlib_ng.zlib_ng import crc32

from headwater.errors import StreamDamaged
from headwater.protocol.byte_requests import Buffer
from headwater.storage.disk.data_directory import (
    HEADER_BYTES,
    NUMBER,
    FileHeader,
    supported_header,
)
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import sync_directory
from headwater.storage.file_ranges import FileRange, Truncated

log: Final = logging.getLogger("headwater.disk")

VERSION: Final = 1
"""Raise the catalog's version with it: that is the one that a start checks."""
BLOCK: Final = 256 * 1024
MAGIC: Final = b"HWSEGMNT"
_EXTENT_MAGIC: Final = b"EXTN"
_EXTENT: Final = Layout("<4sQQQ")
_CRC: Final = Layout("<I")
START: Final = HEADER_BYTES
EXTENT_HEADER: Final = _EXTENT.size + _CRC.size
_WINDOW: Final = 1 << 20
"""Bytes to read at once in search of an extent header."""
MAX_CHECKED_BLOCKS: Final = 1 << 12
"""Verified blocks to remember per file: 1 GiB of long extents, in 256 KiB of memory."""
_UNREADABLE: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA})
"""Errors by which a disk or a file system reports lost bytes."""


class Extent(NamedTuple):
    """A run of a stream's bytes, and its position in a segment."""

    stream: int
    start: int
    length: int
    segment: int
    position: int

    @property
    def end(self) -> int:
        return self.start + self.length


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment file."""
    return folder / f"{number:016d}.seg"


def segment_numbers(folder: Path) -> list[int]:
    """List the segment files, oldest first; files with other names are ignored."""
    return sorted(int(path.stem) for path in folder.glob(f"{NUMBER}.seg"))


class SegmentWriter:
    """Writes one segment, which is durable once `finish` has returned."""

    def __init__(
        self, folder: Path, number: int, reserved: int = 0, faults: Faults = NO_FAULTS
    ) -> None:
        """Create a file with `reserved` bytes of disk space, so that the disk can't fill up."""
        self._folder = folder
        self._faults = faults
        self.number = number
        self.path = segment_path(folder, number)
        self.extents: list[Extent] = []
        self._file = DirectFile(self.path, reserved)
        self._file.write(FileHeader(MAGIC, VERSION, 0, number).encode())
        self.size = START

    def add(self, stream: int, start: int, buffers: Sequence[Buffer]) -> None:
        """Append an extent."""
        length = sum(map(len, buffers))
        if length > BLOCK:
            self.add_long(stream, start, length, buffers)
            return
        data = b"".join(buffers)  # most extents are short: one write is much cheaper
        self._file.write(_short_extent(stream, start, data))
        self._added(stream, start, length)

    def add_long(self, stream: int, start: int, length: int, pieces: Iterable[Buffer]) -> None:
        """Append an extent whose `length` bytes come in pieces."""
        self._file.write(extent_header(stream, start, length))
        sums = bytearray()
        for block in _blocks(pieces):
            crc = 0
            for part in block:
                self._file.write(part)
                crc = crc32(part, crc)
            sums += _CRC.pack(crc)
        self._file.write(sums)
        self._added(stream, start, length)

    def _added(self, stream: int, start: int, length: int) -> None:
        position = self.size + EXTENT_HEADER
        self.extents.append(Extent(stream, start, length, self.number, position))
        self.size = position + length + _sums_bytes(length)

    def finish(self) -> None:
        """Make the segment durable."""
        self._file.finish()
        sync_directory(self._folder, self._faults)

    def abandon(self) -> None:
        """Delete the unfinished file."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def _blocks(buffers: Iterable[Buffer]) -> Iterator[list[Buffer]]:
    """Divide buffers into blocks, each a list of views."""
    block: list[Buffer] = []
    missing = BLOCK
    for buffer in buffers:
        if len(buffer) < missing:
            block.append(buffer)
            missing -= len(buffer)
            continue
        view = memoryview(buffer)
        while len(view) >= missing:
            block.append(view[:missing])
            view = view[missing:]
            yield block
            block, missing = [], BLOCK
        if view:
            block.append(view)
            missing -= len(view)
    if block:
        yield block


class SegmentReader:
    """A segment that is open for reading, and closed with its last reference.

    It stays readable after a server has deleted the file.
    """

    __slots__ = ("__weakref__", "fd", "header_damage", "number", "path")

    def __init__(self, path: Path) -> None:
        """Open a segment; refuse a newer version."""
        self.path = path
        self.number = int(path.stem)
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Not `__del__`: it runs before weak references are cleared, so another thread could still
        # get the file from `SegmentFiles`, and read whatever has its descriptor by then.
        finalize(self, os.close, self.fd).atexit = False
        self.header_damage = self._check_header()
        """The damage of the file header, or None; extents may be intact all the same."""

    def _check_header(self) -> str | None:
        try:
            header = supported_header(self.path, self.pread(START, 0), MAGIC, VERSION)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return str(error)
        intact = header is not None and header.number == self.number
        return None if intact else "its header is not that of a segment file"

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def pread(self, length: int, position: int) -> bytes:
        """Read `length` bytes, or up to the end of the file."""
        try:
            return os.pread(self.fd, length, position)
        except OSError as error:
            error.filename = str(self.path)
            raise

    def _read(self, _extent: Extent, length: int, position: int) -> bytes:
        return self.pread(length, position)

    def has_header(self, extent: Extent) -> bool:
        """Return whether an extent's own header agrees with the catalog."""
        header = self._read(extent, EXTENT_HEADER, extent.position - EXTENT_HEADER)
        return parse_extent_header(header) == (extent.stream, extent.start, extent.length)

    def has_block(self, extent: Extent, index: int) -> bool:
        """Return whether a block of an extent matches its checksum."""
        at = index * BLOCK
        size = min(BLOCK, extent.length - at)
        block = self._read(extent, size, extent.position + at)
        sums = extent.position + extent.length
        stored = self._read(extent, _CRC.size, sums + index * _CRC.size)
        return len(block) == size and stored == _CRC.pack(crc32(block))

    def damaged_blocks(self, extent: Extent) -> Iterator[tuple[int, int]]:
        """Yield the first and last byte of each block of an extent that fails its checksum."""
        for index in range(-(-extent.length // BLOCK)):
            if not self.has_block(extent, index):
                yield index * BLOCK, min((index + 1) * BLOCK, extent.length)

    def intact_length(self, extent: Extent) -> int:
        """Return the length of the intact prefix of an extent."""
        first, _ = next(self.damaged_blocks(extent), (extent.length, 0))
        return first

    def extents(self) -> Iterator[Extent]:
        """Find extents by their own headers; skip damaged ones."""
        size = self.size
        at: int | None = START
        while at is not None and at + EXTENT_HEADER <= size:
            found = parse_extent_header(self.pread(EXTENT_HEADER, at))
            if found is None:
                at = self._next_mark(at + 1, size)
                continue
            stream, start, length = found
            extent = Extent(stream, start, length, self.number, at + EXTENT_HEADER)
            yield extent
            at = extent.position + length + _sums_bytes(length)

    def _next_mark(self, position: int, size: int) -> int | None:
        while position < size:
            piece = self.pread(_WINDOW + EXTENT_HEADER, position)
            at = piece.find(_EXTENT_MAGIC)
            while at >= 0:
                if parse_extent_header(piece[at : at + EXTENT_HEADER]) is not None:
                    return position + at
                at = piece.find(_EXTENT_MAGIC, at + 1)
            position += _WINDOW
        return None


class SegmentFile(SegmentReader):
    """A segment that serves readers: each block is verified once, and damage is raised."""

    __slots__ = ("_max_verified", "_verified")

    def __init__(self, path: Path, max_checked_blocks: int = MAX_CHECKED_BLOCKS) -> None:
        super().__init__(path)
        self._max_verified = max_checked_blocks
        self._verified: set[int] = set()
        if self.header_damage is not None:
            log.error("a segment is damaged", extra={"file": path, "reason": self.header_damage})

    def read(self, extent: Extent, begin: int, end: int) -> bytes:
        """Return a range of an extent, verified since the file was opened."""
        try:
            return self.range(extent, begin, end).read()
        except OSError as error:
            if not isinstance(error, Truncated) and error.errno not in _UNREADABLE:
                raise
            at = extent.position + begin - extent.start
            raise StreamDamaged(str(self.path), at, extent.stream) from error

    def range(self, extent: Extent, begin: int, end: int) -> FileRange:
        """Return the file range of a range of an extent, verified like `read`."""
        first = begin - extent.start
        last = end - extent.start
        for index in range(first // BLOCK, -(-last // BLOCK)):
            at = extent.position + index * BLOCK
            if at not in self._verified:
                if self.header_damage is not None:  # this may be another segment
                    self.verify_header(extent)
                if not self.has_block(extent, index):
                    raise StreamDamaged(str(self.path), at, extent.stream)
                if len(self._verified) >= self._max_verified:
                    self._verified.clear()
                self._verified.add(at)
        return FileRange(self, self.fd, extent.position + first, last - first)

    def checked_until(self, extent: Extent, begin: int) -> int:
        """Return the end of the verified part of an extent that starts at `begin`."""
        index = (begin - extent.start) // BLOCK
        while index * BLOCK < extent.length and extent.position + index * BLOCK in self._verified:
            index += 1
        return max(begin, min(extent.end, extent.start + index * BLOCK))

    def read_short(self, extent: Extent) -> bytes:
        """Return an extent of one block, verified with its header, in one read."""
        at = extent.position - EXTENT_HEADER
        stored = self._read(extent, EXTENT_HEADER + extent.length + _CRC.size, at)
        data = stored[EXTENT_HEADER : EXTENT_HEADER + extent.length]
        if stored != _short_extent(extent.stream, extent.start, data):
            raise StreamDamaged(str(self.path), at, extent.stream)
        return data

    def verify_header(self, extent: Extent) -> None:
        """Verify that an extent's own header agrees with the catalog."""
        if not self.has_header(extent):
            at = extent.position - EXTENT_HEADER
            raise StreamDamaged(str(self.path), at, extent.stream)

    def _read(self, extent: Extent, length: int, position: int) -> bytes:
        try:
            return os.pread(self.fd, length, position)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            raise StreamDamaged(str(self.path), position, extent.stream) from error


def max_segment_bytes(extents: Iterable[Extent]) -> int:
    """Return an upper bound for the size of a segment with these extents."""
    sizes = (EXTENT_HEADER + item.length + _sums_bytes(item.length) for item in extents)
    return START + sum(sizes)


def _sums_bytes(length: int) -> int:
    return -(-length // BLOCK) * _CRC.size


def extent_header(stream: int, start: int, length: int) -> bytes:
    """Encode the header of an extent."""
    header = _EXTENT.pack(_EXTENT_MAGIC, stream, start, length)
    return header + _CRC.pack(crc32(header))


def _short_extent(stream: int, start: int, data: bytes) -> bytes:
    """Encode an extent of one block."""
    return extent_header(stream, start, len(data)) + data + _CRC.pack(crc32(data))


def parse_extent_header(header: bytes) -> tuple[int, int, int] | None:
    """Return stream, start and length of an extent header, or None if it is damaged."""
    if len(header) != EXTENT_HEADER:
        return None
    magic, stream, start, length = _EXTENT.unpack_from(header)
    intact = header[_EXTENT.size :] == _CRC.pack(crc32(header[: _EXTENT.size]))
    return (stream, start, length) if intact and magic == _EXTENT_MAGIC else None


class SegmentFiles:
    """The open segments, at most `limit`: half of them cached, the others in use by readers."""

    def __init__(
        self, folder: Path, limit: int, max_checked_blocks: int = MAX_CHECKED_BLOCKS
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._max_checked_blocks = max_checked_blocks
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()
        self._alive: WeakValueDictionary[int, SegmentFile] = WeakValueDictionary()
        """Includes the files that only a file range keeps open."""

    @property
    def can_send_files(self) -> bool:
        """Whether file ranges may be returned: a slow reader keeps their files open."""
        return len(self._alive) < self._limit

    def get_open(self, number: int) -> SegmentFile | None:
        """Return a segment if it is open."""
        return self._alive.get(number)

    def get(self, number: int) -> SegmentFile:
        """Return a segment; open it if necessary."""
        file = self._open.get(number)
        if file is None:
            path = segment_path(self._folder, number)
            file = self._alive.get(number) or SegmentFile(path, self._max_checked_blocks)
            self._open[number] = self._alive[number] = file
            if len(self._open) > max(1, self._limit // 2):
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(number)
        return file

    def forget(self, numbers: Sequence[int]) -> None:
        """Drop deleted segments from the cache."""
        for number in numbers:
            self._open.pop(number, None)  # those in use still count

    def close(self) -> None:
        self._open.clear()


# Direct writes

_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
_ALIGNMENT: Final = 4096
_BUFFER: Final = 1024 * 1024


class DirectFile:
    """A new file that is written from start to end, past the page cache where possible."""

    def __init__(self, path: Path, reserved: int = 0) -> None:
        """Create the file with `reserved` bytes of disk space; `finish` frees what is unused."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        if reserved:
            try:
                os.posix_fallocate(self._fd, 0, reserved)
            except OSError:
                os.close(self._fd)
                path.unlink()
                raise
        self._set_direct(wanted=True)
        self._buffer = mmap.mmap(-1, _BUFFER)  # direct writes need page-aligned memory
        self._filled = 0
        self._written = 0

    def write(self, data: Buffer) -> None:
        """Add bytes at the end."""
        end = self._filled + len(data)
        if end < _BUFFER:  # the usual case: most writes are short
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
                # A direct write may end early, at a boundary where the next one can start.
                try:
                    done += os.pwrite(self._fd, view[done:count], self._written + done)
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._direct:
                        raise
                    self._set_direct(wanted=False)
        self._written += count

    def _set_direct(self, *, wanted: bool) -> None:
        """Turn direct writes on or off; without them, writes go through the page cache."""
        self._direct = False
        if _O_DIRECT:
            flags = fcntl(self._fd, F_GETFL)
            with suppress(OSError):  # not every file system supports them
                fcntl(self._fd, F_SETFL, flags | _O_DIRECT if wanted else flags & ~_O_DIRECT)
                self._direct = wanted

    def close(self) -> None:
        """Close the file, finished or not; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._buffer.close()
