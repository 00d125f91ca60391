"""Files on whatever file system a folder is on: written and read by executors and the driver.

A file that is told of outlives the machine. Object storage sees to that; a local disk is asked to.
"""

import re
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from headwater.errors import BadOption, TableSchemaRefused
from headwater.spark.gathering import gathered
from headwater.spark.packing import BUCKET
from headwater.spark.tables.log import DataFile
from headwater.storage.disk.fsync import sync_directory, sync_file

ROWS_IN_GROUP: Final = 256 * 1024
LEFT_OVER_SECONDS: Final = 24 * 3600
_LOCAL: Final = "file://"
_HADOOPS_S3: Final = re.compile("^s3a://")
"""So Spark's jars call what everyone else calls `s3://`."""
_OBJECT_STORAGE: Final = frozenset({"s3", "gcs", "abfs"})
_CLOSED: Final = "closed"
_BUCKET: Final = "bucket-"
_BUCKET_OF_OTHERS: Final = f"{BUCKET}="
"""So Delta itself names a bucket, for what it writes when it compacts."""
_AT_ONCE: Final = 16
_HELD_BYTES: Final = 64 << 20


def folder_uri(folder: str, option: str = "folder") -> str:
    """Name a folder so that driver, executors and Spark mean the same one.

    Spark looks for a path without a scheme on its default file system: on a cluster, maybe HDFS.
    """
    if not folder.strip():  # it would be the one that the process runs in
        raise BadOption(option, "it is empty: name a folder")
    return folder.rstrip("/") if "://" in folder else f"{_LOCAL}{Path(folder).absolute()}"


def file_system(folder: str) -> tuple[fs.FileSystem, str]:
    """Find the file system of a folder, and the folder's path on it."""
    uri = folder_uri(folder)
    if uri.startswith(_LOCAL):
        return fs.LocalFileSystem(), uri.removeprefix(_LOCAL)  # as Spark does: nothing is decoded
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(_HADOOPS_S3.sub("s3://", uri))
    except pa.ArrowInvalid as error:
        raise BadOption("folder", f"{folder} is on no file system that Arrow knows") from error
    return found


def local_path(system: fs.FileSystem, path: str) -> Path | None:
    """Give the path of what is on a local disk; None elsewhere."""
    return Path(path) if isinstance(system, fs.LocalFileSystem) else None


def is_object_storage(system: fs.FileSystem) -> bool:
    """Tell what Arrow reads and writes by itself, and Spark only with jars that it lacks."""
    return system.type_name in _OBJECT_STORAGE


def make_folder(system: fs.FileSystem, path: str) -> None:
    """Make a folder and those above it; one that is there is left as it is."""
    local = local_path(system, path)
    above = [] if local is None else [local, *local.parents]
    missing = [each for each in above if not each.exists()]
    system.create_dir(path, recursive=True)
    for each in missing:
        sync_directory(each.parent)


def make_durable(system: fs.FileSystem, *paths: str) -> None:
    """Have files outlive the machine, with their names."""
    files = [local for path in paths if (local := local_path(system, path)) is not None]
    if not files:
        return
    # A disk does many at once in hardly more time than one.
    with ThreadPoolExecutor(min(len(files), _AT_ONCE)) as threads:
        deque(threads.map(sync_file, files), maxlen=0)
        deque(threads.map(sync_directory, {file.parent for file in files}), maxlen=0)


