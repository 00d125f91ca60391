"""Forks: a stream that shares the bytes of another up to a point (PROTOCOL 4.2)."""

from msgspec import Struct

from headwater.protocol.byte_requests import ByteRequests
from headwater.protocol.content_types import is_json
from headwater.protocol.framing import find_position, skip_messages
from headwater.protocol.offsets import START, Lineage, Offset, PositionRefusal
from headwater.protocol.refusals import SubOffsetOvershoot


class ForkOrigin(Struct, frozen=True):
    """Where a fork diverges from its source: as requested, and as resolved to a byte."""

    source: str
    anchor: Offset
    sub_offset: int
    at: int
    """The byte at which the fork diverges: the anchor plus the sub-offset."""

    def describe(self) -> str:
        return f"{self.anchor}+{self.sub_offset}"


class ForkRequest(Struct, frozen=True):
    """The fork headers of a request."""

    source: str
    offset: Offset | None = None
    sub_offset: int = 0

    def matches(self, origin: ForkOrigin) -> bool:
        """Return whether an existing fork diverges where this request asks for.

        A request without an offset means the tail at the time of the first request, which is where
        the fork diverged.
        """
        anchor = origin.anchor if self.offset is None else self.offset
        same_start = anchor == START and origin.anchor.byte == 0
        return (anchor == origin.anchor or same_start) and self.sub_offset == origin.sub_offset

    def describe(self) -> str:
        return f"{'the tail' if self.offset is None else self.offset}+{self.sub_offset}"


def resolve_fork(
    request: ForkRequest, lineage: Lineage, tail: int, media: str
) -> ByteRequests[ForkOrigin | PositionRefusal | SubOffsetOvershoot]:
    """Find the byte at which a fork diverges from its source; requests bytes of the source."""
    offset = lineage.name(tail) if request.offset is None else request.offset
    anchor = yield from find_position(offset, lineage, tail, media)
    if not isinstance(anchor, int):
        return anchor
    at = anchor
    if request.sub_offset:
        if is_json(media):
            at, skipped = yield from skip_messages(anchor, tail, request.sub_offset)
            if skipped < request.sub_offset:
                return SubOffsetOvershoot(request.sub_offset, skipped, "messages")
        else:
            at = anchor + request.sub_offset
            if at > tail:
                return SubOffsetOvershoot(request.sub_offset, tail - anchor, "bytes")
    return ForkOrigin(request.source, lineage.name(anchor), request.sub_offset, at)
