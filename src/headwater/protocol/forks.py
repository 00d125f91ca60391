"""Forks: a stream that shares the bytes of another up to a point (PROTOCOL 4.2)."""

from msgspec import Struct

from headwater.protocol.content_types import is_json
from headwater.protocol.framing import Read, find_position, skip_messages
from headwater.protocol.offsets import START, Lineage, Offset, PositionRefusal
from headwater.protocol.refusals import SubOffsetOvershoot


class ForkOrigin(Struct, frozen=True):
    """Where a fork came from, kept to recognise the same request again."""

    source: str
    anchor: Offset
    sub_offset: int
    at: int
    """The byte at which the fork diverges: the anchor and the sub-offset, resolved."""

    def describe(self) -> str:
        return f"{self.anchor}+{self.sub_offset}"


class ForkRequest(Struct, frozen=True):
    """What the fork headers ask for."""

    source: str
    offset: Offset | None = None
    sub_offset: int = 0

    def asks_for(self, origin: ForkOrigin) -> bool:
        """Tell whether this request, repeated, means the fork that exists.

        Without an offset it meant the tail of its time, which is where that fork diverged.
        """
        anchor = origin.anchor if self.offset is None else self.offset
        same_start = anchor == START and origin.anchor.byte == 0
        return (anchor == origin.anchor or same_start) and self.sub_offset == origin.sub_offset

    def describe(self) -> str:
        return f"{'the tail' if self.offset is None else self.offset}+{self.sub_offset}"


def fork_point(
    request: ForkRequest,
    lineage: Lineage,
    tail: int,
    media: str,
    read: Read,
) -> ForkOrigin | PositionRefusal | SubOffsetOvershoot:
    """Resolve a fork request against its source; `read(start, end)` gives the source's bytes."""
    offset = lineage.name(tail) if request.offset is None else request.offset
    anchor = find_position(offset, lineage, tail, media, read)
    if not isinstance(anchor, int):
        return anchor
    at = anchor
    if request.sub_offset:
        if is_json(media):
            at, passed = skip_messages(read, anchor, tail, request.sub_offset)
            if passed < request.sub_offset:
                return SubOffsetOvershoot(request.sub_offset, passed, "messages")
        else:
            at = anchor + request.sub_offset
            if at > tail:
                return SubOffsetOvershoot(request.sub_offset, tail - anchor, "bytes")
    return ForkOrigin(request.source, lineage.name(anchor), request.sub_offset, at)
