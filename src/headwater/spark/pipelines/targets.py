"""From a pipeline to what Spark runs: a streaming query, or a job that ends by itself."""

from collections.abc import Mapping
from functools import singledispatch

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headwater.spark.pipelines.building import rows_now, streaming_query_rows, transformed
from headwater.spark.pipelines.progress import sized
from headwater.spark.pipelines.triggers import limited, spark_trigger
from headwater.spark.pipelines.values import (
    Archive,
    Materialize,
    Pipeline,
    Project,
    Publish,
    Restore,
    Snapshot,
    SparkTarget,
    StreamTarget,
    TableTarget,
    Target,
    as_text,
)
from headwater.spark.pipelines.watching import Watch
from headwater.spark.ranges import byte_of


def start(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    """Start the streaming query of a pipeline, from its checkpoint on."""
    return _started(pipeline.target, spark, limited(pipeline))


def run_bounded(spark: SparkSession, pipeline: Pipeline, watch: Watch) -> Struct:
    """Run a job that ends by itself, or where `watch` ends it, and give what it tells."""
    return _done(pipeline.target, spark, pipeline, watch)


@singledispatch
def _started(target: Target, spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    raise TypeError(f"'{pipeline.kind}' is no streaming query")


@singledispatch
def _done(target: Target, spark: SparkSession, pipeline: Pipeline, watch: Watch) -> Struct:
    raise TypeError(f"'{pipeline.kind}' does not end by itself")


@_started.register
def _stream(target: StreamTarget, spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    options = target.format_options()
    writer = streaming_query_rows(spark, pipeline).writeStream
    if target.output == "update":
        # Spark has no updates for sinks in Python; the same rows are written batch by batch.
        write = WriteBatch(options, pipeline.checkpoint)
        return _begin(writer.outputMode("update").foreachBatch(write), pipeline)
    return _begin(writer.format("headwater").options(**options), pipeline)


@_started.register
def _table(target: TableTarget, spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    append = AppendBatch(target.folder, target.format, pipeline.checkpoint)
    writer = streaming_query_rows(spark, pipeline).writeStream.foreachBatch(append)
    return _begin(writer, pipeline)


@_started.register
def _spark(target: SparkTarget, spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    writer = streaming_query_rows(spark, pipeline).writeStream.format(target.format)
    writer = writer.outputMode(target.output)
    writer = writer.options(**{name: as_text(value) for name, value in target.options.items()})
    if target.partition_by:
        writer = writer.partitionBy(*target.partition_by)
    ready = _ready(writer, pipeline)
    if target.table is not None:
        return ready.toTable(target.table)
    return ready.start(target.folder)


def _begin(writer: DataStreamWriter, pipeline: Pipeline) -> StreamingQuery:
    return _ready(writer, pipeline).start()


def _ready(writer: DataStreamWriter, pipeline: Pipeline) -> DataStreamWriter:
    from headwater.spark.tables.files import folder_uri  # noqa: PLC0415 - as tables are, below

    trigger = spark_trigger(pipeline.trigger)
    if trigger:
        writer = writer.trigger(**trigger)
    named = writer.queryName(pipeline.name)
    return named.option("checkpointLocation", folder_uri(pipeline.checkpoint))


class WriteBatch:
    """Writes each batch to streams, once: under the id of the query and the number of the batch."""

    def __init__(self, options: Mapping[str, str], checkpoint: str) -> None:
        self.options = dict(options)
        self.checkpoint = checkpoint

    def __call__(self, rows: DataFrame, batch: int) -> None:
        from headwater.spark.queries import query_id  # noqa: PLC0415 - only updates need it

        writer = rows.write.format("headwater").mode("append").options(**self.options)
        writer.options(writeId=query_id(self.checkpoint), batchId=str(batch)).save()


class AppendBatch:
    """Adds each batch to a table; where Spark calls it, a replayed one is found there."""

    def __init__(self, folder: str, table_format: str, checkpoint: str) -> None:
        self.folder = folder
        self.table_format = table_format
        self.checkpoint = checkpoint

    def __call__(self, rows: DataFrame, batch: int) -> None:
        from headwater.spark.queries import query_id  # noqa: PLC0415 - only tables need Delta
        from headwater.spark.tables import open_table  # noqa: PLC0415 - only tables need Delta

        table = open_table(self.folder, self.table_format)
        # Spark gives every batch, so the one before is in the table.
        table.append(rows, writer=query_id(self.checkpoint), batch=batch, after=batch - 1)


@_started.register
def _materialize(target: Materialize, spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    from headwater.spark.jobs.materialize import materialize  # noqa: PLC0415 - of this job alone

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


@_started.register
def _project(target: Project, spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    from headwater.spark.jobs.project import project  # noqa: PLC0415 - of this job alone

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


@_started.register
def _archive(target: Archive, spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    from headwater.spark.jobs.archive import archive  # noqa: PLC0415 - of this job alone

    return archive(
        spark,
        pipeline.source.format_options(),
        folder=target.folder,
        checkpoint=pipeline.checkpoint,
        trigger=spark_trigger(pipeline.trigger),
    )


@_done.register
def _restore(target: Restore, spark: SparkSession, pipeline: Pipeline, watch: Watch) -> Struct:
    from headwater.spark.jobs.restore import restore  # noqa: PLC0415 - of this job alone

    return restore(
        spark,
        folder=target.folder,
        url=target.url,
        stream=target.stream,
        until=target.until,
        incarnation=target.incarnation,
        close=target.close,
        verify=target.verify,
        missing_start=target.missing_start,
        token=target.token,
        headers=target.headers,
        begun=lambda sizes: watch.filling({path: (0, size) for path, size in sizes.items()}),
    )


@_done.register
def _snapshot(target: Snapshot, spark: SparkSession, pipeline: Pipeline, watch: Watch) -> Struct:
    from headwater.spark.jobs.snapshot import snapshot  # noqa: PLC0415 - of this job alone

    return snapshot(
        spark,
        pipeline.source.format_options(),
        target=target.stream,
        begun=lambda begin: watch.filling({target.stream: (byte_of(begin), None)}),
        reading=lambda what, size: watch.begin(f"looking for {what} in {sized(size)}"),
    )


@_done.register
def _publish(target: Publish, spark: SparkSession, pipeline: Pipeline, watch: Watch) -> Struct:
    from headwater.spark.jobs.publish import publish  # noqa: PLC0415 - of this job alone

    rows = transformed(spark, rows_now(spark, pipeline.source), pipeline.transform)
    watch.check()
    options = {name: one for name, one in target.request_options().items() if name != "url"}
    return publish(
        spark,
        rows,
        url=target.url,
        stream=target.stream,
        type=target.type,
        key=target.key,
        value=target.value or target.columns or None,
        deletes=target.deletes,
        state=f"{pipeline.checkpoint}/state",
        writer=pipeline.name,
        options=options,
        told=watch.sent,
    )
