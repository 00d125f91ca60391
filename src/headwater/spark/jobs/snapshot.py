"""`snapshot`: the state of a long stream as a compact one, and the offset to go on from.

The state at an offset is the last write of each key within one range of the stream, which its
control events say (`headwater.spark.transforms.controls`). Spark finds the last writes, one task
writes them in the order of type and key, by `headwater.spark.placing`: a run that was killed is
gone on with, as long as it is the last one. `headwater.state.begin_from_snapshot` is how a reader
starts.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Raw, Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headwater.client import START
from headwater.errors import (
    BadOption,
    HeadwaterError,
    OffsetGone,
    RequestRefused,
    SnapshotRefused,
    StreamDiffers,
    StreamNotFound,
)
from headwater.protocol.content_types import holds_json
from headwater.spark.options import SourceOptions, is_glob, is_writable, source_options
from headwater.spark.placing import CHUNK_BYTES, place
from headwater.spark.ranges import byte_of
from headwater.spark.transforms.controls import course_of
from headwater.spark.transforms.raw_events import CHANGES, CONTROLS, changes_of, controls_of
from headwater.state.events import change
from headwater.state.snapshots import Snapshot, end_event, find_snapshots, start_event

_PRODUCER: Final = "headwater-snapshot"
"""One for all runs over a target: the server then takes one of two runs at a time."""


_NO_ENTITY: Final = (
    "CAST(NULL AS STRING) AS type",
    "CAST(NULL AS STRING) AS key",
    "CAST(NULL AS BINARY) AS value",
)


class Snapshotted(Struct, frozen=True):
    """The last snapshot of a compact stream."""

    source: str
    target: str
    offset: str
    """Where a reader goes on in the source."""
    entities: int
    bytes: int
    begin: str
    """Where the snapshot begins in the target."""
    end: str
    appended: int
    """How many of its bytes this run has written: 0 where the source was as it is."""
    resumed: bool
    """Whether an earlier run had begun it; it is as of that run's offset."""


class _Plan(Struct, frozen=True):
    tail: str
    """Of the source."""
    begin: str
    """Where the next snapshot begins in the target."""
    last: Snapshot | None
    opened: Snapshot | None
    refused: str = ""


class _Written(Struct, frozen=True):
    entities: int = 0
    bytes: int = 0
    appended: int = 0
    end: str = ""
    differs: str = ""
    refused: str = ""


def snapshot(
    spark: SparkSession,
    source: Mapping[str, str],
    *,
    target: str,
    until: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    begun: Callable[[str], None] | None = None,
    reading: Callable[[str, int], None] | None = None,
) -> Snapshotted:
    """Write the state of a stream, now or as of an offset, as a snapshot into another stream.

    `begun` is told where in the target the snapshot begins before it is written, and `reading`,
    whenever the source is read, what for and how many bytes these are; what they raise ends the
    job.
    """
    chosen, options = _checked(source, target, until)
    path = options.streams[0]
    plan = _planned(spark, options, target)
    if plan.refused:
        raise SnapshotRefused(path, plan.refused)
    opened = plan.opened
    begun, reading = begun or _untold, reading or _unheard
    begun(plan.begin if opened is None else opened.begin)
    if opened is not None and until in (None, opened.offset):
        _, state = _state(spark, chosen, path, opened.offset, reading)
        done = _write(spark, options, target, opened.offset, opened.begin, chunk_bytes, state)
        if not done.differs:
            return _summary(path, target, opened.offset, opened.begin, done, resumed=True)
    offset, state = _state(spark, chosen, path, until or plan.tail, reading)
    last = plan.last
    if last is not None and last.source == path and last.offset == offset:
        begin = last.begin
    elif opened is not None:
        # What was begun and can't be ended is given up by beginning anew behind it.
        begin = _planned(spark, options, target).begin
    else:
        begin = plan.begin
    begun(begin)
    done = _write(spark, options, target, offset, begin, chunk_bytes, state)
    if done.differs:
        raise SnapshotRefused(path, f"another run writes to '{target}'. {done.differs}")
    return _summary(path, target, offset, begin, done, resumed=False)


def _untold(_begin: str) -> None:
    """Nobody watches."""


def _unheard(_what: str, _bytes: int) -> None:
    """Nobody watches this either."""


def _checked(
    source: Mapping[str, str], target: str, until: str | None
) -> tuple[dict[str, str], SourceOptions]:
    given = {name.lower() for name in source}
    for name in ("mode", "valueType", "types", "onCorrupt", "startingOffsets", "endingOffsets"):
        if name.lower() in given:
            raise BadOption(name, "a snapshot is made from all of a stream, up to 'until'")
    chosen = {**source, "mode": "raw", "valueType": "binary"}
    options = source_options(chosen)
    if len(options.streams) != 1 or is_glob(options.streams[0]):
        raise BadOption("stream", "a snapshot is of one stream: name it")
    if not is_writable(target) or target.strip("/") == options.streams[0]:
        raise BadOption("target", "name another stream than the source, where the snapshot goes")
    if until is not None and not until:
        raise BadOption("until", "it is an offset of the source")
    return chosen, options


