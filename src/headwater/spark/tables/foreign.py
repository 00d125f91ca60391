"""Tables as they are found: ours, and those that something else has made, which are only read.

Delta is read by tasks with Arrow, a file each: Spark has no Delta in its wheel, and the values of
partitions are in the log alone. Plain Parquet is read by Spark where it can, which knows the files
that a query of its own has committed.
"""

import pickle
from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.errors import TableUnreadable
from headwater.spark.tables.delta import LOG_FOLDER, foreign_delta
from headwater.spark.tables.files import file_system, fitted, folder_uri, is_object_storage
from headwater.spark.tables.table import open_table

_NOTHING_THERE: Final = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})


def read_table(spark: SparkSession, folder: str, table_format: str = "delta") -> DataFrame | None:
    """Read the table in a folder as it is now, whoever has made it; None where there is none."""
    found = foreign_delta(folder) if table_format == "delta" else None
    if found is not None:
        return _scanned(spark, found)
    rows = open_table(folder, table_format).read(spark)
    return _plain(spark, folder) if rows is None and table_format == "parquet" else rows


def holds_table(folder: str, table_format: str = "delta") -> bool:
    """Tell whether there is a table in a folder, which takes no Spark."""
    if table_format == "delta" and foreign_delta(folder) is not None:
        return True
    if open_table(folder, table_format).exists:
        return True
    return table_format == "parquet" and _holds_files(folder)


def _holds_files(folder: str) -> bool:
    system, root = file_system(folder)
    _refuse_delta(folder)
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    # Spark reads no file whose name begins like these.
    return any(each.is_file and not each.base_name.startswith(("_", ".")) for each in found)


def _plain(spark: SparkSession, folder: str) -> DataFrame | None:
    """Read a folder of Parquet files, whose folders may name values as Hive's do."""
    _refuse_delta(folder)
    system, root = file_system(folder)
    if is_object_storage(system):
        read = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
        try:
            found = ds.dataset(root, filesystem=system, format=read, partitioning="hive")
        except FileNotFoundError:
            return None
        return _scanned(spark, found) if found.files else None
    try:
        rows = spark.read.parquet(folder_uri(folder))
        rows.schema  # noqa: B018 - Connect looks when asked
    except AnalysisException as error:
        if error.getCondition() in _NOTHING_THERE:
            return None
        raise
    return rows


def _refuse_delta(folder: str) -> None:
    """Refuse a folder whose log is not asked: files that have left the table are in it, too."""
    system, root = file_system(folder)
    if system.get_file_info(f"{root}/{LOG_FOLDER}").type == fs.FileType.Directory:
        raise TableUnreadable(folder, "it is a Delta table. Set its format to delta.")


def _scanned(spark: SparkSession, found: ds.Dataset) -> DataFrame:
    """Have each file read by a task, with the values that its place in the table gives it."""
    schema = from_arrow_schema(found.schema)
    parts = [(pickle.dumps(part),) for part in found.get_fragments()]
    if not parts:
        return spark.createDataFrame([], schema)
    given = to_arrow_schema(schema, timezone="UTC")
    read = partial(_read_parts, found=found.schema, given=given)
    listed = spark.createDataFrame(parts, "part binary").repartition(len(parts))
    return listed.mapInArrow(read, schema)


def _read_parts(
    batches: Iterator[pa.RecordBatch], *, found: pa.Schema, given: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for part in batch.column(0).to_pylist():
            for piece in pickle.loads(part).to_batches(schema=found):  # noqa: S301 - our driver's
                yield from fitted(pa.Table.from_batches([piece]), given).to_batches()
