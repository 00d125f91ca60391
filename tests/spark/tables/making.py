"""Tables of keys and numbers, made and looked at."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headwater.spark.tables import Merged, Table
from headwater.spark.tables.delta import DeltaLog
from headwater.spark.tables.manifest import ManifestLog

SCHEMA = StructType().add("key", "string").add("n", "long")


def log_of(folder: str, kind: str) -> DeltaLog | ManifestLog:
    return DeltaLog(folder) if kind == "delta" else ManifestLog(folder)


def greatest(old: pa.Table, new: pa.Table) -> Merged:
    """Keep the greatest number of each key; a negative one removes it."""
    rows = pa.concat_tables([old, new.cast(old.schema)])
    kept = rows.group_by("key").aggregate([("n", "max")]).rename_columns(["key", "n"])
    return Merged(kept.filter(pc.greater_equal(kept.column("n"), 0)))


def rows(spark: SparkSession, *items: tuple[str, int]) -> DataFrame:
    return spark.createDataFrame(list(items), SCHEMA)


def shown(made: Table, spark: SparkSession) -> list[tuple[Any, ...]]:
    found = made.read(spark)
    assert found is not None
    return sorted(tuple(row) for row in found.collect())
