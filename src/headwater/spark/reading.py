"""What a task does: read its ranges from the server, and yield Arrow record batches."""

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headwater.client import Client
from headwater.errors import RequestRefused, StreamLost
from headwater.spark.columns import Columns
from headwater.spark.options import SourceOptions
from headwater.spark.planning import what_was_lost
from headwater.spark.ranges import Range, byte_of

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
            except StreamLost as lost:
                if options.fail_on_data_loss:
                    raise
                log.warning("stream lost stream=%s offset=%s", piece.stream, lost.offset)


def _read(client: Client, columns: Columns, piece: Range) -> Iterator[pa.RecordBatch]:
    reached = piece.start
    try:
        for batch in client.stream(piece.stream).read(piece.start, until=piece.end):
            for rows in columns.batches(batch, piece):
                if rows.num_rows:
                    yield rows
            reached = batch.next_offset
    except RequestRefused as refused:
        what = what_was_lost(refused)
        if what is None:
            raise
        raise StreamLost(piece.stream, reached, what) from refused
    if byte_of(reached) < byte_of(piece.end):
        raise StreamLost(piece.stream, reached, "has become shorter")
