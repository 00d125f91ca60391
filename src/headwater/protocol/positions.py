"""Which byte of a stream an offset means: one that is there, and between two messages."""

from collections.abc import Callable

from headwater.protocol.framing import Buffer, is_boundary
from headwater.protocol.offsets import Lineage, Offset
from headwater.protocol.refusals import OffsetBeyondTail, OffsetInsideMessage, PositionRefusal

Read = Callable[[int, int], Buffer]
"""Gives the stored bytes of a range, in one piece: few of them."""


def find_position(
    offset: Offset, lineage: Lineage, tail: int, media: str, read: Read
) -> int | PositionRefusal:
    """Find the byte that an offset names in a stream that ends at `tail`."""
    at = lineage.locate(offset)
    if not isinstance(at, int):
        return at
    if at > tail:
        return OffsetBeyondTail(offset, lineage.name(tail))
    if 0 < at < tail and not is_boundary(read(at - 1, at)[0], media):
        return OffsetInsideMessage(offset)
    return at
