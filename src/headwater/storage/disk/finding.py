"""Finding whole records among bytes that are not all what they should be.

A record is known by its checksum, which starts from the seed of its file: what only looks like one,
in the data of an append or in what is left of an older file, is not taken for it. Clients choose
their data, and any number of places in it may look like the beginning of a long record. So a long
checksum is not computed over each of them, but put together from two: those of everything up to
where the record begins, and up to where it ends.
"""

import re
from collections.abc import Iterator
from typing import Final

from zlib_ng.zlib_ng import crc32, crc32_combine

from headwater.storage.disk.records import HEADER, MAX_LENGTH, MIN_LENGTH

# A kind that there is, and a stream number below 2^56.
_MARK: Final = re.compile(rb"[\x01-\x04](?=.{7}\x00)", re.DOTALL)
_SHORT: Final = 16 * 1024
_STEP: Final = 4096


def whole_records(part: bytes, seed: int, until: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Give the records that are whole, and where they begin: anywhere, or up to a position."""
    sums = _Sums(part)
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
                found = crc32_combine(seed ^ sums.upto(first), sums.upto(end), length)
            else:
                found = crc32(part[first:end], seed)
            if found == crc:
                yield first - HEADER.size, part[first:end]
                following = end + HEADER.size
        match = _MARK.search(part, following)


class _Sums:
    """Checksums of everything up to a position; those of some positions are kept."""

    def __init__(self, part: bytes) -> None:
        self._part = memoryview(part)
        self._kept = [0]

    def upto(self, end: int) -> int:
        whole = end // _STEP
        while len(self._kept) <= whole:
            at = (len(self._kept) - 1) * _STEP
            self._kept.append(crc32(self._part[at : at + _STEP], self._kept[-1]))
        return crc32(self._part[whole * _STEP : end], self._kept[whole])
