"""From a pipeline to what Spark runs: a streaming query, or a job that ends by itself."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headwater.spark.pipelines.building import rows_now, streaming_query_rows, transformed
from headwater.spark.pipelines.triggers import spark_trigger
from headwater.spark.pipelines.values import (
    Archive,
    Materialize,
    Pipeline,
    Project,
    Publish,
    Restore,
    Snapshot,
    StreamTarget,
    TableTarget,
    as_text,
)


def start(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    """Start the streaming query of a pipeline, from its checkpoint on."""
    return _STARTS[type(pipeline.target)](spark, pipeline)


def run_bounded(spark: SparkSession, pipeline: Pipeline) -> Struct:
    """Run a job that ends by itself, and give what it tells."""
    return _JOBS[type(pipeline.target)](spark, pipeline)


def _start_stream(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    target = pipeline.target
    assert isinstance(target, StreamTarget)  # noqa: S101 - chosen by its type
    options = target.request_options()
    if target.stream is not None:
        options["stream"] = target.stream
    options |= {name: as_text(value) for name, value in target.options.items()}
    writer = streaming_query_rows(spark, pipeline).writeStream
    if target.output == "update":
        # Spark has no updates for sinks in Python; the same rows are written batch by batch.
        write = WriteBatch(options, pipeline.checkpoint)
        return _started(writer.outputMode("update").foreachBatch(write), pipeline)
    return _started(writer.format("headwater").options(**options), pipeline)


def _start_table(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    target = pipeline.target
    assert isinstance(target, TableTarget)  # noqa: S101 - chosen by its type
    append = AppendBatch(target.folder, target.format, pipeline.checkpoint)
    writer = streaming_query_rows(spark, pipeline).writeStream.foreachBatch(append)
    return _started(writer, pipeline)


def _started(writer: DataStreamWriter, pipeline: Pipeline) -> StreamingQuery:
    trigger = spark_trigger(pipeline.trigger)
    if trigger:
        writer = writer.trigger(**trigger)
    named = writer.queryName(pipeline.name).option("checkpointLocation", pipeline.checkpoint)
    return named.start()


def query_id(checkpoint: str) -> str:
    """Read the id of the query that a checkpoint belongs to; Spark writes it before any batch."""
    from headwater.spark.tables.files import file_system  # noqa: PLC0415 - only tables need it

    system, root = file_system(checkpoint)
    with system.open_input_stream(f"{root}/metadata") as file:
        return str(json.loads(file.read())["id"])


class WriteBatch:
    """Writes each batch to streams, once: under the id of the query and the number of the batch."""

    def __init__(self, options: Mapping[str, str], checkpoint: str) -> None:
        self.options = dict(options)
        self.checkpoint = checkpoint

    def __call__(self, rows: DataFrame, batch: int) -> None:
        writer = rows.write.format("headwater").mode("append").options(**self.options)
        writer.options(writeId=query_id(self.checkpoint), batchId=str(batch)).save()


class AppendBatch:
    """Adds each batch to a table; where Spark calls it, a replayed one is found there."""

    def __init__(self, folder: str, table_format: str, checkpoint: str) -> None:
        self.folder = folder
        self.table_format = table_format
        self.checkpoint = checkpoint

    def __call__(self, rows: DataFrame, batch: int) -> None:
        from headwater.spark.tables import open_table  # noqa: PLC0415 - only tables need Delta

        table = open_table(self.folder, self.table_format)
        table.append(rows, writer=query_id(self.checkpoint), batch=batch)


def _start_materialize(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    from headwater.spark.jobs.materialize import materialize  # noqa: PLC0415 - of this job alone

    target = pipeline.target
    assert isinstance(target, Materialize)  # noqa: S101 - chosen by its type
    return materialize(
        spark,
        pipeline.source.format_options(),
        tables=target.tables,
        checkpoint=pipeline.checkpoint,
        schemas=target.schemas,
        history=target.history,
        table_format=target.format,
        trigger=spark_trigger(pipeline.trigger),
    )


def _start_project(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    from headwater.spark.jobs.project import project  # noqa: PLC0415 - of this job alone

    target = pipeline.target
    assert isinstance(target, Project)  # noqa: S101 - chosen by its type
    return project(
        spark,
        pipeline.source.format_options(),
        tables=target.tables,
        checkpoint=pipeline.checkpoint,
        table_format=target.format,
        publish=target.publish,
        grace_seconds=target.grace_seconds,
        trigger=spark_trigger(pipeline.trigger),
    )


def _start_archive(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    from headwater.spark.jobs.archive import archive  # noqa: PLC0415 - of this job alone

    target = pipeline.target
    assert isinstance(target, Archive)  # noqa: S101 - chosen by its type
    return archive(
        spark,
        pipeline.source.format_options(),
        folder=target.folder,
        checkpoint=pipeline.checkpoint,
        trigger=spark_trigger(pipeline.trigger),
    )


def _run_restore(spark: SparkSession, pipeline: Pipeline) -> Struct:
    from headwater.spark.jobs.restore import restore  # noqa: PLC0415 - of this job alone

    target = pipeline.target
    assert isinstance(target, Restore)  # noqa: S101 - chosen by its type
    return restore(
        spark,
        folder=target.folder,
        url=target.url,
        stream=target.stream,
        close=target.close,
        missing_start=target.missing_start,
        token=target.token,
        headers=target.headers,
    )


def _run_snapshot(spark: SparkSession, pipeline: Pipeline) -> Struct:
    from headwater.spark.jobs.snapshot import snapshot  # noqa: PLC0415 - of this job alone

    target = pipeline.target
    assert isinstance(target, Snapshot)  # noqa: S101 - chosen by its type
    return snapshot(spark, pipeline.source.format_options(), target=target.stream)


def _run_publish(spark: SparkSession, pipeline: Pipeline) -> Struct:
    from headwater.spark.jobs.publish import publish  # noqa: PLC0415 - of this job alone

    target = pipeline.target
    assert isinstance(target, Publish)  # noqa: S101 - chosen by its type
    rows = transformed(spark, rows_now(spark, pipeline.source), pipeline.transform)
    options = {name: one for name, one in target.request_options().items() if name != "url"}
    return publish(
        spark,
        rows,
        url=target.url,
        stream=target.stream,
        type=target.type,
        key=target.key,
        value=target.columns or None,
        deletes=target.deletes,
        state=f"{pipeline.checkpoint}/state",
        writer=pipeline.name,
        options=options,
    )


_STARTS: Final[dict[type[Any], Callable[[SparkSession, Pipeline], StreamingQuery]]] = {
    StreamTarget: _start_stream,
    TableTarget: _start_table,
    Materialize: _start_materialize,
    Project: _start_project,
    Archive: _start_archive,
}
_JOBS: Final[dict[type[Any], Callable[[SparkSession, Pipeline], Struct]]] = {
    Restore: _run_restore,
    Snapshot: _run_snapshot,
    Publish: _run_publish,
}
