"""What a task does: read its ranges from the server, and yield Arrow record batches."""

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headwater.client import Client
from headwater.errors import OffsetGone, StreamGone, StreamLost, StreamNotFound
from headwater.spark.columns import Columns
from headwater.spark.options import SourceOptions
from headwater.spark.ranges import Range

log: Final = logging.getLogger("headwater.spark")


class Ranges(InputPartition):
    """The ranges of one task, in the order in which its rows come."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_ranges(
    options: SourceOptions, columns: Columns, partition: Ranges
) -> Iterator[pa.RecordBatch]:
    """Read the ranges of a partition, one after another."""
    rows = _read_all(options, columns, partition)
    if options.packing is None:
        return rows
    # It brings the tables' own libraries, which other tasks can do without.
    from headwater.spark.transforms.changes import (  # noqa: PLC0415 - said above
        Packing,
        packed_changes,
    )

    return packed_changes(rows, Packing.parse(options.packing))


def _read_all(
    options: SourceOptions, columns: Columns, partition: Ranges
) -> Iterator[pa.RecordBatch]:
    with options.server.client() as client:
        for piece in partition.ranges:
            try:
                yield from _read(client, columns, piece)
            except (StreamNotFound, StreamGone, OffsetGone) as gone:
                what = "was deleted and created again"
                what = what if isinstance(gone, OffsetGone) else "was deleted"
                lost = StreamLost(piece.stream, piece.start, what)
                if options.fail_on_data_loss:
                    raise lost from gone
                log.warning("stream lost stream=%s offset=%s", piece.stream, piece.start)


def _read(client: Client, columns: Columns, piece: Range) -> Iterator[pa.RecordBatch]:
    for batch in client.stream(piece.stream).read(piece.start, until=piece.end):
        for rows in columns.batches(batch, piece):
            if rows.num_rows:
                yield rows
