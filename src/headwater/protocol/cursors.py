"""Cursors: a number that moves with time, so that caches collapse requests but never loop.

Time is divided into intervals of 20 seconds since a fixed epoch (PROTOCOL 10.1). A client that
already holds the current interval, or a later one, gets a strictly greater one.
"""

from typing import Final

EPOCH: Final = 1728432000
"""2024-10-09T00:00:00Z."""

INTERVAL_SECONDS: Final = 20
MAX_JITTER_SECONDS: Final = 3600
_MAX_DIGITS: Final = 15


def interval_at(now: float) -> int:
    """Number the interval that a time lies in."""
    return int(now - EPOCH) // INTERVAL_SECONDS


def parse_cursor(text: str | None) -> int | None:
    """Read a cursor that a client echoes; one that isn't ours is as good as none."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        return None
    return int(text)


def next_cursor(echoed: int | None, now: float, jitter: float) -> int:
    """Choose the cursor to answer with; `jitter` is a random number in [0, 1)."""
    current = interval_at(now)
    if echoed is None or echoed < current:
        return current
    seconds = 1 + int(jitter * MAX_JITTER_SECONDS)
    return echoed + -(-seconds // INTERVAL_SECONDS)