def write_document(system: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a small file, of which a reader sees all or nothing, whatever ends meanwhile."""
    staged = f"{path.rpartition('/')[0]}/.{uuid4().hex}"
    with system.open_output_stream(staged) as file:
        file.write(data)
    local = local_path(system, staged)
    if local is not None:
        sync_file(local)  # before it has its name: half of it is never read
    system.move(staged, path)
    if local is not None:
        sync_directory(local.parent)


def write_files(folder: str, parts: Iterable[tuple[pa.Table, int | None]]) -> list[DataFile]:
    """Write rows, bucket by bucket, as files that no table knows of yet."""
    system, root = file_system(folder)
    files = [_written(system, root, [rows], rows.schema, bucket) for rows, bucket in parts]
    make_durable(system, *(f"{root}/{file.path}" for file in files))
    return files


def join_files(folder: str, paths: Iterable[str], schema: pa.Schema) -> DataFile:
    """Write the rows of files that are only added again, as one file that no table knows of yet."""
    system, root = file_system(folder)
    pieces = (piece for path in paths for piece in read_in_pieces(folder, path, schema))
    rows = gathered(pieces, most_bytes=_HELD_BYTES, most_rows=ROWS_IN_GROUP)
    file = _written(system, root, rows, schema, None)
    make_durable(system, f"{root}/{file.path}")
    return file


def _written(
    system: fs.FileSystem,
    root: str,
    parts: Iterable[pa.Table],
    schema: pa.Schema,
    bucket: int | None,
) -> DataFile:
    part = _CLOSED if bucket is None else f"{_BUCKET}{bucket:05}"
    path = f"{part}/{uuid4().hex}.parquet"
    make_folder(system, f"{root}/{part}")
    count = 0
    with pq.ParquetWriter(
        f"{root}/{path}", schema, filesystem=system, compression="zstd", compression_level=1
    ) as writer:
        for rows in parts:
            writer.write_table(rows, row_group_size=ROWS_IN_GROUP)
            count += rows.num_rows
    size = system.get_file_info(f"{root}/{path}").size
    return DataFile(path, size, count, bucket)


def sweep(folder: str, kept: Collection[str], left: Collection[str]) -> None:
    """Delete files that have left a table, and old ones that its log does not know.

    Those are what failed tasks leave; a file that is not old may be about to be committed. Only
    where files of tables are is looked: a folder can hold other things. What is there is listed,
    and not what has ever left, which may be much more.
    """
    system, root = file_system(folder)
    before = time.time_ns() - LEFT_OVER_SECONDS * 10**9
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    parts = [each for each in found if each.type == fs.FileType.Directory and _is_part(each)]

    def listed(part: fs.FileInfo) -> list[fs.FileInfo]:
        files: list[fs.FileInfo] = system.get_file_info(
            fs.FileSelector(part.path, allow_not_found=True)
        )
        return files

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for part, files in zip(parts, threads.map(listed, parts), strict=True):
            for file in files:
                path = f"{part.base_name}/{file.base_name}"
                is_old = file.mtime_ns is not None and file.mtime_ns < before
                if path not in kept and (path in left or is_old):
                    with suppress(FileNotFoundError):  # someone else has tidied up
                        system.delete_file(file.path)


def _is_part(folder: fs.FileInfo) -> bool:
    name: str = folder.base_name
    return name == _CLOSED or name.startswith((_BUCKET, _BUCKET_OF_OTHERS))


def read_files(folder: str, paths: list[str], schema: pa.Schema) -> pa.Table:
    """Read files as one table of a schema that may be newer than they are."""
    system, root = file_system(folder)
    tables = [pq.read_table(f"{root}/{path}", filesystem=system) for path in paths]
    return pa.concat_tables([schema.empty_table(), *(fitted(each, schema) for each in tables)])


def read_in_pieces(folder: str, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a file piece by piece, as rows of a schema that may be newer than it is."""
    system, root = file_system(folder)
    with system.open_input_file(f"{root}/{path}") as opened:
        for piece in pq.ParquetFile(opened).iter_batches():
            yield from fitted(pa.Table.from_batches([piece]), schema).to_batches()


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give rows the columns of a schema: what they lack is null, the rest keeps its meaning."""
    columns = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(at)
        try:
            columns.append(column if column.type == field.type else pc.cast(column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TableSchemaRefused(field.name, str(column.type), str(field.type)) from error
    return pa.table(columns, schema=schema)
