"""Finding what is whole in files that are damaged.

Records of a journal are found by their checksums, which start from the file's salt: what only
looks like a record, in the data of an append or in what is left of an older file, is not taken for
one. Extents of a segment are found by their own headers, and checked block by block.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from headwater.errors import StoreDamaged
from headwater.storage.disk import segments
from headwater.storage.disk.journal import (
    BATCH_HEADER,
    RECORD_HEADER,
    Damage,
    Entry,
    never_used,
    read_journal,
    seed_of,
)
from headwater.storage.disk.records import APPEND, CREATE, DELETE, MIN_LENGTH, stream_of
from headwater.storage.disk.segments import BLOCK, EXTENT_HEADER, Extent, parse_extent_header

_WINDOW: Final = 1 << 20
_SUM: Final = 4
_BATCH_MARK: Final = b"BTCH"
_EXTENT_MARK: Final = b"EXTN"
# length below 2^31, any checksum, a small kind, and a stream number below 2^56
_PLAUSIBLE: Final = re.compile(rb"(?=...[\x00-\x7f]....[\x01-\x1f].......\x00)", re.DOTALL)


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
            else:
                yield path, item


def has_records(path: Path) -> bool:
    """Tell whether a journal file holds a whole record."""
    return not never_used(path) and any(isinstance(item, Entry) for item in read_journal(path))


def records_within(path: Path, damage: Damage) -> Iterator[Entry]:
    """Find the whole records that lie within a damaged part of a journal file."""
    seed = seed_of(path)
    if seed is None:
        return
    with path.open("rb") as file:
        part = os.pread(file.fileno(), damage.end - damage.position, damage.position)
    match = _PLAUSIBLE.search(part)
    while match is not None:
        at = match.start()
        length, crc = RECORD_HEADER.unpack_from(part, at)
        body = part[at + RECORD_HEADER.size : at + RECORD_HEADER.size + length]
        if MIN_LENGTH <= length == len(body) and crc32(body, seed) == crc:
            yield Entry(damage.position + at, body)
            at += RECORD_HEADER.size + length - 1
        match = _PLAUSIBLE.search(part, at + 1)


def supposed_stream(path: Path, damage: Damage) -> int | None:
    """Read which stream a damaged record was about; that very number may be what is damaged."""
    with path.open("rb") as file:
        head = os.pread(file.fileno(), BATCH_HEADER, damage.position)
        if head.startswith(_BATCH_MARK) or len(head) < RECORD_HEADER.size + MIN_LENGTH:
            return None
    prefix = head[RECORD_HEADER.size :]
    return stream_of(prefix) if prefix[0] in (CREATE, APPEND, DELETE) else None


# Segments


class OpenSegment(NamedTuple):
    """A segment that is held open, so that it can be read after a server has deleted it."""

    number: int
    path: Path
    fd: int

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def header_damage(self) -> str | None:
        """Say what is wrong with the header of the file; a newer version is refused."""
        try:
            segments.check_header(self.path, os.pread(self.fd, segments.START, 0))
        except StoreDamaged as damage:
            return damage.reason
        return None

    def holds(self, extent: Extent) -> bool:
        """Tell whether an extent's own header says what the catalog says."""
        header = os.pread(self.fd, EXTENT_HEADER, extent.position - EXTENT_HEADER)
        return parse_extent_header(header) == (extent.stream, extent.start, extent.length)

    def damaged_blocks(self, extent: Extent) -> Iterator[tuple[int, int]]:
        """Give the blocks of an extent, from byte to byte, that don't hold what they should."""
        count = -(-extent.length // BLOCK)
        sums = os.pread(self.fd, count * _SUM, extent.position + extent.length)
        for index in range(count):
            first = index * BLOCK
            last = min(first + BLOCK, extent.length)
            block = os.pread(self.fd, last - first, extent.position + first)
            stored = sums[index * _SUM : (index + 1) * _SUM]
            if len(block) != last - first or stored != crc32(block).to_bytes(_SUM, "little"):
                yield first, last

    def whole_length(self, extent: Extent) -> int:
        """Tell how much of an extent is whole, from its start on."""
        first, _ = next(self.damaged_blocks(extent), (extent.length, 0))
        return first

    def read(self, extent: Extent, length: int) -> bytes:
        """Read an extent, up to a length."""
        return os.pread(self.fd, length, extent.position)

    def extents(self) -> Iterator[Extent]:
        """Find extents by their own headers; damaged ones are skipped."""
        size = self.size
        at: int | None = segments.START
        while at is not None and at + EXTENT_HEADER <= size:
            found = parse_extent_header(os.pread(self.fd, EXTENT_HEADER, at))
            if found is None:
                at = self._next_mark(at + 1, size)
                continue
            stream, start, length = found
            extent = Extent(stream, start, length, self.number, at + EXTENT_HEADER)
            yield extent
            at = extent.position + length + -(-length // BLOCK) * _SUM

    def _next_mark(self, position: int, size: int) -> int | None:
        while position < size:
            piece = os.pread(self.fd, _WINDOW + EXTENT_HEADER, position)
            at = piece.find(_EXTENT_MARK)
            while at >= 0:
                if parse_extent_header(piece[at : at + EXTENT_HEADER]) is not None:
                    return position + at
                at = piece.find(_EXTENT_MARK, at + 1)
            position += _WINDOW
        return None
