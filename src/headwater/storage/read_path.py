"""Reading: whole messages from an offset up to a limit, and where a range may be split."""

from collections.abc import Callable, Sequence
from typing import Protocol

from headwater.protocol.framing import Buffer, Read, find_cut, find_position
from headwater.protocol.offsets import Lineage, Now, Offset, PositionRefusal
from headwater.storage.file_ranges import Part
from headwater.storage.store import Chunk, Splits, StreamInfo

Slice = Callable[[int, int], Sequence[Buffer]]
"""Gives the stored bytes of a range as they lie."""


class Files(Protocol):
    """Where the bytes of a stream may also be had as ranges of files."""

    def limit(self, begin: int, most: int) -> int:
        """Say how many bytes to give at once, from a position on."""

    def parts(self, begin: int, end: int) -> Sequence[Part]:
        """Give the stored bytes of a range, as they lie or where they lie."""


def read_chunk(
    info: StreamInfo,
    lineage: Lineage,
    slice_: Slice,
    start: Offset | Now,
    limit: int,
    files: Files | None = None,
) -> Chunk | PositionRefusal:
    """Read up to a limit, and end between messages; one that is longer comes whole."""

    def joined(begin: int, end: int) -> bytes:
        return b"".join(slice_(begin, end))

    media = info.config.media_type
    end = info.tail.byte
    begin = end if isinstance(start, Now) else find_position(start, lineage, end, media, joined)
    if not isinstance(begin, int):
        return begin
    if begin == end:
        return Chunk(info, info.tail, info.tail, (), up_to_date=True)
    if files is not None:
        limit = files.limit(begin, limit)
    upto = find_cut(joined, begin, limit, end, media)
    up_to_date = upto == end
    return Chunk(
        info,
        lineage.name(begin),
        info.tail if up_to_date else lineage.name(upto),
        (slice_ if files is None else files.parts)(begin, upto),
        up_to_date=up_to_date,
    )


# Where a stream may be cut so that several readers share it, found without reading it.
#
# A piece ends at the last message boundary within the size that was asked for, or holds the one
# message that is longer. Fork points are cut as well: inside a piece all positions then belong to
# one epoch, so that a reader who counts bytes can name every one of them.


def split(
    info: StreamInfo,
    lineage: Lineage,
    read: Read,
    start: Offset,
    end: Offset | Now,
    size: int,
    limit: int,
) -> Splits | PositionRefusal:
    """Cut what lies between two positions, or say which of them the stream does not have."""
    media = info.config.media_type
    tail = info.tail.byte
    begin = find_position(start, lineage, tail, media, read)
    if not isinstance(begin, int):
        return begin
    upto = tail if isinstance(end, Now) else find_position(end, lineage, tail, media, read)
    if not isinstance(upto, int):
        return upto
    forks = [at for at, _ in lineage.inherited if begin < at < upto]
    points = [begin]
    while points[-1] < upto and len(points) <= limit:
        last = points[-1]
        wall = next((at for at in forks if at > last), upto)
        points.append(find_cut(read, last, size, wall, media))
    return Splits(info, [lineage.name(point) for point in points], complete=points[-1] >= upto)
