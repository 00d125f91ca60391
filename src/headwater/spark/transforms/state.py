"""Changes into tables: the current state, and its history that can be asked as of any offset.

The Arrow functions are merges of a keyed table (see `headwater.spark.tables`): new rows may come in
several calls and in any order, so deletions stay as rows until a bucket has seen them all. The
functions of DataFrames read a history.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from headwater.errors import BadOption
from headwater.spark.messages import shape_of_values
from headwater.spark.packing import BUCKET
from headwater.spark.tables import Merged
from headwater.spark.tables.files import fitted
from headwater.spark.transforms.controls import Course, Meaning
from headwater.spark.transforms.times import TIME

KEY: Final = ("stream", "key")
_BEHIND: Final = StructType().add("offset", "string").add("timestamp", "timestamp")
_BEHIND.add("txid", "string")
_VERSION: Final = StructType().add("operation", "string")
_VERSION.add("valid_from", "string").add("valid_to", "string")
_VERSION.add("valid_from_time", "timestamp").add("valid_to_time", "timestamp")
_OWN: Final = frozenset({*KEY, *_BEHIND.fieldNames(), *_VERSION.fieldNames(), "value", BUCKET})
"""The columns that a table has of its own."""

_BYTE: Final = 17
_END: Final = 33


def value_columns(schema: StructType | None) -> StructType:
    """Give the columns of a type's values: its fields, or the JSON where it has no schema.

    A field that is called as one of the table's own columns has `value_` before its name: Spark
    does not tell small letters from capitals. All are nullable, down to the last, so that others
    can be added later, and since a deletion has none.
    """
    if schema is None:
        return StructType().add("value", "string")
    return StructType(
        [
            StructField(
                f"value_{field.name}" if field.name.lower() in _OWN else field.name,
                field.dataType,
            )
            for field in schema.toNullable()
        ]
    )


def same_column(schema: StructType) -> tuple[str, str] | None:
    """Find two fields that Spark would take for one column; None where there are none."""
    names = list(zip(schema.fieldNames(), value_columns(schema).fieldNames(), strict=True))
    objects = [names, *_names_within(schema, "")]
    for each in objects:
        seen: dict[str, str] = {}
        for field, column in each:
            if column.lower() in seen:
                return seen[column.lower()], field
            seen[column.lower()] = field
    return None


def read_schema(name: str, schema: str | StructType) -> StructType:
    """Read the schema of a type, and refuse what JSON values can't be read as."""
    if isinstance(schema, str):
        try:
            read = DataType.fromDDL(schema)
        except PySparkException as error:
            raise BadOption(name, f"it is no schema ({error})") from None
    else:
        read = schema
    if not isinstance(read, StructType):
        raise BadOption(name, "it is one type, and not the fields of an object")
    if not read.fields:
        raise BadOption(name, "it has no columns: name some, or leave it out to have JSON")
    same = same_column(read)
    if same is not None:
        what = "its fields '{}' and '{}' would be one column: rename one of them, or leave it out"
        raise BadOption(name, what.format(*same))
    shape_of_values(read)
    return read


def _names_within(kind: DataType, path: str) -> Iterator[list[tuple[str, str]]]:
    """Give the fields of each object within a type, with their paths."""
    if isinstance(kind, ArrayType):
        yield from _names_within(kind.elementType, path)
    elif isinstance(kind, MapType):
        yield from _names_within(kind.valueType, path)
    elif isinstance(kind, StructType):
        if path:
            yield [(f"{path}.{field.name}", field.name) for field in kind]
        for field in kind:
            yield from _names_within(field.dataType, f"{path}.{field.name}" if path else field.name)


def current_schema(schema: StructType | None) -> StructType:
    """Give the columns of a table of current state."""
    fields = [*StructType().add("stream", "string").add("key", "string")]
    return StructType([*fields, *value_columns(schema), *_BEHIND])


