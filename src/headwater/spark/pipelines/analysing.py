"""What only Spark can find wrong with a pipeline, before it runs.

It analyses each transform over streams that match nothing, and can start the whole query once over
them, which finds what can't be done in a stream.
"""

import tempfile
from collections.abc import Collection, Iterator
from typing import Final
from uuid import uuid4

from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headwater.errors import BadOption, BadPipeline, HeadwaterError
from headwater.spark.columns import Columns, default_schema
from headwater.spark.options import SourceOptions, sink_options, source_options
from headwater.spark.pipelines.building import apply, rows_now, streaming_rows, transformed
from headwater.spark.pipelines.failures import named_reason_of, reason_of
from headwater.spark.pipelines.problems import Problem, are_fatal, is_known
from headwater.spark.pipelines.rules import view_names
from headwater.spark.pipelines.table_columns import unfit_columns
from headwater.spark.pipelines.values import (
    JOBS,
    SOURCE_VIEW,
    Materialize,
    Pipeline,
    Publish,
    Restore,
    Source,
    SparkTarget,
    StreamTarget,
    TableTarget,
)
from headwater.spark.sink import Encoder
from headwater.spark.transforms.comparing import column_complaints
from headwater.spark.transforms.state import read_schema

_NOTHING: Final = f"headwater-check/{uuid4().hex}"
"""A path at which nobody has anything."""
_DRY_SECONDS: Final = 60


def with_spark(
    spark: SparkSession, pipeline: Pipeline, *, dry_run: bool, wrong: Collection[str] = ()
) -> list[Problem]:
    """Have Spark look at schemas and transforms; with `dry_run` also start the query once.

    `wrong` are places of which a problem is known: what builds on them is not looked at.
    """
    problems: list[Problem] = []
    if isinstance(pipeline.target, Materialize):
        problems += _schemas(spark, pipeline.target)
    if isinstance(pipeline.target, (*JOBS, Restore)) and "target" not in wrong:
        return problems
    is_target_known = is_known("target", wrong)
    if isinstance(pipeline.target, SparkTarget) and is_target_known:
        problems += _format(spark, pipeline.target)
    made = _analysed(spark, pipeline, wrong, problems)
    if made is not None and is_target_known:
        problems += _written(pipeline, made.schema)
        if dry_run and not are_fatal(problems) and not isinstance(pipeline.target, Publish):
            problems += _dry(spark, pipeline)
    return problems


def _schemas(spark: SparkSession, target: Materialize) -> Iterator[Problem]:
    for name, ddl in target.schemas.items():
        try:
            read_schema(f"schemas.{name}", spark.createDataFrame([], ddl).schema)
        except (BadOption, PySparkException, ValueError) as error:
            yield Problem(f"target.schemas.{name}", reason_of(error))


def _analysed(
    spark: SparkSession, pipeline: Pipeline, wrong: Collection[str], problems: list[Problem]
) -> DataFrame | None:
    """Put the source's columns through the transforms, as far as that goes."""
    rows = _source_rows(spark, pipeline, wrong, problems)
    if rows is None or "transform" in wrong:
        return None
    rows.createOrReplaceTempView(SOURCE_VIEW)
    views = view_names(pipeline.transform)
    for number, (step, view) in enumerate(zip(pipeline.transform, views, strict=True), 1):
        if not is_known(f"transform {number}", wrong):
            return None
        kind = "sql" if step.sql is not None else "python"
        try:
            rows = apply(spark, rows, step)
            rows.schema  # noqa: B018 - Connect analyses it when asked
        except Exception as error:  # noqa: BLE001 - a transform is the user's program
            problems.append(Problem(f"transform {number}.{kind}", named_reason_of(error)))
            return None
        rows.createOrReplaceTempView(view)
    return rows


