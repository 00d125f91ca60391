"""Tables of Parquet files behind a log: written by executors, committed by the driver, once."""

from headwater.spark.tables.foreign import holds_table, read_table
from headwater.spark.tables.log import DataFile, Log
from headwater.spark.tables.merging import Finish, Merge, Merged
from headwater.spark.tables.table import FORMATS, Table, open_table

__all__ = [
    "FORMATS",
    "DataFile",
    "Finish",
    "Log",
    "Merge",
    "Merged",
    "Table",
    "holds_table",
    "open_table",
    "read_table",
]