def history_schema(schema: StructType | None) -> StructType:
    """Give the columns of a table of all versions."""
    return StructType([*current_schema(schema), *_VERSION])


# Current state


class CurrentState:
    """Keeps the last change of each key, and forgets what a control has cleared."""

    def __init__(self, known: Mapping[str, Course]) -> None:
        self._meaning = Meaning(known) if known else None

    def __call__(self, old: pa.Table, new: pa.Table) -> Merged:
        """Take new changes; `old` has an operation for those that were taken before."""
        meaning = self._meaning
        if "operation" not in old.column_names:
            if meaning is not None:  # all that the table holds came before this batch
                old = meaning.without_cleared_streams(old)
            old = old.append_column("operation", pa.nulls(old.num_rows, pa.string()))
        if not new.num_rows:
            return Merged(old)
        if meaning is not None:
            new = meaning.without_cleared(meaning.visible(new))
        return Merged(last_of_each_key(pa.concat_tables([old, fitted(new, old.schema)])))

    def finish(self, kept: pa.Table) -> Merged:
        """Leave out what was deleted."""
        gone = pc.equal(kept.column("operation"), "delete")
        return Merged(kept.filter(pc.invert(gone.fill_null(False))))


def last_of_each_key(rows: pa.Table) -> pa.Table:
    """Keep the row of each stream and key that is furthest in its stream."""
    order = _by_offset(rows)
    keys = rows.select(KEY).take(order)
    keys = keys.append_column("at", pa.array(range(len(order)), pa.int64()))
    last = keys.group_by(KEY, use_threads=False).aggregate([("at", "max")])
    return rows.take(order.take(last.column("at_max").combine_chunks()))


def _by_offset(rows: pa.Table) -> pa.Array:
    """Order rows by offset; rows of different streams may come in any order."""
    offsets = rows.column("offset").cast(pa.binary())
    bytes_ = _number(pc.binary_slice(offsets, _BYTE, _END))
    epochs = pc.binary_slice(offsets, 0, _BYTE - 1)
    if not rows.num_rows or pc.all(pc.equal(epochs, epochs[0])).as_py():
        return pc.sort_indices(bytes_)
    keys = pa.table({"epoch": _number(epochs), "byte": bytes_})
    return pc.sort_indices(keys, sort_keys=[("epoch", "ascending"), ("byte", "ascending")])


def _number(digits: pa.ChunkedArray) -> pa.ChunkedArray:
    return digits.cast(pa.string()).cast(pa.int64())


# History


class History:
    """Keeps the version of each key that is valid now, and closes those that no longer are."""

    def __init__(self, known: Mapping[str, Course]) -> None:
        self._meaning = Meaning(known)

    def __call__(self, old: pa.Table, new: pa.Table) -> Merged:
        """Take new changes; what they close is only known once all are here."""
        if not new.num_rows:
            return Merged(old)
        new = self._meaning.visible(new)
        # Valid from their own time on, or that of their snapshot's end.
        since = pc.coalesce(self._meaning.clear_time(new), new.column("timestamp"))
        new = new.append_column("valid_from_time", since)
        return Merged(pa.concat_tables([old, fitted(new, old.schema)]))

    def finish(self, kept: pa.Table) -> Merged:
        """Part the versions that are over from those that are valid."""
        rows = versions(kept, self._meaning)
        over = pc.is_valid(rows.column("valid_to"))
        return Merged(rows.filter(pc.invert(over)), rows.filter(over))


