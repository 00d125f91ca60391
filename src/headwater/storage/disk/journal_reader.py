"""Reading journal files, intact or damaged.

An incomplete batch with no intact batch after it is torn: it was never acknowledged. With an intact
batch after it, it had been synced, and is damaged.

In a damaged part, records are found by their checksums, which start from the seed of their file:
data of an append, or the remains of an older file, that only look like a record are not mistaken
for one. Clients choose their data, so any number of positions may look like the start of a long
record. So a long checksum is not computed for each of them, but combined from two: those of
everything up to the start and up to the end of the record.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32, crc32_combine

from headwater.errors import StoreDamaged
from headwater.storage.disk.data_directory import HEADER_BYTES, supported_header
from headwater.storage.disk.journal import (
    BATCH,
    BATCH_HEADER,
    BATCH_MAGIC,
    CRC,
    MAGIC,
    START,
    VERSION,
    ZEROS,
    seed_for,
)
from headwater.storage.disk.records import (
    APPEND,
    CREATE,
    DELETE,
    HEADER,
    KEEP,
    MAX_LENGTH,
    MIN_LENGTH,
    stream_of,
)

_SEARCHED: Final = 1 << 20
"""Bytes after a lost batch header that are searched for records: every start searches the remains
of an older file, and all of it would take more than a second."""

HEADER_DAMAGE: Final = "its header is not that of a journal file"
_BATCH_MARK: Final = re.compile(rb"BTCH(?=.{8}[\x00-\x0f]\x00{3})", re.DOTALL)
"""A batch header with a sequence below 2^36: client data may contain any number of magics."""


class JournalEntry(NamedTuple):
    """A record and its position in a journal file."""

    position: int
    body: bytes

    @property
    def end(self) -> int:
        return self.position + HEADER.size + len(self.body)


class Damage(NamedTuple):
    """A part of a journal file that fails its checksum."""

    position: int
    end: int
    """The next readable position, or the end of the file."""
    torn: bool
    """Nothing intact follows in this file: the batch may be an unfinished write."""


class JournalHeader(NamedTuple):
    """What the header of a journal file says, by both of its copies."""

    path: Path
    seed: int | None
    """The seed of the file's checksums, from either copy; None if both are damaged."""
    intact: bool
    unused: bool
    """Whether the file was being prepared when the process died: the header is not its own."""


def read_header(path: Path) -> JournalHeader:
    """Read the header of a file; refuse a newer version."""
    number = int(path.stem)
    with path.open("rb") as file:
        stored = file.read(START)
        copies = (stored[:HEADER_BYTES], stored[HEADER_BYTES:])
        first, second = (supported_header(path, copy, MAGIC, VERSION) for copy in copies)
        if first is None or first != second:
            unused = not stored.strip(b"\0") and _is_blank(file.fileno())
        else:
            unused = first.number < number
    own = next((copy for copy in (first, second) if copy and copy.number == number), None)
    seed = None if own is None else seed_for(own.number, own.salt)
    return JournalHeader(path, seed, own is not None and first == second, unused)


def check_header(path: Path) -> None:
    """Refuse a file that is no journal file, or has a newer version."""
    if not read_header(path).intact:
        raise StoreDamaged(str(path), 0, HEADER_DAMAGE)


def is_unused(path: Path) -> bool:
    """Return whether a file was being prepared when the process died."""
    return read_header(path).unused


def read_journal(path: Path) -> Iterator[JournalEntry | Damage]:
    """Read a file from the start: yield intact records, and the damaged parts between them.

    Records of a torn batch are skipped, even intact ones.
    """
    return _read_journal(path, read_header(path).seed)


def _read_journal(path: Path, seed: int | None) -> Iterator[JournalEntry | Damage]:
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
                    # Zeros, or the remains of an older file, unless it has a record of this one.
                    rest = _rest(fd, position, size)
                    if any(True for _ in find_records(rest, seed, until=_SEARCHED)):
                        yield Damage(position, size, torn=True)
                    return
                yield from _salvage_part(_read(fd, position, following[0]), position, seed)
                position, sequence = following
                continue
            position += BATCH_HEADER
            yield from _records(fd, position, position + length, size, seed, sequence)
            position += length
            sequence += 1


