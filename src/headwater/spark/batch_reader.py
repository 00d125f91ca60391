"""Reading once: `spark.read.format("headwater")`."""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from headwater.spark.columns import Columns
from headwater.spark.options import SourceOptions
from headwater.spark.planning import Planner
from headwater.spark.ranges import Pruning, Range, pack
from headwater.spark.reading import Ranges, read_ranges

_NO_PRUNING: Final = Pruning()


class BatchReader(DataSourceReader):
    """Reads streams as they are now, or up to the offsets that were chosen."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.columns = Columns.of(options, schema)
        self.pruning = _NO_PRUNING

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self.options)
        try:
            planner.look()
            planner.require_named()
            pieces: list[Range] = []
            for path in sorted(planner.tails):
                if self.pruning.wants_stream(path):
                    start, end = planner.starting(path), planner.ending(path)
                    pieces += filter(self.pruning.wants, planner.pieces(path, start, end))
        finally:
            planner.close()
        return [Ranges(packed) for packed in pack(pieces, self.options.split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Ranges):  # Spark makes up an empty one where there are none
            yield from read_ranges(self.options, self.columns, self.pruning, partition)


class PruningBatchReader(BatchReader):
    """Leaves out streams, pieces and types that filters rule out; Spark filters the rest."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.pruning = prune(filters)
        return filters


def prune(filters: Iterable[Filter]) -> Pruning:
    """Find what filters on stream, offset and type rule out."""
    streams: list[frozenset[str]] = []
    prefixes: list[str] = []
    types: frozenset[str] | None = None
    behind, upto = "", None
    for given in filters:
        match given:
            case EqualTo(("stream",), str(value)):
                streams.append(frozenset({value}))
            case In(("stream",), values):
                streams.append(frozenset(values))
            case StringStartsWith(("stream",), value):
                prefixes.append(value)
            case EqualTo(("type",), str(value)):
                types = frozenset({value}) if types is None else types & {value}
            case In(("type",), values):
                types = frozenset(values) if types is None else types & frozenset(values)
            case GreaterThan(("offset",), str(value)) | GreaterThanOrEqual(("offset",), str(value)):
                behind = max(behind, value)
            case LessThan(("offset",), str(value)) | LessThanOrEqual(("offset",), str(value)):
                upto = value if upto is None else min(upto, value)
            case EqualTo(("offset",), str(value)):
                behind = max(behind, value)
                upto = value if upto is None else min(upto, value)
            case _:
                pass
    return Pruning(tuple(streams), tuple(prefixes), behind, upto, types)
