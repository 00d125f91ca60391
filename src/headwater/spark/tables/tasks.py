"""What executors do for a table: read its files, write files that nobody knows of, tell of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.gathering import gathered
from headwater.spark.packing import BUCKET, PACKED
from headwater.spark.tables.files import fitted, read_files, read_in_pieces, write_files
from headwater.spark.tables.log import DataFile
from headwater.spark.tables.merging import Finish, Merge, Merged
from headwater.spark.tables.packing import unpacked

FILE: Final = "path string, size long, rows long, bucket int"
"""What is told of a file."""
MARK: Final = "_is_bucket"
"""The column that marks rows which stand for a bucket, and hold nothing."""
_HELD_BYTES: Final = 64 << 20


def read_listed(
    batches: Iterator[pa.RecordBatch], *, folder: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read the files that a task is given the names of."""
    for names in batches:
        for path in names.column(0).to_pylist():
            yield from read_in_pieces(folder, path, schema)


def write_loose(
    batches: Iterator[pa.RecordBatch], *, folder: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task as files that are only ever added; tells of each."""
    for rows in gathered(batches, most_bytes=_HELD_BYTES):
        yield _told(write_files(folder, [(fitted(rows, schema), None)]))


def merge_buckets(
    batches: Iterator[pa.RecordBatch],
    *,
    folder: str,
    schema: pa.Schema,
    old: Mapping[int, list[str]],
    merge: Merge,
    finish: Finish | None,
) -> Iterator[pa.RecordBatch]:
    """Merge the buckets of one task; tells of each one that it touched, and of each new file."""
    kept: dict[int, pa.Table] = {}
    closed: dict[int, list[pa.Table]] = {}

    def keep(bucket: int, merged: Merged) -> None:
        kept[bucket] = merged.kept
        if merged.closed is not None and merged.closed.num_rows:
            closed.setdefault(bucket, []).append(merged.closed)

    for gathering in gathered(batches, most_bytes=_HELD_BYTES):
        for bucket, rows in _by_bucket(gathering):
            before = kept.get(bucket)
            if before is None:
                before = read_files(folder, old.get(bucket, []), schema)
            keep(bucket, merge(before, rows))
    if finish is not None:
        for bucket, rows in list(kept.items()):
            keep(bucket, finish(rows))
    parts: list[tuple[pa.Table, int | None]] = [
        (fitted(rows, schema), bucket) for bucket, rows in kept.items() if rows.num_rows
    ]
    if closed:
        ended = [fitted(part, schema) for each in closed.values() for part in each]
        parts.append((pa.concat_tables(ended), None))
    # Those that were touched are told of, whether or not rows are left.
    touched = [DataFile("", 0, 0, bucket) for bucket in kept]
    if touched:
        yield _told([*touched, *write_files(folder, parts)])


def _by_bucket(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Part rows by their bucket; a bucket that is only to be merged comes without rows."""
    rows = rows.take(pc.sort_indices(rows.column(BUCKET)))
    buckets = rows.column(BUCKET).combine_chunks()
    ends = pc.run_end_encode(buckets)
    start = 0
    for bucket, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        part = rows.slice(start, end - start)
        start = end
        part = part.filter(pc.invert(part.column(MARK))).drop_columns([BUCKET, MARK])
        yield bucket, unpacked(part) if part.column_names == [PACKED] else part


def _told(files: Sequence[DataFile]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"path": file.path, "size": file.size, "rows": file.rows, "bucket": file.bucket}
            for file in files
        ],
        pa.schema(
            [
                ("path", pa.string()),
                ("size", pa.int64()),
                ("rows", pa.int64()),
                ("bucket", pa.int32()),
            ]
        ),
    )
