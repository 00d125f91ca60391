"""ETags of catch-up reads: they name the incarnation, the range, and whether it ends in closure."""

from headwater.protocol.offsets import Offset


def make_etag(start: Offset, end: Offset, incarnation: int, *, closed: bool) -> str:
    """Make the entity tag of a range (PROTOCOL 10.1: it changes when the stream is closed)."""
    return f'"{incarnation}:{start[0]}_{start[1]}:{end[0]}_{end[1]}{":c" if closed else ""}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Compare weakly, as `If-None-Match` asks for (RFC 9110, 13.1.2)."""
    if if_none_match.strip() == "*":
        return True
    return any(tag.strip().removeprefix("W/") == etag for tag in if_none_match.split(","))
