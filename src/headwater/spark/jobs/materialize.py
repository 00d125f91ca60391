"""State streams into tables: the current state of each type, its history, and what did not fit."""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headwater.errors import BadOption
from headwater.spark.jobs.materializing import ROWS, Materializing
from headwater.spark.messages import shape_of_values
from headwater.spark.tables import FORMATS

Trigger = Mapping[str, Any]
"""The keyword arguments of `DataStreamWriter.trigger`."""

_NOTES: Final = "headwater-materialize"


def materialize(
    spark: SparkSession,
    source: Mapping[str, str],
    *,
    tables: str,
    checkpoint: str,
    schemas: Mapping[str, str | StructType] | None = None,
    history: bool = True,
    table_format: str = "delta",
    trigger: Trigger | None = None,
) -> StreamingQuery:
    """Keep tables of what state streams hold: start the query that does it.

    `tables/<type>` is the current state, `tables/<type>_history` every version of it, and
    `tables/_quarantine` what was kept aside. A type without a schema has its values as JSON.
    """
    options = {name: value for name, value in source.items() if name.lower() != "mode"}
    if table_format not in FORMATS:
        raise BadOption("format", f"{table_format!r} is none of {', '.join(FORMATS)}")
    job = Materializing(
        source=options,
        tables=tables.rstrip("/"),
        notes=f"{checkpoint.rstrip('/')}/{_NOTES}",
        schemas={type_: parsed(type_, each) for type_, each in (schemas or {}).items()},
        history=history,
        table_format=table_format,
    )
    rows = spark.readStream.format("headwater").options(**options, mode="state").schema(ROWS)
    query = rows.load().writeStream.foreachBatch(job.take)
    query = query.option("checkpointLocation", checkpoint)
    return (query.trigger(**trigger) if trigger else query).start()


def parsed(type_: str, schema: str | StructType) -> StructType:
    """Read the schema of a type, and refuse what JSON values can't be read as."""
    if isinstance(schema, str):
        try:
            schema = StructType.fromDDL(schema)
        except PySparkException as error:
            raise BadOption(f"schemas.{type_}", f"it is no schema ({error})") from None
    shape_of_values(schema)
    return schema
