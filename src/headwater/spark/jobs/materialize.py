"""State streams into tables: the current state of each type, its history, and what did not fit."""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headwater.errors import BadOption
from headwater.spark.jobs.materializing import Materializing
from headwater.spark.packing import OBSERVED
from headwater.spark.tables import FORMATS
from headwater.spark.tables.files import folder_uri
from headwater.spark.tables.table import BUCKETS
from headwater.spark.transforms.changes import Packing
from headwater.spark.transforms.state import read_schema

Trigger = Mapping[str, Any]
"""The keyword arguments of `DataStreamWriter.trigger`."""

_NOTES: Final = "headwater-materialize"
_OURS: Final = frozenset({"mode", "valuetype", "oncorrupt", "packing"})
"""How messages are read is up to the job: as they are, and by the rules of state streams."""


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
    read = {type_: read_schema(f"schemas.{type_}", each) for type_, each in (schemas or {}).items()}
    if any(name.lower() == "types" for name in source):
        raise BadOption("types", "there are tables of all types: remove it")
    options = {name: each for name, each in source.items() if name.lower() not in _OURS}
    options["packing"] = Packing.of(BUCKETS, read).text
    if table_format not in FORMATS:
        raise BadOption("format", f"{table_format!r} is none of {', '.join(FORMATS)}")
    checkpoint = folder_uri(checkpoint, "checkpoint")  # Spark's own folder may be another one
    job = Materializing(
        source=options,
        tables=folder_uri(tables, "tables"),
        notes=f"{checkpoint.rstrip('/')}/{_NOTES}",
        schemas=read,
        history=history,
        table_format=table_format,
    )
    changes = spark.readStream.format("headwater").options(**options).load()
    # Spark counts the rows that it got, each of which stands for many messages.
    counts = (f.sum("messages").alias("rows"), f.sum("aside").alias("aside"))
    counted = changes.observe(OBSERVED, *counts)
    query = counted.writeStream.foreachBatch(job.take)
    query = query.option("checkpointLocation", checkpoint)
    return (query.trigger(**trigger) if trigger else query).start()