def versions(rows: pa.Table, meaning: Meaning) -> pa.Table:
    """Close each version at the next one of its key, or where its stream was cleared."""
    rows = rows.take(_by_offset(rows)).combine_chunks()
    names = pc.binary_join_element_wise(*(rows.column(name) for name in KEY), "\0")
    codes = pc.dictionary_encode(names.combine_chunks()).indices
    order = pa.array(range(rows.num_rows), pa.int64())
    order = pc.sort_indices(
        pa.table({"code": codes, "at": order}),
        sort_keys=[("code", "ascending"), ("at", "ascending")],
    )
    rows, codes = rows.take(order), codes.take(order)
    # Of what a snapshot says about a key, only the last is ever seen.
    since = rows.column("valid_from").combine_chunks()
    repeated = pc.and_(_next_is_same(codes), pc.equal(since, _next(since)).fill_null(False))
    rows, codes = rows.filter(pc.invert(repeated)), codes.filter(pc.invert(repeated))

    since = rows.column("valid_from").combine_chunks()
    followed = _next_is_same(codes)
    next_since = pc.if_else(followed, _next(since), pa.scalar(None, pa.string()))
    next_time = _next(rows.column("valid_from_time").combine_chunks())
    cleared, cleared_time = meaning.first_clear(rows)
    is_clear = pc.less_equal(cleared, next_since)
    is_clear = pc.if_else(pc.is_null(next_since), pc.is_valid(cleared), is_clear)
    is_clear = is_clear.fill_null(False)
    until = pc.if_else(is_clear, cleared, next_since)
    until_time = pc.if_else(is_clear, cleared_time, next_time)
    until_time = pc.if_else(pc.is_valid(until), until_time, pa.scalar(None, TIME))

    # A deletion is a version that is valid nowhere; without anything to delete it is no change.
    deletes = pc.equal(rows.column("operation"), "delete")
    alive = pc.and_(pc.and_(followed, pc.invert(deletes)), pc.invert(is_clear))
    until = pc.if_else(deletes, since, until)
    until_time = pc.if_else(deletes, rows.column("valid_from_time"), until_time)
    rows = _replaced(rows, {"valid_to": until, "valid_to_time": until_time})
    return rows.filter(pc.or_(pc.invert(deletes), _previous(alive)))


def _next(values: pa.Array) -> pa.Array:
    return pa.concat_arrays([values.slice(1), pa.nulls(min(1, len(values)), values.type)])


def _previous(values: pa.ChunkedArray) -> pa.Array:
    flat = values.combine_chunks()
    first = pa.array([False] * min(1, len(flat)), pa.bool_())
    return pa.concat_arrays([first, flat.slice(0, max(0, len(flat) - 1))])


def _next_is_same(codes: pa.Array) -> pa.Array:
    return pc.equal(codes, _next(codes)).fill_null(False)


def _replaced(rows: pa.Table, columns: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    for name, column in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


# Time travel


def as_of_offset(history: DataFrame, offsets: Mapping[str, str]) -> DataFrame:
    """Give the state as it was when each stream had been read up to an offset.

    Streams that are not named are left out.
    """
    if not offsets:
        return history.limit(0)
    pairs = [part for pair in offsets.items() for part in map(f.lit, pair)]
    offset = f.create_map(*pairs)[f.col("stream")]
    return history.where(_valid_at(offset))


def as_of_time(history: DataFrame, when: datetime) -> DataFrame:
    """Give the state as it was before the first change of each stream that is later than a time.

    Streams order their changes, and timestamps are advisory: so one offset is found for each
    stream, and the state is that of all its keys there. Changes without a timestamp are as late as
    those before them in this history: it knows nothing of other types. Histories of several types
    are asked together by their union.
    """
    later = [
        f.min(f.when(f.col(f"{end}_time") > f.lit(when), f.col(end)))
        for end in ("valid_from", "valid_to")
    ]
    cuts = history.groupBy("stream").agg(f.least(*later).alias("_cut"))
    joined = history.join(f.broadcast(cuts), "stream")
    ends = f.col("valid_to").isNull()
    before = f.col("valid_from") < f.col("_cut")
    before &= ends | (f.col("valid_to") >= f.col("_cut"))
    return joined.where(f.coalesce(before, ends)).select(history.columns)


def _valid_at(offset: Column) -> Column:
    ends = f.col("valid_to").isNull() | (offset < f.col("valid_to"))
    return (f.col("valid_from") <= offset) & ends
