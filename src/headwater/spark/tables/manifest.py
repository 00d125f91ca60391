"""A log for plain Parquet: a numbered JSON document for each version, the last of which counts."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyarrow import fs

from headwater.errors import NewerFormat, TableChanged
from headwater.spark.tables.files import (
    file_system,
    join_files,
    make_folder,
    sweep,
    write_document,
)
from headwater.spark.tables.log import SMALL_FILES, DataFile, Log, Snapshot

_FOLDER: Final = "_headwater"
_FORMAT: Final = 1
_KEPT: Final = 10
"""So many versions stay, for readers that are about to open one."""
_JOINED_BYTES: Final = 64 << 20
"""Files that are only added are joined to such ones."""


class _Manifest(Struct, frozen=True):
    """A version of a table."""

    schema: bytes
    """As Arrow serialises it."""
    buckets: int
    files: tuple[DataFile, ...] = ()
    writers: dict[str, int] = {}
    removed: tuple[tuple[float, str], ...] = ()
    """When files left the table that are still there."""
    format: int = _FORMAT


class ManifestLog(Log):
    """The documents below `_headwater`. One driver at a time commits to a table."""

    def __init__(self, folder: str) -> None:
        self._name = folder
        self._system, self._root = file_system(folder)
        self._folder = f"{self._root}/{_FOLDER}"

    def create(self, schema: pa.Schema, buckets: int) -> None:
        if self._last() is None:
            make_folder(self._system, self._folder)
            self._write(0, _Manifest(schema.serialize().to_pybytes(), buckets))

    def snapshot(self, writer: str = "") -> Snapshot | None:
        last = self._last()
        if last is None:
            return None
        version, manifest = last
        return Snapshot(
            version,
            _schema(manifest),
            manifest.buckets,
            tuple(sorted(manifest.files, key=_path)),
            manifest.writers.get(writer, -1),
        )

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        last = self._last()
        if last is None:
            raise TableChanged(self._name)
        version, manifest = last
        schema = pa.schema([*_schema(manifest), *(field.with_nullable(True) for field in fields)])
        self._write(
            version + 1,
            msgspec.structs.replace(manifest, schema=schema.serialize().to_pybytes()),
        )

    def commit(
        self,
        seen: Snapshot,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        *,
        writer: str,
        batch: int,
    ) -> None:
        manifest = _changed(self._at(seen.version), added, removed)
        writers = manifest.writers | {writer: batch}
        self._write(seen.version + 1, msgspec.structs.replace(manifest, writers=writers))

    def tidy(self, keep_seconds: float) -> list[str]:
        joined = self._compact()
        last = self._last()
        if last is None:
            return []
        version, manifest = last
        until = time.time() - keep_seconds
        left = {path for when, path in manifest.removed if when < until}
        wanted = tuple(entry for entry in manifest.removed if entry[0] >= until)
        kept = {*(file.path for file in manifest.files), *(path for _, path in wanted)}
        sweep(self._name, kept, left)
        if left:  # behind the files: what a crash leaves is found again
            self._write(version + 1, msgspec.structs.replace(manifest, removed=wanted))
        for number in self._versions()[:-_KEPT]:
            _delete(self._system, self._document(number))
        return joined

    def _compact(self) -> list[str]:
        """Make few of many files that were only added; a document names each of them."""
        last = self._last()
        if last is None:
            return []
        version, manifest = last
        small = [each for each in manifest.files if _is_small(each)]
        if len(small) < SMALL_FILES:
            return []
        schema = _schema(manifest)
        parts = [part for part in _parts(small) if len(part) > 1]
        joined = [join_files(self._name, [file.path for file in part], schema) for part in parts]
        gone = [file for part in parts for file in part]
        self._write(version + 1, _changed(self._at(version), joined, gone))
        return [file.path for file in gone]

    def _last(self) -> tuple[int, _Manifest] | None:
        versions = self._versions()
        return (versions[-1], self._read(versions[-1])) if versions else None

    def _at(self, version: int) -> _Manifest:
        if self._versions()[-1:] != [version]:
            raise TableChanged(self._name)
        return self._read(version)

    def _versions(self) -> list[int]:
        found = self._system.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        names = (info.base_name for info in found)
        return sorted(int(name[:20]) for name in names if name[20:] == ".json")

    def _document(self, version: int) -> str:
        return f"{self._folder}/{version:020}.json"

    def _read(self, version: int) -> _Manifest:
        with self._system.open_input_stream(self._document(version)) as document:
            manifest = msgspec.json.decode(document.read(), type=_Manifest)
        if manifest.format > _FORMAT:
            raise NewerFormat(self._name, manifest.format, _FORMAT)
        return manifest

    def _write(self, version: int, manifest: _Manifest) -> None:
        write_document(self._system, self._document(version), msgspec.json.encode(manifest))


def _changed(
    manifest: _Manifest, added: Sequence[DataFile], removed: Sequence[DataFile]
) -> _Manifest:
    gone = {file.path for file in removed}
    now = time.time()
    return msgspec.structs.replace(
        manifest,
        files=(*(file for file in manifest.files if file.path not in gone), *added),
        removed=(*manifest.removed, *((now, path) for path in sorted(gone))),
    )


def _is_small(file: DataFile) -> bool:
    # All parts but the last become files of more than half: those are not joined again.
    return file.bucket is None and file.size <= _JOINED_BYTES // 2


def _parts(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Part files, in their order, so that each part is about as large as a file may be."""
    part: list[DataFile] = []
    size = 0
    for file in files:
        if part and size + file.size > _JOINED_BYTES:
            yield part
            part, size = [], 0
        part.append(file)
        size += file.size
    if part:
        yield part


def _schema(manifest: _Manifest) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(manifest.schema))


def _path(file: DataFile) -> str:
    return file.path


def _delete(system: fs.FileSystem, path: str) -> None:
    try:
        system.delete_file(path)
    except FileNotFoundError:
        return  # a driver that was killed here had deleted it
