"""`project`: events of runs to tables of runs and steps, and on request to a stream of their state.

Each batch goes through three steps, in this order: the runs take its events, the steps follow the
runs that it changed, and what changed is appended to the stream. Each step knows by itself whether
it has been done for a batch, and takes its input from the tables before it; so a batch that is
replayed after a crash goes on where it was. See docs/decisions/0040.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headwater.client import ProducerClaim, Stream
from headwater.errors import BadOption, BatchRefused, RequestRefused, StreamNotFound
from headwater.protocol.content_types import JSON
from headwater.protocol.globs import matches
from headwater.spark.lags import OBSERVED, Lag, batch_lag
from headwater.spark.options import Server, is_writable, source_options
from headwater.spark.queries import query_id
from headwater.spark.tables import Table, open_table
from headwater.spark.tables.files import folder_uri
from headwater.spark.transforms.run_changes import run_messages, step_messages
from headwater.spark.transforms.run_tables import MESSAGES, RUNS, STEPS
from headwater.spark.transforms.runs import (
    FOR_GOOD,
    checked,
    complaint,
    merge_runs,
    merge_steps,
    project_steps,
    set_aside,
)

_APPEND_BYTES: Final = 4 << 20
_QUARANTINE: Final = "_quarantine"


def project(
    spark: SparkSession,
    source: Mapping[str, str],
    *,
    tables: str,
    checkpoint: str,
    table_format: str = "delta",
    publish: str | None = None,
    grace_seconds: float | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Keep `tables`/runs and `tables`/steps up to date with the events of runs in streams.

    `publish` is a stream at the same server that gets every change of a run or a step. A number
    that is missing is waited for, for `grace_seconds` or else for good. With the source's option
    onCorrupt set to column, messages that are no events go to `tables`/_quarantine.
    """
    chosen = _checked(source, publish, grace_seconds)
    events = spark.readStream.format("headwater").options(**chosen).load()
    figures = [*_figures(), *([_aside()] if source_options(chosen).corrupt_column else [])]
    observed = events.observe(OBSERVED, *figures)
    checkpoint = folder_uri(checkpoint, "checkpoint")  # Spark's own folder may be another one
    folder = folder_uri(tables, "tables")
    each = _Projecting(chosen, folder, checkpoint, table_format, publish, grace_seconds)
    writer = observed.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()


def _checked(
    source: Mapping[str, str], publish: str | None, grace_seconds: float | None
) -> dict[str, str]:
    given = {name.lower(): value for name, value in source.items()}
    if given.get("mode", "runs").lower() != "runs":
        raise BadOption("mode", "runs are projected from mode 'runs': leave it out")
    if publish is not None and not is_writable(publish):
        raise BadOption("publish", "name the one stream that snapshots are written to")
    if grace_seconds is not None and grace_seconds < 0:
        raise BadOption("grace_seconds", "it is a number of seconds from 0, or None to wait on")
    chosen = {**source, "mode": "runs"}
    options = source_options(chosen)  # what is wrong with it is said now
    if publish is not None and any(matches(each, publish.strip("/")) for each in options.streams):
        raise BadOption("publish", "the stream of snapshots can't be one that is projected")
    return chosen


# Lag


def _figures() -> list[Column]:
    # Numbers, since listeners get times as texts in some sessions, and without a zone in others.
    return [
        f.count(f.lit(1)).alias("events"),
        f.unix_micros(f.min(f.coalesce("persisted_at", "emitted_at"))).alias("oldest_persisted"),
        f.unix_micros(f.min("emitted_at")).alias("oldest_emitted"),
    ]


def _aside() -> Column:
    return f.count_if(complaint().isNotNull()).alias("aside")


def lag_of(progress: StreamingQueryProgress) -> Lag | None:
    """Read the lag from a progress of the query, as listeners get it; None where nothing came.

    A progress is made when a batch is committed, so this is the lag at that moment.
    """
    row = (progress.observedMetrics or {}).get(OBSERVED)
    figures = {} if row is None else row.asDict()
    return batch_lag(figures, progress.timestamp, progress.batchDuration)


# Batches


