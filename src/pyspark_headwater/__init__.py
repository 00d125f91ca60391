"""How Spark finds the format `headwater` without registration: it looks for `pyspark_*` modules."""

from headwater.spark.source import HeadwaterDataSource as DefaultSource

__all__ = ["DefaultSource"]
