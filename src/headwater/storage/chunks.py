"""What a read returns of a stream: whole messages from an offset on, up to a limit."""

from collections.abc import Callable, Sequence
from typing import Protocol

from headwater.protocol.framing import Buffer, find_cut, find_position
from headwater.protocol.offsets import Lineage, Now, Offset, PositionRefusal
from headwater.storage.store import Chunk, Part, StreamInfo

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
