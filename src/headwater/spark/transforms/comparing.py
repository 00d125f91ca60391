"""What has changed between a state and a table: inserts, updates and deletes, by key.

The state is what a stream of change events makes of one type. Values are compared as JSON: rows
that are spelled in another way and mean the same are no change.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from headwater.errors import BadOption
from headwater.spark.tables import Merged
from headwater.spark.transforms.controls import Part
from headwater.spark.transforms.raw_events import CHANGES as RAW_CHANGES
from headwater.spark.transforms.raw_events import changes_of
from headwater.state.values import decode_value

STATE: Final = StructType().add("key", "string").add("value", "string").add("offset", "string")
"""The last change of each key: its value as JSON, null where it is deleted, and where it was."""

CHANGES: Final = StructType().add("key", "string").add("operation", "string").add("value", "string")
CHANGES.add("problem", "string")
"""What is to be told; a row with a problem is none that can be."""

BODIES: Final = StructType().add("events", "long").add("body", "binary")
"""Change events as bodies of appends."""

_CHANGES_ARROW: Final = to_arrow_schema(CHANGES, timezone="UTC")
_BODIES_ARROW: Final = to_arrow_schema(BODIES, timezone="UTC")
_SETTING: Final = ("insert", "update", "upsert")
_HOLD_JSON: Final = (StringType, BinaryType, VariantType, BooleanType, NumericType)
"""The types of columns whose texts may be JSON; a row in which one is not is told when it comes."""
_ENDLESS: Final = "NaN or Infinity in "
_JSON_OPTIONS: Final = {
    # A field that becomes null is a change, and must be told as one.
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    # A moment is the same whatever zone the session is in.
    "timeZone": "UTC",
}


# The state


def changes_within(messages: DataFrame, kind: str, part: Part) -> DataFrame:
    """Take the changes of one type that count, from raw messages, as rows of a state."""
    counts = f.col("offset") > part.behind
    if part.until is not None:
        counts &= f.col("offset") <= part.until
    changes = messages.where(counts).mapInArrow(changes_of, RAW_CHANGES)
    return changes.where(f.col("type") == kind).select(
        "key", f.col("value").cast("string").alias("value"), "offset"
    )


def merge_state(old: pa.Table, new: pa.Table, *, since: str, cleared: bool) -> Merged:
    """Keep the last change of each key; `old` holds what was before `since`, and maybe more.

    New rows may come in several parts and in any order. So deletions stay until the next batch: an
    earlier change of their key may still come.
    """
    before = pc.less_equal(old["offset"], since)
    over = before if cleared else pc.and_(before, pc.is_null(old["value"]))
    rows = pa.concat_tables([old.filter(pc.invert(over)), new.select(STATE.names).cast(old.schema)])
    rows = rows.sort_by("offset")
    places = pa.table({"key": rows["key"], "place": pa.array(range(rows.num_rows), pa.int64())})
    last = places.group_by("key", use_threads=False).aggregate([("place", "max")])
    return Merged(rows.take(last["place_max"]))


# The table


def keyed(
    rows: DataFrame, key: str | Sequence[str], value: str | Sequence[str] | None = None
) -> DataFrame:
    """Give each row its key, and its value as JSON.

    Several columns of a key become a JSON array of texts. The value is an object of all columns, or
    of those that are named; one name is a column that holds JSON itself.
    """
    for argument, reason in column_complaints(rows.schema, key, value):
        raise BadOption(argument, reason)
    texts = [_text(rows, name) for name in _names(key)]
    whole = f.lit(True)
    for text in texts:
        whole &= text.isNotNull()
    named = texts[0] if len(texts) == 1 else f.when(whole, f.to_json(f.array(*texts)))
    if isinstance(value, str):
        is_variant = isinstance(rows.schema[value].dataType, VariantType)
        text = f.to_json(_column(value)) if is_variant else _column(value).cast("string")
        valued = f.coalesce(text, f.lit("null"))
    else:
        names = rows.columns if value is None else value
        valued = f.to_json(f.struct(*map(_column, names)), _JSON_OPTIONS)
        for name in names:
            # Spark makes texts of these, which readers would take for texts. So it is no JSON.
            endless = _endless(_column(name), rows.schema[name].dataType)
            valued = f.when(endless, f.concat(f.lit(_ENDLESS), valued)).otherwise(valued)
    return rows.select(named.alias("key"), valued.alias("value"))


def column_complaints(
    schema: StructType, key: str | Sequence[str], value: str | Sequence[str] | None = None
) -> Iterator[tuple[str, str]]:
    """Tell what is wrong with the arguments of `keyed` for rows of a schema: of which, and why."""
    if not _names(key):
        yield "key", "name the column, or the columns, that tell rows apart"
    for argument, names in (("key", _names(key)), ("value", _names(value or ()))):
        for name in names:
            if name not in schema.fieldNames():
                there = ", ".join(schema.fieldNames())
                yield argument, f"there is no column '{name}'; there are {there}"
    if isinstance(value, str) and value in schema.fieldNames():
        kind = schema[value].dataType
        if not isinstance(kind, _HOLD_JSON):
            what = (
                f"the column '{value}' is {kind.simpleString()}, and holds no JSON: make JSON of "
                "it, or name it among the columns of an object"
            )
            yield "value", what


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _text(rows: DataFrame, name: str) -> Column:
    """Write a column of a key; a moment as it is in UTC, whatever zone the session is in."""
    column = _column(name)
    if isinstance(rows.schema[name].dataType, TimestampType):
        seconds = f.unix_micros(column).cast("decimal(24,6)") / f.lit(1_000_000)
        since = f.make_dt_interval(secs=seconds.cast("decimal(18,6)"))
        column = f.lit("1970-01-01").cast("timestamp_ntz") + since
    return column.cast("string")


def _endless(column: Column, kind: DataType) -> Column:
    """Tell whether a column holds a number that JSON has none for."""
    found = f.lit(False)
    if isinstance(kind, FloatType | DoubleType):
        found = f.isnan(column) | (f.abs(column) == f.lit(float("inf")))
    elif isinstance(kind, ArrayType):
        found = f.exists(column, lambda each: _endless(each, kind.elementType))
    elif isinstance(kind, MapType):
        found = _endless(f.map_values(column), ArrayType(kind.valueType))
    elif isinstance(kind, StructType):
        for field in kind:
            found |= _endless(column.getField(field.name), field.dataType)
    return f.coalesce(found, f.lit(False))


def _column(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")


def compared(old: DataFrame, new: DataFrame) -> DataFrame:
    """Find what makes the rows of `new` of those of `old`, both with a key and a value."""
    rows = new.groupBy("key").agg(f.min("value").alias("value"), f.count("*").alias("rows"))
    before = old.where(f.col("value").isNotNull()).select("key", f.col("value").alias("old"))
    both = before.join(rows, "key", "full_outer")
    problem = (
        f.when(f.col("key").isNull(), "its key is null")
        .when(f.col("key") == "", "its key is empty")
        .when(f.col("rows") > 1, f.format_string("%d rows have the key '%s'", "rows", "key"))
    )
    operation = (
        f.when(f.col("rows").isNull(), "delete")
        .when(f.col("old").isNull(), "insert")
        .when(f.col("old") != f.col("value"), "update")
    )
    found = both.select(
        "key", "old", "value", operation.alias("operation"), problem.alias("problem")
    )
    found = found.where(f.col("operation").isNotNull() | f.col("problem").isNotNull())
    return found.mapInArrow(_really_changed, CHANGES)


def _really_changed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out updates to what is only spelled in another way, and look for what is no JSON."""
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            old, value = row.pop("old"), row["value"]
            if row["operation"] == "update" and _mean_the_same(old, value):
                row["operation"] = None
            if row["operation"] in _SETTING and row["problem"] is None:
                row["problem"] = _json_problem(row["key"], value)
            if row["operation"] is not None or row["problem"] is not None:
                rows.append(row)
        yield from pa.Table.from_pylist(rows, _CHANGES_ARROW).to_batches()


