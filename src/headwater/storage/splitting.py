"""Where a stream may be cut so that several readers share it, found without reading it.

A piece ends at the last message boundary within the size that was asked for, or holds the one
message that is longer. Fork points are cut as well: inside a piece all positions then belong to one
epoch, so that a reader who counts bytes can name every one of them.
"""

from collections.abc import Callable

from headwater.protocol.framing import Buffer, find_cut, is_boundary
from headwater.protocol.offsets import Lineage, Now, Offset
from headwater.protocol.refusals import OffsetBeyondTail, OffsetInsideMessage, ReadRefusal
from headwater.storage.store import Splits, StreamInfo

Read = Callable[[int, int], Buffer]
"""Gives the stored bytes of a range: few of them, near a cut."""


def split(
    info: StreamInfo,
    lineage: Lineage,
    read: Read,
    start: Offset,
    end: Offset | Now,
    size: int,
    limit: int,
) -> Splits | ReadRefusal:
    """Cut what lies between two positions, or say which of them the stream does not have."""
    media = info.config.media_type
    begin = _locate(start, info, lineage, read)
    if not isinstance(begin, int):
        return begin
    upto = info.tail.byte if isinstance(end, Now) else _locate(end, info, lineage, read)
    if not isinstance(upto, int):
        return upto
    forks = [at for at, _ in lineage.inherited if begin < at < upto]
    points = [begin]
    while points[-1] < upto and len(points) <= limit:
        last = points[-1]
        wall = next((at for at in forks if at > last), upto)
        points.append(find_cut(read, last, size, wall, media))
    return Splits(info, [lineage.name(point) for point in points], complete=points[-1] >= upto)


def _locate(offset: Offset, info: StreamInfo, lineage: Lineage, read: Read) -> int | ReadRefusal:
    located = lineage.locate(offset)
    if not isinstance(located, int):
        return located
    if located > info.tail.byte:
        return OffsetBeyondTail(offset, info.tail)
    if 0 < located < info.tail.byte:
        before = bytes(read(located - 1, located))[0]
        if not is_boundary(before, info.config.media_type):
            return OffsetInsideMessage(offset)
    return located