class _Projecting:
    """What is done with each batch, by the driver or, with Spark Connect, by the server."""

    def __init__(
        self,
        source: dict[str, str],
        folder: str,
        checkpoint: str,
        table_format: str,
        publish: str | None,
        grace_seconds: float | None,
    ) -> None:
        self._source = source
        self._folder = folder
        self._checkpoint = checkpoint
        self._format = table_format
        self._publish = None if publish is None else publish.strip("/")
        self._grace = FOR_GOOD if grace_seconds is None else timedelta(seconds=grace_seconds)
        self._writer = ""

    def __call__(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        self._writer = self._writer or query_id(self._checkpoint)
        label = f"{self._writer}/{number}"
        runs, steps = self._table("runs"), self._table("steps")
        if runs.committed(self._writer) != number:  # a later one is refused
            self._take(runs, batch, number, label)
        changed = _changed_by(label, runs.read(spark), RUNS, spark)
        steps.rewrite(
            project_steps(changed),
            merge_steps,
            key=["run_id"],
            schema=STEPS,
            writer=self._writer,
            batch=number,
            after=number - 1,
        )
        if self._publish is not None:
            moved = _changed_by(label, steps.read(spark), STEPS, spark)
            told = changed.mapInArrow(run_messages, MESSAGES).union(
                moved.mapInArrow(step_messages, MESSAGES)
            )
            self._append(self._publish, told, number)

    def _table(self, name: str) -> Table:
        return open_table(f"{self._folder}/{name}", self._format)

    def _take(self, runs: Table, batch: DataFrame, number: int, label: str) -> None:
        """Merge the events of a batch into the runs."""
        merge = partial(merge_runs, batch=label, now=datetime.now(UTC), grace=self._grace)
        rewrite = partial(
            runs.rewrite,
            key=["run_id"],
            schema=RUNS,
            writer=self._writer,
            batch=number,
            after=number - 1,
        )
        if not source_options(self._source).corrupt_column:
            rewrite(checked(batch), merge)
            return
        batch = batch.persist()  # it is used twice, and must be observed once
        try:
            bad = set_aside(batch)
            self._table(_QUARANTINE).append(bad, writer=self._writer, batch=number)
            rewrite(checked(batch), merge)
        finally:
            batch.unpersist()

    def _append(self, path: str, told: DataFrame, number: int) -> None:
        """Append what has changed; a replay has the same bodies, and appends those that lack."""
        tell = partial(
            _tell,
            server=source_options(self._source).server,
            path=path,
            producer=f"project-{self._writer}",
            epoch=number,
        )
        # By one task, since a stream is written from one end to the other; its sort spills to disk,
        # so a batch of any size has room.
        ordered = told.repartition(1).sortWithinPartitions("run_id", "position")
        for row in ordered.mapInArrow(tell, "refused string").collect():
            raise BatchRefused(path, row["refused"])


def _tell(
    told: Iterable[pa.RecordBatch], *, server: Server, path: str, producer: str, epoch: int
) -> Iterator[pa.RecordBatch]:
    """Append messages, in a task; says why where they are refused."""
    messages = (text for batch in told for text in batch.column("value").to_pylist())
    with server.client() as client:
        stream = client.stream(path, content_type=JSON)
        for part, body in enumerate(bodies_of(messages, _APPEND_BYTES)):
            try:
                _append_or_create(stream, body, ProducerClaim(producer, epoch, part))
            except RequestRefused as refused:
                yield pa.RecordBatch.from_pydict({"refused": [str(refused)]})
                return


def bodies_of(messages: Iterable[str], most_bytes: int) -> Iterator[bytes]:
    """Cut messages into bodies of appends: always in the same way."""
    held: list[str] = []
    size = 0
    for message in messages:
        if held and size + len(message) > most_bytes:
            yield f"[{','.join(held)}]".encode()
            held, size = [], 0
        held.append(message)
        size += len(message)
    if held:
        yield f"[{','.join(held)}]".encode()


def _append_or_create(stream: Stream, body: bytes, claim: ProducerClaim) -> None:
    try:
        stream.append(body, producer=claim)
    except StreamNotFound:
        stream.create(JSON)
        stream.append(body, producer=claim)


def _changed_by(
    label: str, rows: DataFrame | None, schema: StructType, spark: SparkSession
) -> DataFrame:
    """Give the rows that a batch has changed: the same whenever they are asked for."""
    if rows is None:
        return spark.createDataFrame([], schema)
    return rows.where(f.col("_batch") == label)
