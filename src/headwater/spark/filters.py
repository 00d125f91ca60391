"""What the filters of a query leave to be read: streams, ranges of offsets, and types of changes.

Spark applies all of them again to what was read, so leaving too much is only slower. A filter that
says nothing certain leaves everything.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from headwater.spark.ranges import Range

_STREAM: Final = ("stream",)
_OFFSET: Final = ("offset",)
_TYPE: Final = ("type",)


def leave_stream(filters: Sequence[Filter], path: str) -> bool:
    """Tell whether rows of a stream can pass."""
    return all(_holds(each, path) is not False for each in _on(filters, _STREAM))


def leave_range(filters: Sequence[Filter], piece: Range) -> bool:
    """Tell whether rows of a range can pass, whose offsets lie behind its start."""
    return all(_reaches(each, piece.start, piece.end) for each in _on(filters, _OFFSET))


def types_left(filters: Sequence[Filter]) -> frozenset[str] | None:
    """Give the types that can pass; None if all can."""
    left: frozenset[str] | None = None
    for each in _on(filters, _TYPE):
        wanted = _values(each)
        if wanted is not None:
            left = wanted if left is None else left & wanted
    return left


def _on(filters: Sequence[Filter], column: tuple[str, ...]) -> Iterable[Filter]:
    for each in filters:
        inner = each.child if isinstance(each, Not) else each
        if getattr(inner, "attribute", None) == column:
            yield each


def _values(each: Filter) -> frozenset[str] | None:
    """Give the only values that a filter lets pass, if it names them."""
    if isinstance(each, EqualTo | EqualNullSafe):
        named: tuple[object, ...] = (each.value,)
    elif isinstance(each, In):
        named = each.value
    else:
        return None
    texts = [value for value in named if isinstance(value, str)]
    return frozenset(texts) if len(texts) == len(named) else None


def _holds(each: Filter, text: str) -> bool | None:
    """Tell whether a text passes; None where that is not certain."""
    if isinstance(each, Not):
        inner = _holds(each.child, text)
        return None if inner is None else not inner
    values = _values(each)
    if values is not None:
        return text in values
    if isinstance(each, IsNull):
        return False
    value = getattr(each, "value", None)
    if not isinstance(value, str):
        return None
    if isinstance(each, StringStartsWith):
        return text.startswith(value)
    if isinstance(each, StringEndsWith):
        return text.endswith(value)
    if isinstance(each, StringContains):
        return value in text
    return None


def _reaches(each: Filter, start: str, end: str) -> bool:
    """Tell whether an offset behind `start`, up to `end`, can pass."""
    values = _values(each)
    if values is not None:
        return any(start < value <= end for value in values)
    value = getattr(each, "value", None)
    if not isinstance(value, str):
        return True
    if isinstance(each, GreaterThan):
        return end > value
    if isinstance(each, GreaterThanOrEqual):
        return end >= value
    if isinstance(each, LessThan | LessThanOrEqual):
        return start < value
    return True
