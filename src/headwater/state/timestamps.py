"""RFC 3339 timestamps, checked as `headers.timestamp` must be (STATE 5.1)."""

import re
from datetime import date
from typing import Final

_TIMESTAMP: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt]([01]\d|2[0-3]):([0-5]\d)"
    r":([0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_MINUTE: Final = len("2025-01-15T10:30")
_REMEMBERED: Final = 100_000

# Both halves of a timestamp repeat: the minute from event to event, the rest from minute to
# minute. A half that was part of a valid timestamp is valid beside any other such half.
_minutes: set[str] = set()
_rests: set[str] = set()


def is_timestamp(text: str) -> bool:
    """Tell whether a text is a timestamp; a leap second is one, an unknown offset as well."""
    minute, rest = text[:_MINUTE], text[_MINUTE:]
    if minute in _minutes and rest in _rests:
        return True
    found = _TIMESTAMP.fullmatch(text)
    if found is None or not _is_date(int(found[1]), int(found[2]), int(found[3])):
        return False
    for half, known in ((minute, _minutes), (rest, _rests)):
        if len(known) >= _REMEMBERED:
            known.clear()
        known.add(half)
    return True


def _is_date(year: int, month: int, day: int) -> bool:
    try:
        # Python's calendar begins with the year 1; 2000 is as long as the year 0.
        date(year or 2000, month, day)
    except ValueError:
        return False
    return True