def _source_rows(
    spark: SparkSession, pipeline: Pipeline, wrong: Collection[str], problems: list[Problem]
) -> DataFrame | None:
    """Give rows of the source's columns, and none of its streams; None where they are not known."""
    source = pipeline.source
    where = "source.table" if source.table is not None else "source.schema"
    if not is_known(where, wrong):
        return None
    try:
        if source.table is not None:
            return rows_now(spark, source)
        given = None if source.schema is None else _empty(spark, source.schema)
        options = _usable_options(source, wrong)
        if options is None:
            return given
        if given is not None:
            Columns.of(options, given.schema)
        if isinstance(pipeline.target, Publish):
            return _empty(spark, default_schema(options)) if given is None else given
        where = "source"
        return streaming_rows(spark, _of_nothing(source))
    except BadPipeline as error:
        problems.extend(problem for problem in error.problems if isinstance(problem, Problem))
    except (PySparkException, HeadwaterError, ValueError) as error:
        problems.append(Problem(where, reason_of(error)))
    return None


def _usable_options(source: Source, wrong: Collection[str]) -> SourceOptions | None:
    """Read the options; None where something is wrong with them, which the rules have told."""
    if not (is_known("source.mode", wrong) and is_known("source.options", wrong)):
        return None
    try:
        return source_options(_of_nothing(source).format_options())
    except BadOption:
        return None


def _empty(spark: SparkSession, schema: str | StructType) -> DataFrame:
    return spark.createDataFrame([], schema)


def _of_nothing(source: Source) -> Source:
    """Read the source from streams that are not there."""
    options = {  # offsets are of the streams that were named
        name: each for name, each in source.options.items() if name.lower() != "startingoffsets"
    }
    return replace(source, stream=_NOTHING, options=options)


def _written(pipeline: Pipeline, schema: StructType) -> Iterator[Problem]:
    """Have the target look at the columns that it gets."""
    if isinstance(pipeline.target, Publish):
        columns, value = pipeline.target.columns, pipeline.target.value
        places = {"key": "target.key", "value": "target.value" if value else "target.columns"}
        for argument, what in column_complaints(schema, pipeline.target.key, value or columns):
            yield Problem(places[argument], what)
    if isinstance(pipeline.target, StreamTarget):
        try:
            Encoder(sink_options(pipeline.target.format_options()), schema)
        except HeadwaterError as error:
            yield Problem("target", reason_of(error))
    if isinstance(pipeline.target, TableTarget):
        yield from unfit_columns(pipeline.target, schema)
    if isinstance(pipeline.target, SparkTarget):
        for name in pipeline.target.partition_by:
            yield from _column("target.partition_by", name, schema)


def _column(where: str, name: str, schema: StructType) -> Iterator[Problem]:
    if name not in schema.fieldNames():
        there = ", ".join(schema.fieldNames())
        yield Problem(where, f"there is no column '{name}'; there are {there}")


def _format(spark: SparkSession, target: SparkTarget) -> Iterator[Problem]:
    """Look whether the session has a format, by reading what is not there."""
    try:
        spark.read.format(target.format).load(_NOTHING).schema  # noqa: B018 - Connect looks when asked
    except Exception as error:  # noqa: BLE001 - Spark raises many kinds, and one of them says so
        if "DATA_SOURCE_NOT_" in str(error):
            what = (
                f"this Spark has no format '{target.format}': give it the package that holds it "
                "(jars or jars.packages under [spark])"
            )
            yield Problem("target.format", what)


def _dry(spark: SparkSession, pipeline: Pipeline) -> Iterator[Problem]:
    """Start the query over streams that are not there, into nothing, with its own checkpoint."""
    nothing = _of_nothing(pipeline.source)
    output = getattr(pipeline.target, "output", "append")
    with tempfile.TemporaryDirectory(prefix="headwater-check-") as folder:
        try:
            rows = transformed(spark, streaming_rows(spark, nothing), pipeline.transform)
            writer = rows.writeStream.format("noop").outputMode(output)
            query = writer.trigger(availableNow=True).option("checkpointLocation", folder).start()
            if not query.awaitTermination(_DRY_SECONDS):
                query.stop()
        except Exception as error:  # noqa: BLE001 - a transform is the user's program
            yield Problem("query", named_reason_of(error))
