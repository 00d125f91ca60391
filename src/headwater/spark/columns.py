"""From the messages of a batch to the columns of an Arrow record batch.

Only modes that look into messages parse them: all at once, and one by one where that fails, to find
the corrupt ones.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType, VariantVal

from headwater.client import Batch
from headwater.errors import BadOption, CorruptMessage
from headwater.spark.arrays import array_of
from headwater.spark.layout import Layout, lay_out
from headwater.spark.messages import CORRUPT, EVENTS, Shape, shape_of_schema
from headwater.spark.options import Mode, SourceOptions
from headwater.spark.packing import PACKED_CHANGES, TO_PACK
from headwater.spark.ranges import Range, byte_of

_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def default_schema(options: SourceOptions) -> StructType:
    """Give the schema of a mode."""
    if options.packing is not None:
        return PACKED_CHANGES
    mode = options.mode or "raw"
    if mode == "json":
        raise BadOption("mode", "'json' needs the columns that you want: give them with .schema()")
    schema = StructType().add("stream", "string").add("offset", "string")
    if mode == "raw":
        schema.add("value", options.value_type)
        is_parsed = options.value_type == "variant"
        return schema.add(CORRUPT, "string") if options.corrupt_column and is_parsed else schema
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
        if options.packing is not None:
            return Columns("raw", to_arrow_schema(TO_PACK), "binary", None)
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

    def batches(self, batch: Batch, piece: Range) -> Iterator[pa.RecordBatch]:
        """Give the rows of a batch that lie within a range."""
        if not batch.is_json and batch.data:
            yield self._whole(batch, piece)
            return
        layout = lay_out(batch, piece)
        if len(layout):
            size = len(layout.data) if self.shape is None else self.shape.part_bytes
            for part in layout.parts(size):
                yield self._rows(part, piece.stream)

    def _rows(self, layout: Layout, stream: str) -> pa.RecordBatch:
        if self.shape is None:
            columns = self._given(layout, stream)
        else:
            with no_collection():
                columns = self._parsed(self.shape, layout, stream)
        if "offset" in self.schema.names:
            columns["offset"] = layout.offsets()
        rows = self._record_batch(columns, stream, len(layout))
        return rows if self.types is None else rows.filter(self._wanted(columns, self.types))

    def _wanted(self, columns: dict[str, pa.Array], types: frozenset[str]) -> pa.BooleanArray:
        """Control events concern every type; a corrupt message might have had any."""
        chosen = pc.is_in(columns["type"], array_of(sorted(types), pa.string()))
        everywhere = pc.or_(columns["control"].is_valid(), columns[CORRUPT].is_valid())
        return pc.or_(chosen, everywhere)

    def _record_batch(
        self, columns: dict[str, pa.Array], stream: str, count: int
    ) -> pa.RecordBatch:
        columns["stream"] = pa.repeat(array_of([stream], pa.string())[0], count)
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
        offsets = pa.array([min(batch.next_offset, piece.end)], pa.string())
        columns = {
            "offset": offsets,
            "value": self._as_text(pa.array([data], pa.binary())),
            "content_type": pa.array([batch.content_type], pa.string()),
        }
        return self._record_batch(columns, piece.stream, 1)

    def _given(self, layout: Layout, stream: str) -> dict[str, pa.Array]:
        """Give messages as they are, or as variants."""
        if self.value_type != "variant":
            return {"value": self._as_text(layout.texts())}
        values: list[dict[str, bytes] | None] = []
        reasons: dict[int, str] = {}
        for at in range(len(layout)):
            try:
                variant = VariantVal.parseJson(layout.text(at).decode())
            except (PySparkException, ValueError, RecursionError) as error:
                reasons[at] = f"it is no variant ({error})"
                values.append(None)
            else:
                values.append({"value": variant.value, "metadata": variant.metadata})
        self._refuse(stream, layout, reasons)
        columns = {CORRUPT: _corrupt_texts(layout, reasons)}
        if "value" in self.schema.names:
            columns["value"] = pa.array(values, self.schema.field("value").type)
        return columns

    def _as_text(self, texts: pa.BinaryArray) -> pa.Array:
        # The server has checked that JSON is UTF-8.
        return texts if self.value_type == "binary" else texts.view(pa.string())

    def _refuse(self, stream: str, layout: Layout, reasons: dict[int, str]) -> None:
        """Fail because of the first corrupt message, if there is no column for it."""
        if reasons and CORRUPT not in self.schema.names:
            at = min(reasons)
            raise CorruptMessage(stream, layout.offset(at), self.mode, reasons[at])

    def _parsed(self, shape: Shape, layout: Layout, stream: str) -> dict[str, pa.Array]:
        """Look into messages; of a corrupt one, only its text is left."""
        if shape.arrow is not None:
            plain = shape.arrow.columns(layout, self.schema)
            if plain is not None:
                return plain
        reasons: dict[int, str] = {}
        try:
            rows = shape.parse_all(layout.data)[: len(layout)]
        except _ERRORS:
            rows, reasons = _parsed_one_by_one(shape, layout)
        reasons = shape.complaints(rows, self.schema) | reasons
        rows = _without(rows, reasons)
        columns = shape.columns(rows, self.schema)
        broken = shape.broken_rules(columns)
        reasons = broken | reasons
        self._refuse(stream, layout, reasons)
        if broken:
            columns = shape.columns(_without(rows, broken), self.schema)
        columns[CORRUPT] = _corrupt_texts(layout, reasons)
        return columns


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the collector from looking, again and again, through what has no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _parsed_one_by_one(shape: Shape, layout: Layout) -> tuple[list[Any], dict[int, str]]:
    rows: list[Any] = []
    reasons: dict[int, str] = {}
    for at in range(len(layout)):
        try:
            rows.append(shape.parse_one(layout.text(at)))
        except _ERRORS as error:
            reasons[at] = str(error)
            rows.append(None)
    return rows, reasons


def _without(rows: list[Any], reasons: dict[int, str]) -> list[Any]:
    return [None if at in reasons else row for at, row in enumerate(rows)] if reasons else rows


def _corrupt_texts(layout: Layout, reasons: dict[int, str]) -> pa.StringArray:
    if not reasons:
        return pa.nulls(len(layout), pa.string())
    texts = [layout.text(at) if at in reasons else None for at in range(len(layout))]
    return pa.array(texts, pa.binary()).view(pa.string())
