"""From parsed values to Arrow arrays, a column at a time.

What is common (texts, numbers, objects in objects) is put together from buffers, which is faster
than Arrow's own way from Python values, and does without pandas: `pa.array` imports it, and that
takes a task its first second.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

Values = Sequence[Any]
"""What one field holds, message by message; None where there is nothing."""

Places = npt.NDArray[np.int64] | None
"""For each row which of the values it has, in order, -1 for none; None if each has its own."""

_FIRST_SECOND: Final = -62_135_596_800
_END_SECOND: Final = 253_402_300_800
"""Of the years 1 to 9999."""
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

ABSENT: Final = Raw(b"")
"""What stands for a value that would be carried along; JSON has no empty one."""


def field_name(at: int) -> str:
    """Name the field of a class that holds objects, since in JSON they have any name."""
    return f"f{at}"


@cache
def values_at(path: str) -> Callable[[Values], list[Any]]:
    """Take a field out of objects."""
    # Spelled out, the name is looked up twice as fast as by `attrgetter`, for each value there is.
    take: Callable[[Values], list[Any]] = eval(  # noqa: S307 - of names that are made here
        f"lambda rows: [row.{path} for row in rows]"
    )
    return take


def array_of(values: Values, kind: pa.DataType, places: Places = None) -> pa.Array:
    """Make an array of values that were parsed and checked; `places` says which goes where."""
    make = next((make for is_kind, make in _MAKERS if is_kind(kind)), _others)
    try:
        return make(values, kind, places)
    except (TypeError, AttributeError):
        # Looking for None beforehand would cost every column what only some need.
        present = [value for value in values if value is not None]
        if len(present) == len(values):
            raise
    if not present:
        return pa.nulls(len(values if places is None else places), kind)
    is_there = np.fromiter([value is not None for value in values], np.bool_, len(values))
    inner = np.where(is_there, np.cumsum(is_there) - 1, -1)
    if places is not None:
        inner = np.where(places < 0, -1, inner[places])
    return make(present, kind, inner)


def leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Find the values of an array that hold no others, however deep they lie."""
    if pa.types.is_struct(array.type):
        for field in array.flatten():
            yield from leaves(field)
    elif pa.types.is_map(array.type):
        yield from leaves(array.keys)
        yield from leaves(array.items)
    elif pa.types.is_list(array.type):
        yield from leaves(array.flatten())
    else:
        yield array


def are_of_the_calendar(times: pa.TimestampArray) -> bool:
    """Tell whether Python and Spark have dates for all of these timestamps."""
    found = pc.min_max(times.view(pa.int64())).as_py()
    per_second = _PER_SECOND[times.type.unit]
    return found["min"] is None or (
        _FIRST_SECOND * per_second <= found["min"] and found["max"] < _END_SECOND * per_second
    )


def carried(values: Sequence[Raw]) -> pa.StringArray:
    """Make an array of JSON that is carried along as it was written."""
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    present = lengths > 0
    valid = None if present.all() else _bits(present)
    return _array(pa.string(), len(values), valid, _ends(lengths), b"".join(values))


# What makes arrays of values none of which is None; it fails where one is.


def _strings(values: Values, kind: pa.DataType, places: Places) -> pa.Array:
    data = _MARK.join(values).encode()
    marks = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(_MARK))
    if len(marks) == len(values) - 1:
        ends = np.empty(len(values) + 1, np.int32)
        ends[0] = 0
        ends[1:-1] = marks - np.arange(len(marks))
        ends[-1] = len(data) - len(marks)
    else:  # a text holds one
        ends = _ends(np.fromiter((len(text.encode()) for text in values), np.int32, len(values)))
        return _array(kind, *_spread_ends(ends, places), "".join(values).encode())
    return _array(kind, *_spread_ends(ends, places), data.translate(None, _MARK.encode()))


def _numbers(values: Values, kind: pa.DataType, places: Places) -> pa.Array:
    return _array(kind, *_spread(np.fromiter(values, _WIDTHS[kind], len(values)), places))


def _doubles(values: Values, kind: pa.DataType, places: Places) -> pa.Array:
    numbers = np.fromiter(values, np.float64, len(values))
    if np.isnan(numbers).any():
        raise TypeError  # JSON has no such number: it was None
    return _array(kind, *_spread(numbers, places))


def _booleans(values: Values, kind: pa.DataType, places: Places) -> pa.Array:
    count, valid, truths = _spread(np.fromiter(values, np.uint8, len(values)), places)
    return _array(kind, count, valid, _bits(truths))


def _objects(values: Values, kind: pa.DataType, places: Places) -> pa.Array:
    fields = [
        array_of(values_at(field_name(at))(values), field.type, places)
        for at, field in enumerate(kind)
    ]
    count = len(values if places is None else places)
    return _array(kind, count, _valid(places), children=fields)


def _lists(values: Values, kind: pa.DataType, places: Places) -> pa.Array:
    ends = _ends(np.fromiter(map(len, values), np.int32, len(values)))
    items = array_of(list(chain.from_iterable(values)), kind.value_type)
    return _array(kind, *_spread_ends(ends, places), children=[items])


def _others(values: Values, kind: pa.DataType, places: Places) -> pa.Array:
    array = pa.array(values, kind)
    for leaf in leaves(array):
        if pa.types.is_timestamp(leaf.type) and not are_of_the_calendar(leaf):
            # A time just inside of the calendar may lie outside of it in UTC.
            raise OverflowError("it lies outside of the years 1 to 9999")
        if pa.types.is_float32(leaf.type) and pc.any(pc.is_inf(leaf)).as_py():
            # JSON has no infinity: it was a number that only a double has room for.
            raise OverflowError("it is too large for a float")
    if places is None:
        return array
    return array.take(_array(pa.int64(), len(places), _valid(places), np.maximum(places, 0)))


_MAKERS: Final[tuple[tuple[Callable[[Any], bool], Callable[..., pa.Array]], ...]] = (
    (pa.types.is_string, _strings),
    (pa.types.is_integer, _numbers),
    (pa.types.is_float64, _doubles),
    (pa.types.is_boolean, _booleans),
    (pa.types.is_struct, _objects),
    (pa.types.is_list, _lists),
)
_WIDTHS: Final = {pa.int8(): "i1", pa.int16(): "<i2", pa.int32(): "<i4", pa.int64(): "<i8"}
_MARK: Final = "\0"


def _array(
    kind: pa.DataType, count: int, *buffers: Any, children: list[pa.Array] | None = None
) -> pa.Array:
    held = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, count, held, children=children)


def _spread(numbers: npt.NDArray[Any], places: Places) -> tuple[int, Any, npt.NDArray[Any]]:
    """Give how many rows there are, which of them have a number, and the numbers."""
    if places is None:
        return len(numbers), None, numbers
    return len(places), _valid(places), numbers[places]


def _spread_ends(
    ends: npt.NDArray[np.int32], places: Places
) -> tuple[int, Any, npt.NDArray[np.int32]]:
    """Give the same of what has ends; rows without a value end where the one before does."""
    if places is None:
        return len(ends) - 1, None, ends
    spread = np.zeros(len(places) + 1, np.int32)
    spread[1:] = ends[np.maximum.accumulate(places) + 1]
    return len(places), _valid(places), spread


def _valid(places: Places) -> npt.NDArray[np.uint8] | None:
    return None if places is None else _bits(places >= 0)


def _ends(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _bits(truths: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.packbits(truths, bitorder="little")