def _salvage(path: Path, damage: Damage, seed: int) -> Iterator[JournalEntry | Damage]:
    """Read a damaged part of a file: yield the intact records, and the damage between them."""
    with path.open("rb") as file:
        part = _read(file.fileno(), damage.position, damage.end)
    yield from _salvage_part(part, damage.position, seed)


def _salvage_part(part: bytes, position: int, seed: int) -> Iterator[JournalEntry | Damage]:
    at = 0
    for start, body in find_records(part, seed):
        entry = JournalEntry(position + start, body)
        if start > at:
            yield Damage(position + at, entry.position, torn=False)
        yield entry
        at = entry.end - position
    if at < len(part):
        yield Damage(position + at, position + len(part), torn=False)


def _records(
    fd: int, position: int, end: int, size: int, seed: int, sequence: int
) -> Iterator[JournalEntry | Damage]:
    """Read the records of one batch."""
    batch = _read(fd, position, end)
    found: list[JournalEntry] = []
    at = 0
    while at < end - position:
        body = _record_in(batch, at, seed)
        if body is None:
            break
        found.append(JournalEntry(position + at, body))
        at += HEADER.size + len(body)
    if at == end - position:
        yield from found
    elif _next_batch(fd, position, size, seed, sequence + 1) is None:
        yield Damage(position - BATCH_HEADER, size, torn=True)
    else:
        # The length of a damaged record is unknown: its length field may be the damaged part.
        yield from found
        yield from _salvage_part(batch[at:], position + at, seed)


def _read(fd: int, position: int, end: int) -> bytes:
    """Read a part of a file, up to its end; one `pread` returns 2 GiB at most."""
    pieces = []
    while position < end and (piece := os.pread(fd, end - position, position)):
        pieces.append(piece)
        position += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _rest(fd: int, position: int, size: int) -> bytes:
    """Read a file to its end, without trailing prefilled zeros."""
    pieces = list(_pieces(fd, position, size))
    while pieces and _is_zeros(pieces[-1]):
        pieces.pop()
    return b"".join(pieces)


def _is_blank(fd: int) -> bool:
    """Return whether a file holds nothing but zeros, as one does before its header is written."""
    return all(map(_is_zeros, _pieces(fd, 0, os.fstat(fd).st_size)))


def _pieces(fd: int, position: int, size: int) -> Iterator[bytes]:
    for at in range(position, size, len(ZEROS)):
        yield _read(fd, at, min(at + len(ZEROS), size))


def _is_zeros(piece: bytes) -> bool:
    return piece == ZEROS[: len(piece)]


def _batch_at(fd: int, position: int, seed: int, least: int) -> int | None:
    """Return the length of the batch at a position, or None; older sequences don't count."""
    found = _batch_in(os.pread(fd, BATCH_HEADER, position), 0, seed, least)
    return None if found is None else found[0]


def _batch_in(part: bytes, at: int, seed: int, least: int) -> tuple[int, int] | None:
    """Return length and sequence of the batch at an index, or None; see `_batch_at`."""
    if len(part) < at + BATCH_HEADER:
        return None
    magic, length, sequence = BATCH.unpack_from(part, at)
    (crc,) = CRC.unpack_from(part, at + BATCH.size)
    if magic != BATCH_MAGIC or sequence < least or crc != crc32(part[at : at + BATCH.size], seed):
        return None
    return length, sequence


def _next_batch(fd: int, position: int, size: int, seed: int, least: int) -> tuple[int, int] | None:
    """Find the next intact batch header; return its position and sequence."""
    window = 1 << 20
    while position < size:
        piece = os.pread(fd, window + BATCH_HEADER, position)
        for match in _BATCH_MARK.finditer(piece):
            found = _batch_in(piece, match.start(), seed, least)
            if found is not None:
                return position + match.start(), found[1]
        position += window
    return None


