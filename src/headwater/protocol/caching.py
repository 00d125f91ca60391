"""HTTP caching (PROTOCOL 10.1): entity tags, and cursors that keep CDN caches from looping."""

from typing import Final

from headwater.protocol.offsets import Offset

EPOCH: Final = 1728432000
"""2024-10-09T00:00:00Z."""

INTERVAL_SECONDS: Final = 20
MAX_JITTER_SECONDS: Final = 3600
_MAX_DIGITS: Final = 15


def interval_at(now: float) -> int:
    """Return the number of the interval that contains a time."""
    return int(now - EPOCH) // INTERVAL_SECONDS


def parse_cursor(text: str | None) -> int | None:
    """Parse the cursor that a client echoes; a malformed one counts as absent."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        return None
    return int(text)


def next_cursor(echoed: int | None, now: float, jitter: float) -> int:
    """Return the cursor of a response; `jitter` is a random number in [0, 1)."""
    current = interval_at(now)
    if echoed is None or echoed < current:
        return current
    seconds = 1 + int(jitter * MAX_JITTER_SECONDS)
    return echoed + -(-seconds // INTERVAL_SECONDS)


# ETags of catch-up reads: the incarnation, the range, and whether it ends with the closure


def make_etag(start: Offset, end: Offset, incarnation: int, *, closed: bool) -> str:
    """Return the entity tag of a range (PROTOCOL 10.1: it changes when the stream is closed)."""
    return f'"{incarnation}:{start[0]}_{start[1]}:{end[0]}_{end[1]}{":c" if closed else ""}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Return whether `If-None-Match` has a tag, by weak comparison (RFC 9110, 13.1.2)."""
    if if_none_match.strip() == "*":
        return True
    return any(tag.strip().removeprefix("W/") == etag for tag in if_none_match.split(","))
