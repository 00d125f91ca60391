"""The tables of `materialize` as functions of DataFrames: of events at hand, and without a folder.

Events are written as messages again and go the way of the job's: read by the rules of
`headwater.state`, packed by bucket, merged there. A control concerns every key of its stream, so
each bucket gets all controls. Nothing runs before the rows are asked for.

`events` are rows of mode `state`, or messages as mode `raw` and `archived` give them. Of messages
everything is seen; mode `state` takes a header that is null for one that is not there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import BadOption
from headwater.spark.messages import CORRUPT
from headwater.spark.packing import BUCKET, PACKED, PACKED_CHANGES, TO_PACK
from headwater.spark.tables import Merged
from headwater.spark.tables.files import fitted
from headwater.spark.tables.merging import Finish, Merge
from headwater.spark.tables.packing import unpacked
from headwater.spark.transforms.changes import (
    ASIDE,
    CHANGES,
    CONTROLS,
    Packing,
    controls_in,
    packed_changes,
)
from headwater.spark.transforms.controls import Course, courses
from headwater.spark.transforms.state import (
    CurrentState,
    History,
    current_schema,
    history_schema,
    read_schema,
)
from headwater.spark.transforms.violations import QUARANTINE, Quarantine

Merging = Callable[[Mapping[str, Course]], tuple[Merge, Finish]]
"""From what controls mean to what merges a bucket, and finishes it."""

_MESSAGE: Final = msgspec.json.Decoder(Raw)
_TO_PACK: Final = to_arrow_schema(TO_PACK)
_ENCODER: Final = msgspec.json.Encoder()
_AT_ONCE: Final = 64
"""So many packed values are merged at a time."""


class _Headers(Struct, omit_defaults=True):
    operation: str | None = None
    control: str | None = None
    txid: str | None = None
    timestamp: str | None = None


class _Event(Struct, omit_defaults=True):
    headers: _Headers
    type: str | None = None
    key: str | None = None
    value: Raw | None = None


_HEADERS: Final = _Headers.__struct_fields__


def current_state(
    events: DataFrame, type_: str, schema: str | StructType | None = None
) -> DataFrame:
    """Give the last version of each entity of a type, as the table `<type>` has it."""
    fields = None if schema is None else read_schema("schema", schema)
    return _changed(events, type_, fields, _current, current_schema(fields))


def history(events: DataFrame, type_: str, schema: str | StructType | None = None) -> DataFrame:
    """Give every version of each entity of a type, as the table `<type>_history` has them."""
    fields = None if schema is None else read_schema("schema", schema)
    return _changed(events, type_, fields, _history, history_schema(fields))


def violations(
    events: DataFrame, schemas: Mapping[str, str | StructType] | None = None
) -> DataFrame:
    """Give what must not become state, as the table `_quarantine` has it.

    With a column `_corrupt`, messages that mode `state` can't read are there as well.
    """
    read = {type_: read_schema(f"schemas.{type_}", each) for type_, each in (schemas or {}).items()}
    return _merged(events, read, f.col("kind") == ASIDE, _quarantine, QUARANTINE)


def _changed(
    events: DataFrame,
    type_: str,
    fields: StructType | None,
    merging: Merging,
    schema: StructType,
) -> DataFrame:
    if not type_:
        raise BadOption("type", "name the type that the rows are of")
    if "operation" in events.columns:  # sooner than by reading them
        events = events.where((f.col("type") == type_) | f.col("control").isNotNull())
    wanted = (f.col("kind") == CHANGES) & (f.col("type") == type_)
    return _merged(events, {} if fields is None else {type_: fields}, wanted, merging, schema)


def _merged(
    events: DataFrame,
    schemas: Mapping[str, StructType],
    wanted: Column,
    merging: Merging,
    schema: StructType,
) -> DataFrame:
    """Merge what is wanted of events, bucket by bucket."""
    if events.isStreaming:
        what = "they are of a query that goes on: keep tables of it with jobs.materialize"
        raise BadOption("events", what)
    # More tasks, where Spark is told to have more, each hold less.
    buckets = int(events.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    pack = partial(_packed, packing=Packing.of(buckets, schemas))
    packed = _columns(events).mapInArrow(pack, PACKED_CHANGES)
    is_control = f.col("kind") == CONTROLS
    everywhere = f.sequence(f.lit(0), f.lit(buckets - 1))
    places = f.when(is_control, everywhere).otherwise(f.array(BUCKET))
    placed = packed.where(wanted | (f.size("controls") > 0)).withColumn(BUCKET, f.explode(places))
    arrow = to_arrow_schema(schema, timezone="UTC")

    def merged(rows: pa.Table) -> pa.Table:
        return _merge_bucket(rows, merging, arrow)

    return placed.groupBy(BUCKET).applyInArrow(merged, schema)


def _columns(events: DataFrame) -> DataFrame:
    """Take what is needed of events, or of messages."""
    value = f.col("value").cast("binary").alias("value")
    corrupt = [CORRUPT] if CORRUPT in events.columns else []
    if "operation" not in events.columns:
        return events.select("stream", "offset", value)
    return events.select("stream", "offset", "type", "key", value, *_HEADERS, *corrupt)


# What tasks do


def _packed(batches: Iterable[pa.RecordBatch], *, packing: Packing) -> Iterator[pa.RecordBatch]:
    return packed_changes(map(_messages, batches), packing)


def _messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Write events as messages; what is no JSON is the text that it is."""
    texts = rows.column("value").to_pylist()
    if "operation" in rows.schema.names:
        texts = _written(rows, texts)
    texts = [text if _is_json(text) else _quoted(text) for text in texts]
    columns = [rows.column("stream"), rows.column("offset"), pa.array(texts, pa.binary())]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.nulls(len(texts), pa.string())], schema=_TO_PACK
    )


