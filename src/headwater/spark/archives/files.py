"""The Parquet files of an archive, written and read by tasks: never a whole one in memory.

A row is a message as it is stored: `stream`, `offset` (behind it) and `value`, in the order of
offsets. Streams without messages have a row per piece.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.errors import ArchiveDamaged, ArchiveGap
from headwater.protocol.content_types import holds_json
from headwater.protocol.framing import SEPARATOR
from headwater.spark.archives.contents import ArchivedFile, folder_name
from headwater.spark.archives.log import STREAMS, sync_folder
from headwater.spark.ranges import byte_of

ROW_GROUP_BYTES: Final = 16 * 1024 * 1024

SCHEMA: Final = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("offset", pa.string(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)


class FileWriter:
    """Writes one file; `finish` makes it durable, `abandon` removes it."""

    def __init__(
        self, folder: Path, stream: str, content_type: str, start: int, other_than: str = ""
    ) -> None:
        self.stream = stream
        self._other_than = other_than
        self._content_type = content_type
        self._folder = folder
        self._parent = folder / STREAMS / folder_name(stream)
        self._parent.mkdir(parents=True, exist_ok=True)
        self._draft = self._parent / f".{uuid4().hex}"
        self._start = start
        self.last = ""
        self._rows = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._writer = pq.ParquetWriter(
            self._draft, SCHEMA, compression="zstd", write_page_checksum=True
        )

    def write(self, offsets: pa.Array, values: pa.Array) -> None:
        """Add messages, which follow those before."""
        at = byte_of(self.last) if self.last else self._start
        if not lie_in_place(at, offsets, values, self._content_type):
            last = offsets[-1].as_py()
            raise ArchiveGap(
                self.stream, self.last, last, "The stream has lost it: see its server."
            )
        streams = pa.repeat(pa.scalar(self.stream, pa.string()), len(offsets))
        self._held.append(
            pa.RecordBatch.from_arrays([streams, offsets, values.cast(pa.binary())], schema=SCHEMA)
        )
        self._held_bytes += pc.sum(pc.binary_length(values)).as_py()
        self._rows += len(offsets)
        self.last = offsets[-1].as_py()
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> ArchivedFile:
        """Close the file and give it its name; a log entry makes it part of the archive."""
        self._flush()
        self._writer.close()
        with self._draft.open("rb+") as opened:
            os.fsync(opened.fileno())
        span = f"{self.last[:16]}_{self._start:016d}-{byte_of(self.last):016d}"
        file = self._parent / f"{span}-{uuid4().hex[:12]}.parquet"
        self._draft.rename(file)
        for each in (self._parent, self._parent.parent):
            sync_folder(each)
        return ArchivedFile(
            self.stream,
            self._content_type,
            file.relative_to(self._folder).as_posix(),
            self._start,
            self.last,
            self._rows,
            file.stat().st_size,
            self._other_than,
        )

    def abandon(self) -> None:
        """Leave nothing behind."""
        with suppress(OSError, pa.ArrowException):  # the disk is full, say: what counts is told
            self._writer.close()
        self._draft.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, SCHEMA))
            self._held, self._held_bytes = [], 0


def runs(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array, pa.Array]]:
    """Cut rows into runs of one stream each: its path, offsets and values."""
    streams = batch.column("stream")
    if not len(streams):
        return
    changes = pc.indices_nonzero(pc.not_equal(streams[1:], streams[:-1])).to_pylist()
    for begin, end in pairwise([0, *(at + 1 for at in changes), len(streams)]):
        size = end - begin
        yield (
            streams[begin].as_py(),
            batch.column("offset").slice(begin, size),
            batch.column("value").slice(begin, size),
        )


def start_of(offset: str, size: int, content_type: str) -> int:
    """Find where a message begins, from the offset behind it."""
    return byte_of(offset) - size - (len(SEPARATOR) if holds_json(content_type) else 0)


def lie_in_place(at: int, offsets: pa.Array, values: pa.Array, content_type: str) -> bool:
    """Tell whether messages follow each other from a position on, as their offsets say."""
    between = len(SEPARATOR) if holds_json(content_type) else 0
    sizes = pc.add(pc.binary_length(values).cast(pa.int64()), between)
    ends = pc.add(pc.cumulative_sum(sizes), at)
    told = pc.utf8_slice_codeunits(offsets, 17).cast(pa.int64())
    return bool(pc.all(pc.equal(ends, told)).as_py())


def check(folder: Path, file: ArchivedFile) -> None:
    """Raise where a file is not there, or has not its size."""
    try:
        size = (folder / file.name).stat().st_size
    except FileNotFoundError:
        raise ArchiveDamaged(
            file.name, f"it is missing, with all of '{file.stream}' behind byte {file.start}"
        ) from None
    if size != file.size:
        raise ArchiveDamaged(file.name, f"it has {size} bytes, and was written with {file.size}")


def row_groups(folder: Path, file: ArchivedFile) -> Iterator[pa.Table]:
    """Read a file piece by piece, and check that it holds what the archive says."""
    check(folder, file)
    at, rows = file.start, 0
    try:
        with pq.ParquetFile(folder / file.name, page_checksum_verification=True) as opened:
            for number in range(opened.num_row_groups):
                table: Any = opened.read_row_group(number, columns=["offset", "value"])
                table = table.combine_chunks()
                if not lie_in_place(at, table["offset"], table["value"], file.content_type):
                    raise ArchiveDamaged(file.name, "its messages don't lie at their offsets")
                at, rows = byte_of(table["offset"][-1].as_py()), rows + len(table)
                yield table
    except (pa.ArrowException, OSError) as error:
        raise ArchiveDamaged(file.name, str(error)) from None
    if at != file.end or rows != file.rows:
        raise ArchiveDamaged(file.name, f"it ends at byte {at} with {rows} messages")


def merge(folder: Path, files: list[ArchivedFile]) -> ArchivedFile:
    """Write the messages of several files, which follow each other, as one."""
    first = files[0]
    writer = FileWriter(folder, first.stream, first.content_type, first.start)
    try:
        for file in files:
            for table in row_groups(folder, file):
                for batch in table.to_batches():
                    writer.write(batch.column("offset"), batch.column("value"))
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise
