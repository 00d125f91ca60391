"""Reading files that may be damaged: journal files in a row, and segments.

Whether a batch that is not whole was ever acknowledged is told by the files behind its own. Extents
of a segment are found by their own headers, and checked block by block.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from headwater.errors import StoreDamaged
from headwater.storage.disk import segments
from headwater.storage.disk.journal import BATCH_HEADER
from headwater.storage.disk.journal_reading import Damage, Entry, never_used, read_journal, salvage
from headwater.storage.disk.records import (
    APPEND,
    CREATE,
    DELETE,
    HEADER,
    KEEP,
    MIN_LENGTH,
    stream_of,
)
from headwater.storage.disk.segments import BLOCK, EXTENT_HEADER, Extent, parse_extent_header

_WINDOW: Final = 1 << 20
_SUM: Final = 4
_BATCH_MARK: Final = b"BTCH"
_EXTENT_MARK: Final = b"EXTN"
_MOST_NAMED: Final = 5
_MAX_STREAM: Final = 2**56
"""No stream has such a number; SQLite takes none that is much larger."""
_KINDS: Final = (CREATE, APPEND, DELETE, KEEP)


# Journals


class Torn(NamedTuple):
    """A write that never finished, at the very end of the journal: the next start cuts it off."""

    position: int


def read_journals(files: list[Path]) -> Iterator[tuple[Path, Entry | Damage | Torn]]:
    """Read journal files in order, oldest first."""
    for index, path in enumerate(files):
        for item in read_journal(path):
            if (
                isinstance(item, Damage)
                and item.torn
                and not any(map(has_records, files[index + 1 :]))
            ):
                yield path, Torn(item.position)
            elif isinstance(item, Damage) and item.torn:
                yield from ((path, part) for part in salvage(path, item))
            else:
                yield path, item


def has_records(path: Path) -> bool:
    """Tell whether a journal file holds a whole record."""
    return not never_used(path) and any(isinstance(item, Entry) for item in read_journal(path))


class Owners(NamedTuple):
    """Whose the records in a damaged place were, by their own headers, which may be damaged too."""

    streams: list[int]
    complete: bool
    """The headers account for all of the place."""


def owners(path: Path, damage: Damage) -> Owners:
    """Go from header to header through a damaged place, as far as their lengths lead."""
    found: list[int] = []
    at = damage.position
    with path.open("rb") as file:
        fd = file.fileno()
        if os.pread(fd, len(_BATCH_MARK), at) == _BATCH_MARK or damage.end - at == BATCH_HEADER:
            at += BATCH_HEADER
        while at < damage.end:
            head = os.pread(fd, HEADER.size + MIN_LENGTH, at)
            if len(head) < HEADER.size + MIN_LENGTH or head[HEADER.size] not in _KINDS:
                break
            number = stream_of(head[HEADER.size :])
            if number >= _MAX_STREAM:
                break
            if head[HEADER.size] != KEEP:
                found.append(number)
            length, _ = HEADER.unpack_from(head)
            at += HEADER.size + length
    return Owners(found, complete=at == damage.end)


class Named(NamedTuple):
    """A stream by its number, and by its path where that is known."""

    stream: int
    path: str | None

    def __str__(self) -> str:
        return f"stream {self.stream}" + ("" if self.path is None else f", {self.path}")


def whose(*streams: Named) -> str:
    """Name the streams that something is about: a few of them, and how many more there are."""
    names = [str(stream) for stream in streams[:_MOST_NAMED]]
    if len(streams) > len(names):
        names.append(f"and {len(streams) - len(names)} more")
    return f" ({'; '.join(names)})" if names else ""


# Segments


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file where it can't be used: the system does so only when it opens one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


class OpenSegment(NamedTuple):
    """A segment that is held open, so that it can be read after a server has deleted it."""

    number: int
    path: Path
    fd: int

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def pread(self, length: int, position: int) -> bytes:
        """Read so much of the file, or up to its end."""
        with naming(self.path):
            return os.pread(self.fd, length, position)

    def header_damage(self) -> str | None:
        """Say what is wrong with the header of the file; a newer version is refused."""
        try:
            segments.check_header(self.path, self.pread(segments.START, 0))
        except StoreDamaged as damage:
            return damage.reason
        return None

    def holds(self, extent: Extent) -> bool:
        """Tell whether an extent's own header says what the catalog says."""
        header = self.pread(EXTENT_HEADER, extent.position - EXTENT_HEADER)
        return parse_extent_header(header) == (extent.stream, extent.start, extent.length)

    def damaged_blocks(self, extent: Extent) -> Iterator[tuple[int, int]]:
        """Give the blocks of an extent, from byte to byte, that don't hold what they should."""
        count = -(-extent.length // BLOCK)
        sums = self.pread(count * _SUM, extent.position + extent.length)
        for index in range(count):
            first = index * BLOCK
            last = min(first + BLOCK, extent.length)
            block = self.pread(last - first, extent.position + first)
            stored = sums[index * _SUM : (index + 1) * _SUM]
            if len(block) != last - first or stored != crc32(block).to_bytes(_SUM, "little"):
                yield first, last

    def whole_length(self, extent: Extent) -> int:
        """Tell how much of an extent is whole, from its start on."""
        first, _ = next(self.damaged_blocks(extent), (extent.length, 0))
        return first

    def read(self, extent: Extent, length: int) -> bytes:
        """Read an extent, up to a length."""
        return self.pread(length, extent.position)

    def extents(self) -> Iterator[Extent]:
        """Find extents by their own headers; damaged ones are skipped."""
        size = self.size
        at: int | None = segments.START
        while at is not None and at + EXTENT_HEADER <= size:
            found = parse_extent_header(self.pread(EXTENT_HEADER, at))
            if found is None:
                at = self._next_mark(at + 1, size)
                continue
            stream, start, length = found
            extent = Extent(stream, start, length, self.number, at + EXTENT_HEADER)
            yield extent
            at = extent.position + length + -(-length // BLOCK) * _SUM

    def _next_mark(self, position: int, size: int) -> int | None:
        while position < size:
            piece = self.pread(_WINDOW + EXTENT_HEADER, position)
            at = piece.find(_EXTENT_MARK)
            while at >= 0:
                if parse_extent_header(piece[at : at + EXTENT_HEADER]) is not None:
                    return position + at
                at = piece.find(_EXTENT_MARK, at + 1)
            position += _WINDOW
        return None
