"""Reading once: `spark.read.format("headwater")`."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headwater.spark.columns import Columns
from headwater.spark.filters import leave_range, leave_stream, types_left
from headwater.spark.options import SourceOptions
from headwater.spark.planning import Planner
from headwater.spark.ranges import Range, pack, piece_bytes
from headwater.spark.reading import Ranges, read_ranges


class BatchReader(DataSourceReader):
    """Reads streams as they are now, or up to the offsets that were chosen."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.columns = Columns.of(options, schema)
        self.filters: list[Filter] = []
        """What Spark is going to apply to the rows."""

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self.options)
        try:
            planner.look_once()
            planner.require_named()
            planner.require_order()
            ranges = [
                Range(path, planner.starting(path), planner.ending(path))
                for path in sorted(planner.tails)
                if leave_stream(self.filters, path)
            ]
            size = piece_bytes(sum(each.bytes for each in ranges), self.options.split_bytes)
            pieces: list[Range] = []
            for each in ranges:
                pieces += planner.pieces(each.stream, each.start, each.end, size)
        finally:
            planner.close()
        pieces = [each for each in pieces if leave_range(self.filters, each)]
        return [Ranges(packed) for packed in pack(pieces, size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Ranges):  # Spark makes up an empty one where there are none
            yield from read_ranges(self.options, self.columns, partition)


class FilteringReader(BatchReader):
    """Reads what the filters of a query leave.

    Spark 4.3 may show that to another query over the same DataFrame, so one has to ask for this
    reader: see docs/decisions/0033.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.filters = filters
        types = types_left(filters)
        if self.columns.mode == "state" and types is not None:
            known = self.columns.types
            self.columns = structs.replace(
                self.columns, types=types if known is None else types & known
            )
        return filters