def _planned(spark: SparkSession, options: SourceOptions, target: str) -> _Plan:
    look = partial(_look, options=options, target=target)
    (done,) = spark.range(0, 1, 1, 1).mapInArrow(look, "told string").collect()
    return msgspec.json.decode(done["told"], type=_Plan)


def _state(
    spark: SparkSession,
    chosen: dict[str, str],
    path: str,
    until: str,
    reading: Callable[[str, int], None],
) -> tuple[str, DataFrame]:
    """Find the state as of an offset: where a reader goes on, and a row per entity."""
    reading("controls", byte_of(until))
    ending = msgspec.json.encode({path: until}).decode()
    rows = spark.read.format("headwater").options(**chosen, endingOffsets=ending).load()
    controls = rows.mapInArrow(controls_of, CONTROLS).collect()
    part = course_of((row["offset"], row["control"]) for row in controls).part
    if part.until is not None:
        # A reader that began within an open snapshot would take its changes for the state's own.
        before = rows.where(f.col("offset") < part.until).agg(f.max("offset")).collect()[0][0]
        until = before or START
        rows = rows.where(f.col("offset") < part.until)
    changes = rows.where(f.col("offset") > part.behind).mapInArrow(changes_of, CHANGES)
    last = changes.groupBy("type", "key").agg(f.max_by("value", "offset").alias("value"))
    reading("the last changes", byte_of(until))  # as soon as they are written
    return until, last.where("value IS NOT NULL")


def _write(
    spark: SparkSession,
    options: SourceOptions,
    target: str,
    offset: str,
    begin: str,
    chunk_bytes: int,
    state: DataFrame,
) -> _Written:
    write = partial(
        _put, options=options, target=target, offset=offset, begin=begin, chunk_bytes=chunk_bytes
    )
    # One task, since a stream is written from one end to the other; its sort spills to disk. The
    # row without a type comes first, and is there so that a state without entities has a task too.
    none = spark.range(0, 1, 1, 1).selectExpr(*_NO_ENTITY)
    lines = state.select("type", "key", "value").unionAll(none)
    lines = lines.repartition(1).sortWithinPartitions("type", "key")
    (done,) = lines.mapInArrow(write, "told string").collect()
    written = msgspec.json.decode(done["told"], type=_Written)
    if written.refused:
        raise SnapshotRefused(options.streams[0], written.refused)
    return written


def _summary(
    path: str, target: str, offset: str, begin: str, done: _Written, *, resumed: bool
) -> Snapshotted:
    return Snapshotted(
        path, target, offset, done.entities, done.bytes, begin, done.end, done.appended, resumed
    )


# What tasks do


def _look(
    rows: Iterator[pa.RecordBatch], *, options: SourceOptions, target: str
) -> Iterator[pa.RecordBatch]:
    """Ask the server where source and target stand."""
    list(rows)
    path = options.streams[0]
    plan = _Plan("", "", None, None)
    with options.server.client() as client:
        try:
            info = client.stream(path).head()
            if not holds_json(info.content_type):
                plan = _Plan("", "", None, None, f"it holds {info.content_type}, and no events.")
            else:
                compact = client.stream(target)
                compact.create()
                last, opened = find_snapshots(compact)
                if opened is not None:
                    opened = opened if opened.source == path else None
                if opened is not None and not _is_there(options, path, opened.offset):
                    opened = None
                plan = _Plan(info.next_offset, compact.head().next_offset, last, opened)
        except StreamNotFound:
            plan = _Plan("", "", None, None, "there is no such stream at this server.")
        except HeadwaterError as error:
            plan = _Plan("", "", None, None, str(error))
    yield _text(plan)


def _is_there(options: SourceOptions, path: str, offset: str) -> bool:
    with options.server.client() as client:
        try:
            client.split_page(path, offset, limit=1)
        except (OffsetGone, RequestRefused):
            return False
    return True


def _put(
    rows: Iterator[pa.RecordBatch],
    *,
    options: SourceOptions,
    target: str,
    offset: str,
    begin: str,
    chunk_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Write the entities, between the two controls, to where they have to be."""
    path = options.streams[0]

    def messages() -> Iterator[bytes]:
        yield start_event(path, offset)
        for batch in rows:
            columns = (batch.column(name).to_pylist() for name in ("type", "key", "value"))
            for type_, key, value in zip(*columns, strict=True):
                if type_ is not None:
                    yield change("insert", type_, key, Raw(value)).encode()
        yield end_event(path, offset, begin)

    with options.server.client() as client:
        try:
            placed = place(
                client.stream(target),
                messages(),
                json=True,
                producer=_PRODUCER,
                begin=begin,
                chunk_bytes=chunk_bytes,
            )
            written = _Written(placed.messages - 2, placed.bytes, placed.appended, placed.offset)
        except StreamDiffers as differs:
            written = _Written(differs=str(differs))
        except HeadwaterError as error:
            written = _Written(refused=str(error))
    yield _text(written)


def _text(value: Struct) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"told": [msgspec.json.encode(value).decode()]})
