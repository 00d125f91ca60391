"""Reading: which bytes a read returns, and where a range may be split for several readers."""

from collections.abc import Callable, Sequence

from headwater.protocol.byte_requests import ByteRequests
from headwater.protocol.framing import find_position, find_split
from headwater.protocol.offsets import Lineage, Now, Offset, PositionRefusal
from headwater.storage.file_ranges import Part
from headwater.storage.store import Chunk, SplitPoints, StreamInfo


def find_range(
    info: StreamInfo,
    lineage: Lineage,
    start: Offset | Now,
    limit: int,
    read_limit: Callable[[int, int], int] | None = None,
) -> ByteRequests[tuple[int, int] | PositionRefusal]:
    """Find the bytes to return for a read of about `limit` bytes, as whole messages.

    A message longer than the limit is returned whole. `read_limit(begin, limit)` lowers the limit
    once the first byte is known.
    """
    tail = info.tail
    end = tail.byte
    if start == tail or isinstance(start, Now):
        return end, end
    media = info.config.media_type
    begin = yield from find_position(start, lineage, end, media)
    if not isinstance(begin, int):
        return begin
    if read_limit is not None:
        limit = read_limit(begin, limit)
    if begin + limit >= end:
        return begin, end
    return begin, (yield from find_split(begin, limit, end, media))


def make_chunk(
    info: StreamInfo, lineage: Lineage, begin: int, end: int, parts: Sequence[Part]
) -> Chunk:
    """Build the result of a read from the bytes of its range."""
    tail = info.tail
    up_to_date = end == tail.byte
    return Chunk(
        info,
        tail if begin == tail.byte else lineage.name(begin),
        tail if up_to_date else lineage.name(end),
        parts,
        up_to_date=up_to_date,
    )


def find_split_points(
    info: StreamInfo,
    lineage: Lineage,
    start: Offset,
    end: Offset | Now,
    size: int,
    limit: int,
) -> ByteRequests[SplitPoints | PositionRefusal]:
    """Split a range into pieces of about `size` bytes, found without reading the whole range.

    A piece ends at the last message boundary within the size, or consists of one longer message.
    Fork points are split points as well. All positions within a piece then have the same epoch, so
    a reader that counts bytes can compute the offset of each.
    """
    media = info.config.media_type
    tail = info.tail.byte
    begin = yield from find_position(start, lineage, tail, media)
    if not isinstance(begin, int):
        return begin
    upto = tail if isinstance(end, Now) else (yield from find_position(end, lineage, tail, media))
    if not isinstance(upto, int):
        return upto
    forks = [at for at, _ in lineage.inherited if begin < at < upto]
    points = [begin]
    while points[-1] < upto and len(points) <= limit:
        last = points[-1]
        bound = next((at for at in forks if at > last), upto)
        points.append((yield from find_split(last, size, bound, media)))
    return SplitPoints(info, [lineage.name(point) for point in points], complete=points[-1] >= upto)
