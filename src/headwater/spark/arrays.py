"""From parsed values to Arrow arrays, a column at a time.

What is common (texts, numbers, objects in objects) is put together from buffers, which is faster
than Arrow's own way from Python values, and does without pandas: `pa.array` imports it, and that
takes a task its first second.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
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


def values_at(path: str) -> Callable[[Values], list[Any]]:
    """Take a field out of objects."""
    get = attrgetter(path)
    return lambda rows: list(map(get, rows))


def array_of(values: Values, kind: pa.DataType) -> pa.Array:
    """Make an array of values that were parsed and checked."""
    for is_kind, make in _MAKERS:
        if is_kind(kind):
            return make(values, kind)
    return pa.array(values, kind)


def carried(values: Sequence[Raw]) -> pa.StringArray:
    """Make an array of JSON that is carried along as it was written."""
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    present = lengths > 0
    return _texts(b"".join(values), lengths, None if present.all() else present)


def _strings(values: Values, kind: pa.DataType) -> pa.Array:
    try:
        return _present_strings(values, None)
    except TypeError:
        present = _present(values)
    if not present.any():
        return pa.nulls(len(values), kind)
    return _present_strings(["" if value is None else value for value in values], present)


def _present_strings(values: Sequence[str], present: npt.NDArray[np.bool_] | None) -> pa.Array:
    joined = "".join(values)
    encoded = values if joined.isascii() else [value.encode() for value in values]
    lengths = np.fromiter(map(len, encoded), np.int32, len(values))
    return _texts(joined.encode(), lengths, present)


def _texts(
    data: bytes, lengths: npt.NDArray[np.int32], present: npt.NDArray[np.bool_] | None
) -> pa.Array:
    buffers = [_bits(present), _ends(lengths), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def _numbers(values: Values, kind: pa.DataType) -> pa.Array:
    width = kind.to_pandas_dtype()
    present = None
    try:
        numbers = np.fromiter(values, width, len(values))
    except TypeError:
        present = _present(values)
        numbers = np.fromiter((0 if value is None else value for value in values), width)
    return pa.Array.from_buffers(kind, len(values), [_bits(present), pa.py_buffer(numbers)])


def _doubles(values: Values, kind: pa.DataType) -> pa.Array:
    numbers = np.fromiter(values, np.float64, len(values))
    present = ~np.isnan(numbers)  # JSON has no such number: these were None
    valid = None if present.all() else _bits(present)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(numbers)])


def _booleans(values: Values, kind: pa.DataType) -> pa.Array:
    truths = np.fromiter(map(True.__eq__, values), np.bool_, len(values))
    present = _present(values)
    return pa.Array.from_buffers(kind, len(values), [_bits(present), _bits(truths)])


def _objects(values: Values, kind: pa.DataType) -> pa.Array:
    present = _present(values)
    if not present.any():
        return pa.nulls(len(values), kind)
    if not present.all():
        blank = type(values[int(present.argmax())])()
        values = [blank if value is None else value for value in values]
    fields = [
        array_of(values_at(field_name(at))(values), field.type) for at, field in enumerate(kind)
    ]
    return pa.Array.from_buffers(kind, len(values), [_bits(present)], children=fields)


def _lists(values: Values, kind: pa.DataType) -> pa.Array:
    present = _present(values)
    lists = [value or () for value in values]
    lengths = np.fromiter(map(len, lists), np.int32, len(lists))
    items = array_of(list(chain.from_iterable(lists)), kind.value_type)
    buffers = [_bits(present), _ends(lengths)]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[items])


_MAKERS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Values, Any], pa.Array]], ...]] = (
    (pa.types.is_string, _strings),
    (pa.types.is_integer, _numbers),
    (pa.types.is_float64, _doubles),
    (pa.types.is_boolean, _booleans),
    (pa.types.is_struct, _objects),
    (pa.types.is_list, _lists),
)


def _present(values: Values) -> npt.NDArray[np.bool_]:
    return np.array([value is not None for value in values], np.bool_)


def _ends(lengths: npt.NDArray[np.int32]) -> pa.Buffer:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.py_buffer(ends)


def _bits(truths: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if truths is None else pa.py_buffer(np.packbits(truths, bitorder="little"))
