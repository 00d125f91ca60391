"""From the messages of a batch to the columns of an Arrow record batch.

A Headwater server separates messages by a comma and a line break, which no message holds. So they
are split without parsing, and counting bytes gives the offset behind each. Only modes that look
into messages parse them: all at once, and one by one where that fails, to find the corrupt ones.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Struct
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType, VariantVal

from headwater.client import Batch
from headwater.errors import BadData, BadOption, CorruptMessage
from headwater.spark.messages import CORRUPT, EVENTS, Shape, shape_of_schema
from headwater.spark.options import Mode, SourceOptions
from headwater.spark.ranges import Range, byte_of

_SEPARATOR: Final = ",\n"
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def default_schema(options: SourceOptions) -> StructType:
    """Give the schema of a mode."""
    mode = options.mode or "raw"
    if mode == "json":
        raise BadOption("mode", "'json' needs the columns that you want: give them with .schema()")
    schema = StructType().add("stream", "string").add("offset", "string")
    if mode == "raw":
        return schema.add("value", options.value_type)
    for name, kind in EVENTS[mode].columns:
        schema.add(name, kind)
    return schema.add(CORRUPT, "string") if options.corrupt_column else schema


class Columns(Struct):
    """Makes the columns of one query."""

    mode: Mode
    schema: pa.Schema
    value_type: str
    shape: Shape | None
    """How to look into messages; None where they are given as they are."""
    types: frozenset[str] | None = None
    """The only types of changes that are wanted."""

    @staticmethod
    def of(options: SourceOptions, schema: StructType) -> "Columns":
        """Check a schema against the mode."""
        mode = options.mode
        if mode is None:
            mode = "raw" if schema == default_schema(options) else "json"
        if mode == "json":
            shape: Shape | None = shape_of_schema(schema)
            if options.corrupt_column and CORRUPT not in schema.fieldNames():
                raise BadOption("onCorrupt", f"'column' needs '{CORRUPT} string' in the schema")
        else:
            known = {field.name: field.dataType for field in default_schema(options)}
            known.setdefault(CORRUPT, StringType())
            for field in schema:
                if known.get(field.name) != field.dataType:
                    raise BadOption("mode", f"'{mode}' has no column '{field.name}' of this type")
            shape = EVENTS[mode].shape() if mode != "raw" else None
        arrow = to_arrow_schema(schema, timezone="UTC")
        return Columns(mode, arrow, options.value_type, shape, options.types)

    def rows(self, batch: Batch, piece: Range) -> pa.RecordBatch:
        """Give the rows of a batch that lie within a range."""
        if not batch.is_json and batch.data:
            return self._whole(batch, piece)
        texts, offsets = _split(batch, piece)
        columns: dict[str, pa.Array] = {"offset": offsets}
        if self.shape is None:
            columns["value"] = self._value(texts)
        elif len(texts):
            parsed, corrupt = self._parsed(batch, piece, texts, offsets)
            kept: Sequence[int] = range(len(parsed))
            if self.types is not None:
                kept = [at for at in kept if parsed[at] is None or self._wants(parsed[at])]
                parsed = [parsed[at] for at in kept]
                columns["offset"] = offsets.take(pa.array(kept, pa.int64()))
            columns |= self.shape.columns(parsed, self.schema)
            columns[CORRUPT] = _column([corrupt.get(at) for at in kept])
        return self._record_batch(columns, piece.stream)

    def _wants(self, change: Any) -> bool:
        """Control events concern every type; a corrupt message might have had any."""
        return change.headers.control is not UNSET or change.type in (self.types or ())

    def _record_batch(self, columns: dict[str, pa.Array], stream: str) -> pa.RecordBatch:
        count = len(columns["offset"])
        columns["stream"] = pa.repeat(pa.scalar(stream, pa.string()), count)
        empty = [name for name in self.schema.names if name not in columns]
        columns |= {name: pa.nulls(count, self.schema.field(name).type) for name in empty}
        arrays = [columns[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _whole(self, batch: Batch, piece: Range) -> pa.RecordBatch:
        """Give a batch of a stream that has no messages as one row."""
        if self.shape is not None:
            raise BadOption(
                "mode",
                f"'{piece.stream}' holds {batch.content_type} and no messages: read it as 'raw'",
            )
        if self.value_type == "variant":
            raise BadOption("valueType", f"'{piece.stream}' holds no JSON: use string or binary")
        data = batch.data[: byte_of(piece.end) - byte_of(batch.start)]
        if self.value_type == "string":
            try:
                data.decode()
            except UnicodeDecodeError:
                raise BadOption(
                    "valueType", f"'{piece.stream}' holds bytes that are no text: use binary"
                ) from None
        offsets = pa.array([min(batch.offset, piece.end)], pa.string())
        columns = {"offset": offsets, "value": self._value(pa.array([data], pa.binary()))}
        return self._record_batch(columns, piece.stream)

    def _value(self, texts: pa.BinaryArray) -> pa.Array:
        if self.value_type == "binary":
            return texts
        if self.value_type == "string":
            return texts.view(pa.string())  # the server has checked that JSON is UTF-8
        if "value" not in self.schema.names:
            return pa.nulls(len(texts))
        variants = [VariantVal.parseJson(text.decode()) for text in texts.to_pylist()]
        return pa.array(
            [{"value": one.value, "metadata": one.metadata} for one in variants],
            self.schema.field("value").type,
        )

    def _parsed(
        self, batch: Batch, piece: Range, texts: pa.BinaryArray, offsets: pa.StringArray
    ) -> tuple[list[Any], dict[int, bytes]]:
        """Parse messages; corrupt ones are None, and their texts come beside."""
        assert self.shape is not None  # noqa: S101 - asked for only then
        shape = self.shape
        reasons: dict[int, str] = {}
        try:
            parsed = shape.parse_all(batch.data)[: len(texts)]
        except _ERRORS:
            parsed = []
            for at, text in enumerate(texts.to_pylist()):
                try:
                    parsed.append(shape.parse_one(text))
                except _ERRORS as error:
                    reasons[at] = str(error)
                    parsed.append(None)
        reasons |= shape.complaints(parsed, self.schema)
        if reasons and CORRUPT not in self.schema.names:
            at = min(reasons)
            raise CorruptMessage(piece.stream, offsets[at].as_py(), self.mode, reasons[at])
        for at in reasons:
            parsed[at] = None
        return parsed, {at: texts[at].as_py() for at in reasons}


def _split(batch: Batch, piece: Range) -> tuple[pa.BinaryArray, pa.StringArray]:
    """Split a batch into its messages within a range, each with the offset behind it."""
    begin, end = byte_of(batch.start), byte_of(piece.end)
    inner = batch.data[1:-1]
    if not inner:
        return pa.array([], pa.binary()), pa.array([], pa.string())
    texts = pc.split_pattern(pa.array([inner], pa.binary()), pattern=_SEPARATOR).flatten()
    lengths = pc.binary_length(texts).cast(pa.int64())
    ends = pc.add(pc.cumulative_sum(pc.add(lengths, len(_SEPARATOR))), begin)
    if ends[-1].as_py() != byte_of(batch.offset):
        raise BadData(batch.url, batch.start, "the server does not lay messages out as Headwater")
    if ends[-1].as_py() > end:
        count = pc.sum(pc.less_equal(ends, end)).as_py()
        texts, ends = texts.slice(0, count), ends.slice(0, count)
    padded = pc.utf8_lpad(ends.cast(pa.string()), 16, "0")
    return texts, pc.binary_join_element_wise(piece.end[:16], padded, "_")


def _column(values: Sequence[bytes | None]) -> pa.StringArray:
    return pa.array(values, pa.binary()).view(pa.string())
