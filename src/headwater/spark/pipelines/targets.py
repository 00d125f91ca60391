"""From a pipeline to what Spark runs: a streaming query, or a job that ends by itself."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headwater.spark.pipelines.building import streaming_query_rows
from headwater.spark.pipelines.triggers import spark_trigger
from headwater.spark.pipelines.values import Pipeline, StreamTarget, TableTarget, as_text


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


_STARTS: Final[dict[type[Any], Callable[[SparkSession, Pipeline], StreamingQuery]]] = {
    StreamTarget: _start_stream,
    TableTarget: _start_table,
}
_JOBS: Final[dict[type[Any], Callable[[SparkSession, Pipeline], Struct]]] = {}
