"""From a pipeline's source and transforms to a DataFrame."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from headwater.errors import BadPipeline
from headwater.spark.pipelines.file import module_at
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.rules import view_names
from headwater.spark.pipelines.values import SOURCE_VIEW, Pipeline, Source, Transform

Function: TypeAlias = Callable[[DataFrame], DataFrame]


def streaming_rows(spark: SparkSession, source: Source) -> DataFrame:
    """Read the source's streams on and on."""
    reader = spark.readStream.format("headwater").options(**source.format_options())
    return (reader.schema(source.schema) if source.schema else reader).load()


def rows_now(spark: SparkSession, source: Source) -> DataFrame:
    """Read the source as it is now: its streams, or its table."""
    if source.table is not None:
        from headwater.spark.tables import read_table  # noqa: PLC0415 - only tables need Delta

        rows = read_table(spark, source.table, source.format)
        if rows is None:
            raise BadPipeline("with a table", [no_table(source)])
        return rows
    reader = spark.read.format("headwater").options(**source.format_options())
    return (reader.schema(source.schema) if source.schema else reader).load()


def no_table(source: Source) -> Problem:
    """Tell of a table that is not there."""
    what = (
        f"there is no table at {source.table} of format {source.format}: run what writes it first, "
        "or set its format"
    )
    return Problem("source.table", what)


def transformed(spark: SparkSession, rows: DataFrame, transforms: Sequence[Transform]) -> DataFrame:
    """Put rows through the transforms, in their order."""
    rows.createOrReplaceTempView(SOURCE_VIEW)
    for step, view in zip(transforms, view_names(transforms), strict=True):
        rows = apply(spark, rows, step)
        rows.createOrReplaceTempView(view)
    return rows


def apply(spark: SparkSession, rows: DataFrame, step: Transform) -> DataFrame:
    """Put rows through one transform."""
    if step.sql is not None:
        return spark.sql(step.sql)
    made = function_of(step)(rows)
    # Connect has a class of its own, which is none of `pyspark.sql.DataFrame`'s heirs.
    if not hasattr(made, "createOrReplaceTempView"):
        raise TypeError(f"it gives {type(made).__name__}, and has to give a DataFrame")
    return made


def find_source(place: str) -> bool:
    """Tell whether a module is there; it is not run, since it may need a session for that."""
    if place.endswith(".py"):
        return Path(place).is_file()
    return importlib.util.find_spec(place) is not None


def function_of(step: Transform) -> Function:
    """Import the function of a transform; whatever its module raises comes out."""
    place, _, name = (step.python or "").rpartition(":")
    if place.endswith(".py"):
        module = module_at(Path(place))
        # Executors can't import a file that is only here: what it defines travels with the query.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # Spark's copy
    else:
        module = importlib.import_module(place)
    function: Function | None = getattr(module, name, None)
    if function is None or not callable(function):
        raise ImportError(f"{place} has no function '{name}'")
    return function


def streaming_query_rows(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Give the rows that a streaming pipeline writes."""
    return transformed(spark, streaming_rows(spark, pipeline.source), pipeline.transform)