def _record_in(batch: bytes, at: int, seed: int) -> bytes | None:
    """Return the body of the record at an index, or None if it is not intact."""
    first = at + HEADER.size
    if first > len(batch):
        return None
    length, crc = HEADER.unpack_from(batch, at)
    if not MIN_LENGTH <= length < MAX_LENGTH:
        return None
    body = batch[first : first + length]
    return body if len(body) == length and crc32(body, seed) == crc else None


# Searching damaged bytes for records

_MARK: Final = re.compile(rb"[\x01-\x04](?=.{7}\x00)", re.DOTALL)
"""The start of a record body: a known kind, and a stream number below 2^56."""
_SHORT: Final = 16 * 1024
_STEP: Final = 4096


def find_records(part: bytes, seed: int, until: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield position and body of each intact record, anywhere or up to a position."""
    sums = _PrefixChecksums(part)
    last = len(part) if until is None else until + HEADER.size
    match = _MARK.search(part, HEADER.size)
    while match is not None:
        first = match.start()
        if first > last:
            return
        length, crc = HEADER.unpack_from(part, first - HEADER.size)
        end = first + length
        following = first + 1
        if MIN_LENGTH <= length < MAX_LENGTH and end <= len(part):
            if length > _SHORT:
                found = crc32_combine(seed ^ sums.up_to(first), sums.up_to(end), length)
            else:
                found = crc32(part[first:end], seed)
            if found == crc:
                yield first - HEADER.size, part[first:end]
                following = end + HEADER.size
        match = _MARK.search(part, following)


class _PrefixChecksums:
    """Checksums of the bytes up to any position, computed from those at fixed steps."""

    def __init__(self, part: bytes) -> None:
        self._part = memoryview(part)
        self._at_steps = [0]

    def up_to(self, end: int) -> int:
        whole = end // _STEP
        while len(self._at_steps) <= whole:
            at = (len(self._at_steps) - 1) * _STEP
            self._at_steps.append(crc32(self._part[at : at + _STEP], self._at_steps[-1]))
        return crc32(self._part[whole * _STEP : end], self._at_steps[whole])


# Journal files in order, and the streams that damage affects

_MAX_DESCRIBED: Final = 5
_MAX_STREAM: Final = 2**56
"""Stream numbers are smaller; SQLite accepts none that is much larger."""
_KINDS: Final = (CREATE, APPEND, DELETE, KEEP)


def read_journals(files: list[JournalHeader]) -> Iterator[tuple[Path, JournalEntry | Damage]]:
    """Read journal files in order, oldest first.

    A part is torn only at the end of the whole journal: the next start cuts it off.
    """
    for index, (path, seed, _, _) in enumerate(files):
        for item in _read_journal(path, seed):
            if (
                isinstance(item, Damage)
                and item.torn
                and seed is not None
                and any(map(_has_records, files[index + 1 :]))
            ):
                yield from ((path, part) for part in _salvage(path, item, seed))
            else:
                yield path, item


def _has_records(file: JournalHeader) -> bool:
    items = _read_journal(file.path, file.seed)
    return any(isinstance(item, JournalEntry) for item in items)


class DamageOwners(NamedTuple):
    """The streams of a damaged part, by the record headers in it, which may be damaged too."""

    streams: list[int]
    complete: bool
    """Whether the record headers account for the whole part."""


def find_owners(path: Path, damage: Damage) -> DamageOwners:
    """Read the record headers of a damaged part, as far as their lengths lead."""
    found: list[int] = []
    at = damage.position
    with path.open("rb") as file:
        fd = file.fileno()
        if os.pread(fd, len(BATCH_MAGIC), at) == BATCH_MAGIC or damage.end - at == BATCH_HEADER:
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
    return DamageOwners(found, complete=at == damage.end)


class NamedStream(NamedTuple):
    """The number of a stream, and its path if known."""

    stream: int
    path: str | None

    def __str__(self) -> str:
        return f"stream {self.stream}" + ("" if self.path is None else f", {self.path}")


def describe_streams(*streams: NamedStream) -> str:
    """Return a suffix that lists the first few streams, and how many more there are."""
    names = [str(stream) for stream in streams[:_MAX_DESCRIBED]]
    if len(streams) > len(names):
        names.append(f"and {len(streams) - len(names)} more")
    return f" ({'; '.join(names)})" if names else ""
