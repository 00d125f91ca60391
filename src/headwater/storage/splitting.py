"""Where a stream may be cut so that several readers share it, found without reading it.

A piece ends at the last message boundary within the size that was asked for, or holds the one
message that is longer. Fork points are cut as well: inside a piece all positions then belong to one
epoch, so that a reader who counts bytes can name every one of them.
"""

from headwater.protocol.framing import Read, find_cut, find_position
from headwater.protocol.offsets import Lineage, Now, Offset, PositionRefusal
from headwater.storage.store import Splits, StreamInfo


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
