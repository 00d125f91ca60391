"""The texts of `headers.timestamp` as points in time."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

TIME: Final = pa.timestamp("us", "UTC")

_FORM: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)


_FIRST: Final = pa.scalar(datetime.min.replace(tzinfo=UTC), TIME)
_LAST: Final = pa.scalar(datetime.max.replace(tzinfo=UTC), TIME)
_NEVER: Final = pa.scalar(None, TIME)
"""For a year that no calendar of Python or Spark has, though Arrow has it."""


def times(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Read RFC 3339 timestamps, to the microsecond; what is none is null."""
    try:
        # Arrow takes up to as many digits as the unit has, and neither a small t nor a :60.
        told = texts.cast(TIME)
        is_known = pc.and_(pc.greater_equal(told, _FIRST), pc.less_equal(told, _LAST))
        return pc.if_else(is_known, told, _NEVER)
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([moment(text) for text in texts.to_pylist()], TIME)])


def moment(text: str | None) -> datetime | None:
    """Read one timestamp; a leap second is the first moment of the next minute."""
    found = _FORM.fullmatch(text) if text is not None else None
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    micros = int((found[7] or "0")[:6].ljust(6, "0"))
    ahead = timedelta(hours=int(found[9] or 0), minutes=int(found[10] or 0))
    try:
        begun = datetime(year, month, day, hour, minute, tzinfo=UTC)
        told = begun + timedelta(seconds=second, microseconds=micros)
        return told - (-ahead if found[8] == "-" else ahead)
    except (ValueError, OverflowError):
        return None  # out of the years that there are
