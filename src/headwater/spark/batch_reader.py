"""Reading once: `spark.read.format("headwater")`."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.spark.columns import Columns
from headwater.spark.options import SourceOptions
from headwater.spark.planning import Planner
from headwater.spark.ranges import Range, pack, piece_bytes
from headwater.spark.reading import Ranges, read_ranges


class BatchReader(DataSourceReader):
    """Reads streams as they are now, or up to the offsets that were chosen.

    It takes no filters from Spark, which would mix them up: see docs/decisions/0033.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.columns = Columns.of(options, schema)

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self.options)
        try:
            planner.look_once()
            planner.require_named()
            ranges = [
                Range(path, planner.starting(path), planner.ending(path))
                for path in sorted(planner.tails)
            ]
            size = piece_bytes(sum(each.bytes for each in ranges), self.options.split_bytes)
            pieces: list[Range] = []
            for each in ranges:
                pieces += planner.pieces(each.stream, each.start, each.end, size)
        finally:
            planner.close()
        return [Ranges(packed) for packed in pack(pieces, size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Ranges):  # Spark makes up an empty one where there are none
            yield from read_ranges(self.options, self.columns, partition)