def _written(rows: pa.RecordBatch, values: Sequence[bytes | None]) -> list[bytes]:
    """Write events again, but for those that were never read, whose texts are there."""

    def column(name: str) -> list[Any]:
        values: list[Any] = rows.column(name).to_pylist()
        return values

    headers = map(_Headers, *map(column, _HEADERS))
    raw = (None if value is None else Raw(value) for value in values)
    events = map(_Event, headers, column("type"), column("key"), raw)
    texts = [_ENCODER.encode(event) for event in events]
    if CORRUPT in rows.schema.names:
        for at, text in enumerate(column(CORRUPT)):
            texts[at] = texts[at] if text is None else text.encode()
    return texts


def _is_json(text: bytes | None) -> bool:
    if text is None:
        return False
    try:
        if not text.isascii():
            text.decode()
        _MESSAGE.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _quoted(text: bytes | None) -> bytes:
    return msgspec.json.encode((text or b"").decode(errors="replace"))


def _merge_bucket(rows: pa.Table, merging: Merging, schema: pa.Schema) -> pa.Table:
    """Merge all changes of one bucket, by all controls."""
    told = [each for some in rows.column("controls").to_pylist() for each in some or ()]
    merge, finish = merging(courses({}, controls_in(told)))
    kept = schema.empty_table()
    changes = rows.filter(pc.is_valid(rows.column(PACKED)))
    for start in range(0, max(1, changes.num_rows), _AT_ONCE):
        kept = merge(kept, unpacked(changes.slice(start, _AT_ONCE))).kept
    done = [each for each in finish(kept) if each is not None]
    return pa.concat_tables([fitted(each, schema) for each in done])


def _current(known: Mapping[str, Course]) -> tuple[Merge, Finish]:
    state = CurrentState(known)
    return state, state.finish


def _history(known: Mapping[str, Course]) -> tuple[Merge, Finish]:
    versions = History(known)
    return versions, versions.finish


def _quarantine(known: Mapping[str, Course]) -> tuple[Merge, Finish]:
    return Quarantine(known), Merged
