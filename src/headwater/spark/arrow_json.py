"""Messages of plain fields, taken apart by Arrow's own JSON reader.

It makes columns without a Python object for each value, in half of the time that those take. But it
reads numbers kindly: a text that holds one, or 1.5 where a whole one is due. So the numbers of a
schema, and only they, are parsed by `msgspec` first. Whatever either of them refuses is left to
the parser that can say which message is at fault, and why. Of a name that stands twice in an
object, only the last is looked at.
"""

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from arro3.core import Schema
from arro3.io import read_json
from pyspark.sql import types as t

from headwater.spark.arrays import leaves
from headwater.spark.layout import Layout

_NUMBERS: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DoubleType)
_OTHERS: Final = (t.StringType, t.BooleanType)
_SPACE, _LINE_BREAK = b" \n"
_UNFIT: Final = (b"\\ud", b"\\uD", b"\\u0000")
"""Escapes that it can't be given: of characters in two halves, of which it takes some for another
character, and of NUL, which ends the whole process where it stands in a value of the wrong type."""

_SIGN_BIT: Final = pa.Array.from_buffers(
    pa.int64(), 1, [None, pa.py_buffer(np.array([-(2**63)], np.int64))]
)[0]
"""The bits of -0.0. `pa.scalar` would have every process of Spark's import pandas."""
_WHOLE_ZERO: Final = re.compile(rb"-0(?![.eE0-9])")
"""What may be a -0 that is a whole number: as Spark does, `msgspec` reads it as 0.0."""


def is_plain(kind: t.DataType) -> bool:
    """Tell whether both parsers agree about a type, once the numbers are checked."""
    if isinstance(kind, t.ArrayType):
        return is_plain(kind.elementType)
    if isinstance(kind, t.StructType):
        return bool(kind.fields) and all(is_plain(field.dataType) for field in kind)
    return type(kind) in (*_NUMBERS, *_OTHERS)


def numbers_in(kind: t.DataType) -> t.DataType | None:
    """Leave the numbers of a type; None if it has none."""
    if isinstance(kind, t.ArrayType):
        items = numbers_in(kind.elementType)
        return None if items is None else t.ArrayType(items)
    if isinstance(kind, t.StructType):
        found = [(field.name, numbers_in(field.dataType)) for field in kind]
        fields = [t.StructField(name, inner) for name, inner in found if inner is not None]
        return t.StructType(fields) if fields else None
    return kind if isinstance(kind, _NUMBERS) else None


class ArrowReader:
    """Reads messages by the fields of a schema."""

    def __init__(
        self, names: Sequence[str], numbers: "msgspec.json.Decoder[list[Any]] | None"
    ) -> None:
        """Take what parses the numbers of an array of messages; None if they have none."""
        self._names = names
        self._numbers = numbers
        self._known: tuple[pa.Schema, Schema] | None = None

    def columns(self, layout: Layout, schema: pa.Schema) -> dict[str, pa.Array] | None:
        """Make the columns of the fields; None if a message may not fit them."""
        if b"\\" in layout.data and any(each in layout.data for each in _UNFIT):
            return None
        try:
            if self._numbers is not None:
                self._numbers.decode(layout.data)
            fields = self._fields(schema)
            source = read_json(_lines(layout), schema=fields, batch_size=len(layout))
            rows = pa.RecordBatchReader.from_stream(source).read_next_batch()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, pa.ArrowInvalid):
            return None
        if len(rows) != len(layout):
            return None
        if any(map(_has_negative_zero, rows.columns)) and _WHOLE_ZERO.search(layout.data):
            return None
        return dict(zip(self._names, rows.columns, strict=True))

    def _fields(self, schema: pa.Schema) -> Schema:
        if self._known is None or self._known[0] is not schema:
            fields = pa.schema([schema.field(name) for name in self._names])
            self._known = schema, Schema.from_arrow(fields)
        return self._known[1]


def _has_negative_zero(column: pa.Array) -> bool:
    doubles = (leaf for leaf in leaves(column) if pa.types.is_float64(leaf.type))
    return any(pc.any(pc.equal(leaf.view(pa.int64()), _SIGN_BIT)).as_py() for leaf in doubles)


def _lines(layout: Layout) -> BytesIO:
    """Write the messages of an array as lines."""
    end = int(layout.behind[-1])
    data = np.frombuffer(layout.data, np.uint8)[:end].copy()
    data[layout.behind[:-1] - 1] = _SPACE
    data[0] = _SPACE
    data[-1] = _LINE_BREAK
    return BytesIO(data.tobytes())
