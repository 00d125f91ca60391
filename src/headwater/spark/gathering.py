"""Record batches, which may be small, into tables that are worth the work."""

from collections.abc import Iterable, Iterator

import pyarrow as pa


def gathered(
    batches: Iterable[pa.RecordBatch], *, most_bytes: int, most_rows: int | None = None
) -> Iterator[pa.Table]:
    """Give rows in tables of about so many bytes or rows; none without rows."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        held.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if size >= most_bytes or (most_rows is not None and count >= most_rows):
            yield pa.Table.from_batches(held)
            held, count, size = [], 0, 0
    if count:
        yield pa.Table.from_batches(held)