def _json_problem(key: str, text: str) -> str | None:
    try:
        decode_value(text.encode())
    except (ValueError, RecursionError) as error:
        return f"the value of '{key}', {text[:80]!r}, is no JSON ({error})"
    return None


def _mean_the_same(one: str, other: str) -> bool:
    try:
        return bool(_meaning(one) == _meaning(other))
    except (ValueError, InvalidOperation, RecursionError):
        return False


def _meaning(text: str) -> Any:
    return json.loads(text, parse_int=_number, parse_float=_number)


def _number(token: str) -> tuple[bool, bool, Decimal]:
    """Read a number to its last digit, which a float would round away, and with its kind.

    To readers, 1 and 1.0 are of two types; so are 1 and true, which Python finds equal.
    """
    return token.lstrip("-").isdigit(), token.startswith("-"), Decimal(token)


# Change events


def bodies(
    changes: Iterable[pa.RecordBatch], *, kind: str, txid: str, most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Write changes as bodies of appends, of about so many bytes at most."""
    held: list[bytes] = []
    size = 0
    for batch in changes:
        for row in batch.select(["key", "operation", "value"]).to_pylist():
            message = _message(kind, txid, row["key"], row["operation"], row["value"])
            if held and size + len(message) > most_bytes:
                yield _body(held)
                held, size = [], 0
            held.append(message)
            size += len(message) + 1
    if held:
        yield _body(held)


def _message(kind: str, txid: str, key: str, operation: str, value: str | None) -> bytes:
    headers = {"operation": operation, "txid": txid}
    if operation == "delete":
        return msgspec.json.encode({"type": kind, "key": key, "headers": headers})
    data = Raw((value or "null").encode())
    return msgspec.json.encode({"type": kind, "key": key, "value": data, "headers": headers})


def _body(messages: Sequence[bytes]) -> pa.RecordBatch:
    body = b"[" + b",".join(messages) + b"]"
    return pa.RecordBatch.from_pylist([{"events": len(messages), "body": body}], _BODIES_ARROW)
