"""Which bytes of which streams to read: shared out and packed into partitions. Pure rules.

Offsets of one stream sort as texts. Those of a Headwater server also tell a byte position, which is
only used to weigh ranges against each other.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from headwater.protocol.offsets import Offset, parse_offset

LEAST_SHARE: Final = 64 * 1024
"""So much of a stream is worth a request of its own."""

LEAST_PIECES: Final = max(4, os.cpu_count() or 1)
"""So many pieces keep all cores busy where Spark runs in one process; elsewhere it is a guess."""
LEAST_PIECE_BYTES: Final = 8 * 1024 * 1024
"""So much is worth a task of its own, which takes a tenth of a second to begin."""


class Range(Struct, frozen=True):
    """What lies between two offsets of a stream; all offsets inside have the epoch of the end."""

    stream: str
    start: str
    end: str

    @property
    def bytes(self) -> int:
        return max(0, byte_of(self.end) - byte_of(self.start))


def is_offset(text: str) -> bool:
    """Tell an offset from other texts, also from the words that stand for one."""
    return isinstance(parse_offset(text), Offset)


def byte_of(offset: str) -> int:
    """Give the byte position of an offset; 0 for the beginning."""
    parsed = parse_offset(offset)
    return parsed.byte if isinstance(parsed, Offset) else 0


def epoch_of(offset: str) -> int:
    """Give the epoch of an offset; 0, which no stream has, for the beginning."""
    parsed = parse_offset(offset)
    return parsed.epoch if isinstance(parsed, Offset) else 0


def share(lags: Mapping[str, int], budget: int, last: str) -> dict[str, int]:
    """Share a budget of bytes among streams that lag; small lags are served whole.

    Where there are too many streams for shares that are worth it, those next behind `last` are
    served, so that each has its turn.
    """
    most = max(1, budget // LEAST_SHARE)
    names = sorted(lags)
    if len(names) > most:
        turn = [name for name in names if name > last] + [name for name in names if name <= last]
        names = turn[:most]
    shares: dict[str, int] = {}
    left = budget
    for served, name in enumerate(sorted(names, key=lambda name: lags[name])):
        shares[name] = max(1, min(lags[name], left // (len(names) - served)))
        left = max(0, left - shares[name])
    return shares


def piece_bytes(total: int, most: int) -> int:
    """Say how long pieces are: as long as may be, for each task costs, but not too few of them."""
    return min(most, max(total // LEAST_PIECES, LEAST_PIECE_BYTES))


def pack(pieces: Iterable[Range], size: int) -> list[tuple[Range, ...]]:
    """Put pieces into partitions of up to `size` bytes, keeping their order."""
    packed: list[tuple[Range, ...]] = []
    held: list[Range] = []
    weight = 0
    for piece in pieces:
        if held and weight + piece.bytes > size:
            packed.append(tuple(held))
            held, weight = [], 0
        held.append(piece)
        weight += piece.bytes
    if held:
        packed.append(tuple(held))
    return packed


def pieces_between(stream: str, offsets: Sequence[str]) -> list[Range]:
    """Make ranges of split points."""
    return [Range(stream, start, end) for start, end in pairwise(offsets)]
