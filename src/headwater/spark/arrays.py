"""From parsed values to Arrow arrays, a column at a time.

What is common (texts, numbers, objects in objects) is put together from buffers, which is faster
than Arrow's own way from Python values, and does without pandas: `pa.array` imports it, and that
takes a task its first second.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Raw

Values = Sequence[Any]
"""What one field holds, message by message; None where there is nothing."""

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


def array_of(values: Values, kind: pa.DataType) -> pa.Array:
    """Make an array of values that were parsed and checked."""
    make = next((make for is_kind, make in _MAKERS if is_kind(kind)), None)
    if make is None:
        return pa.array(values, kind)
    try:
        return make(values, kind)
    except (TypeError, AttributeError):
        # Looking for None beforehand would cost every column what only some need.
        present = [value for value in values if value is not None]
        if len(present) == len(values):
            raise
    if not present:
        return pa.nulls(len(values), kind)
    return make(present, kind).take(_places(values))


def carried(values: Sequence[Raw]) -> pa.StringArray:
    """Make an array of JSON that is carried along as it was written."""
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    present = lengths > 0
    buffers = [None if present.all() else _bits(present), _ends(lengths), b"".join(values)]
    return _array(pa.string(), len(values), buffers)


# What makes arrays of values none of which is None; it fails where one is.


def _strings(values: Values, kind: pa.DataType) -> pa.Array:
    data = _MARK.join(values).encode()
    bytes_ = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero(bytes_ == ord(_MARK))
    if len(marks) != len(values) - 1:  # a text holds one
        texts = [text.encode() for text in values]
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        return _array(kind, len(texts), [None, _ends(lengths), b"".join(texts)])
    ends = np.zeros(len(values) + 1, np.int32)
    ends[1:-1] = marks - np.arange(len(marks))
    ends[-1] = len(data) - len(marks)
    return _array(kind, len(values), [None, ends, data.translate(None, _MARK.encode())])


def _numbers(values: Values, kind: pa.DataType) -> pa.Array:
    return _array(kind, len(values), [None, np.fromiter(values, _WIDTHS[kind], len(values))])


def _doubles(values: Values, kind: pa.DataType) -> pa.Array:
    numbers = np.fromiter(values, np.float64, len(values))
    if np.isnan(numbers).any():
        raise TypeError  # JSON has no such number: it was None
    return _array(kind, len(values), [None, numbers])


def _booleans(values: Values, kind: pa.DataType) -> pa.Array:
    truths = np.fromiter(values, np.uint8, len(values))
    return _array(kind, len(values), [None, _bits(truths)])


def _objects(values: Values, kind: pa.DataType) -> pa.Array:
    fields = [
        array_of(values_at(field_name(at))(values), field.type) for at, field in enumerate(kind)
    ]
    return _array(kind, len(values), [None], fields)


def _lists(values: Values, kind: pa.DataType) -> pa.Array:
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    items = array_of(list(chain.from_iterable(values)), kind.value_type)
    return _array(kind, len(values), [None, _ends(lengths)], [items])


_MAKERS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Values, Any], pa.Array]], ...]] = (
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
    kind: pa.DataType, count: int, buffers: Sequence[Any], children: list[pa.Array] | None = None
) -> pa.Array:
    held = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, count, held, children=children)


def _places(values: Values) -> pa.Array:
    """Say for each value which one of those present it is; null where it is None."""
    present = np.fromiter([value is not None for value in values], np.bool_, len(values))
    places = np.cumsum(present, dtype=np.int32) - np.int32(1)
    return _array(pa.int32(), len(values), [_bits(present), places])


def _ends(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _bits(truths: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.packbits(truths, bitorder="little")
