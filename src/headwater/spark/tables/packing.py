"""Many rows as one: what Spark only carries from one Python function to another.

A row costs Spark more than its bytes: it is taken out of Arrow, hashed, shuffled and put into Arrow
again. Rows that are sorted into buckets where they are made, and go on as one value for each
bucket, cost their bytes alone. Such a DataFrame has the columns `_bucket` and `_rows`.
"""

from collections.abc import Iterator
from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from headwater.spark.packing import PACKED

_OPTIONS: Final = ipc.IpcWriteOptions(compression="lz4")


def packed(rows: pa.Table, key: str, buckets: int) -> Iterator[tuple[int, bytes]]:
    """Part rows into buckets by the text of a column, each as one value."""
    keys = rows.column(key).cast(pa.binary()).to_pylist()
    sums = np.fromiter(map(crc32, keys), np.uint32, len(keys))
    places = pa.array((sums % buckets).astype(np.int32))
    order = pc.sort_indices(places)
    rows, places = rows.take(order), places.take(order)
    runs = pc.run_end_encode(places)
    start = 0
    for bucket, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
            writer.write_table(rows.slice(start, end - start))
        yield bucket, sink.getvalue().to_pybytes()
        start = end


def unpacked(part: pa.Table) -> pa.Table:
    """Give the rows of packed ones; without any, a table without columns."""
    tables = [ipc.open_stream(value.as_buffer()).read_all() for value in part.column(PACKED)]
    return pa.concat_tables(tables) if tables else pa.table({})
