"""A log in the open format Delta, kept with `deltalake`: any engine that knows Delta reads it."""

import json
import time
from collections.abc import Collection, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field as DeltaField
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from headwater.errors import TableChanged, TableForeign, TableUnreadable
from headwater.spark.packing import BUCKET
from headwater.spark.tables.files import (
    file_system,
    folder_uri,
    local_path,
    make_durable,
    make_folder,
    sweep,
)
from headwater.spark.tables.log import SMALL_FILES, DataFile, Log, Snapshot

LOG_FOLDER: Final = "_delta_log"
_BUCKETS: Final = "headwater.buckets"
_MAPPING: Final = "delta.columnMapping.mode"
_SETTINGS: Final = {
    # Commits come several times a second: without checkpoints each would read them all.
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 days",
    # Each checkpoint names the files that left in this time, and each look reads it: not a week.
    "delta.deletedFileRetentionDuration": "interval 15 minutes",
}


class DeltaLog(Log):
    """The log below `_delta_log`."""

    def __init__(self, folder: str) -> None:
        self._system, self._root = file_system(folder)
        self._folder = _name(folder)
        self._loaded: DeltaTable | None = None
        """The table as it was last looked at: loading it reads its log."""

    def create(self, schema: pa.Schema, buckets: int) -> None:
        if local_path(self._system, self._root) is not None:
            make_folder(self._system, f"{self._root}/{LOG_FOLDER}")
        DeltaTable.create(
            self._folder,
            Schema.from_arrow(schema.append(pa.field(BUCKET, pa.int32()))),
            mode="ignore",
            partition_by=[BUCKET],
            configuration={_BUCKETS: str(buckets), **_SETTINGS},
            raise_if_key_not_exists=False,
        )
        self._make_durable(0)

    def snapshot(self, writer: str = "") -> Snapshot | None:
        try:
            table = self._loaded = DeltaTable(self._folder)
        except TableNotFoundError:
            return None
        if not _is_ours(table):
            raise TableForeign(self._folder)
        schema = pa.schema(table.schema().to_arrow())
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        committed = table.transaction_version(writer) if writer else None
        return Snapshot(
            version=table.version(),
            schema=schema.remove(schema.get_field_index(BUCKET)),
            buckets=int(table.metadata().configuration.get(_BUCKETS) or 1),
            files=tuple(
                DataFile(
                    file["path"],
                    file["size_bytes"],
                    file["num_records"] or 0,
                    file[f"partition.{BUCKET}"],
                )
                for file in files
            ),
            committed=-1 if committed is None else committed,
        )

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        table = DeltaTable(self._folder)
        added = Schema.from_arrow(pa.schema([field.with_nullable(True) for field in fields]))
        columns: list[DeltaField] = list(added.fields)
        table.alter.add_columns(columns)
        self._make_durable(table.version())

    def commit(
        self,
        seen: Snapshot,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        *,
        writer: str,
        batch: int,
    ) -> None:
        # What was seen, and not what is there now: the log then finds out what others did since.
        table, self._loaded = self._loaded, None
        if table is None or table.version() != seen.version:
            table = DeltaTable(self._folder, version=seen.version)
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [_add(file, now) for file in added]
        actions += [
            RemoveAction(file.path, True, now, file.size, _values(file)) for file in removed
        ]
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                [BUCKET],
                commit_properties=CommitProperties(app_transactions=[Transaction(writer, batch)]),
            )
        except CommitFailedError as error:
            raise TableChanged(self._folder) from error
        self._make_durable(seen.version + 1)

    def tidy(self, keep_seconds: float) -> list[str]:
        table = DeltaTable(self._folder)
        joined: list[str] = []
        if _loose_files(table) >= SMALL_FILES:
            version, before = table.version(), _paths(table)
            table.optimize.compact(partition_filters=[(BUCKET, "=", "")])
            self._make_durable(version + 1, _paths(table) - before)
            table = DeltaTable(self._folder)
            joined = sorted(before - _paths(table))
        # It is only asked: it counts in hours, and would search the folders of tables below too.
        left = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
        kept = _paths(table) | self._just_left(table.version(), keep_seconds)
        sweep(self._folder, kept, frozenset(left))
        return joined

    def _just_left(self, version: int, seconds: float) -> set[str]:
        """Find the files that left the table in the last seconds, in the newest of its log."""
        since = (time.time() - seconds) * 1000
        found: set[str] = set()
        for number in range(version, -1, -1):
            try:
                entry = self._system.open_input_stream(
                    f"{self._root}/{LOG_FOLDER}/{number:020}.json"
                )
            except FileNotFoundError:
                break  # those of the last day are there
            with entry:
                actions = [json.loads(line) for line in entry.read().splitlines()]
            times = [
                each["commitInfo"].get("timestamp", since)
                for each in actions
                if "commitInfo" in each
            ]
            if times and max(times) < since:
                break
            found.update(unquote(each["remove"]["path"]) for each in actions if "remove" in each)
        return found

    def _make_durable(self, version: int, files: Collection[str] = ()) -> None:
        """Have the log from a version on outlive the machine: `deltalake` does not ask for it.

        Neither does it for `files` that it has written by itself.
        """
        folder = local_path(self._system, f"{self._root}/{LOG_FOLDER}")
        if folder is None:
            return
        make_durable(self._system, *(f"{self._root}/{path}" for path in files))
        written = []
        while (entry := folder / f"{version:020}.json").exists():
            written.append(entry)
            checkpoint = entry.with_suffix(".checkpoint.parquet")
            if checkpoint.exists():
                written += [checkpoint, folder / "_last_checkpoint"]
            version += 1
        make_durable(self._system, *map(str, written))


def foreign_delta(folder: str) -> ds.Dataset | None:
    """Open a table that something else has made; None where there is none, or it is ours."""
    system, root = file_system(folder)
    try:
        table = DeltaTable(_name(folder))
        if _is_ours(table):
            return None
        if table.metadata().configuration.get(_MAPPING, "none") != "none":
            raise TableUnreadable(folder, f"it has {_MAPPING}. Publish a copy without.")
        return table.to_pyarrow_dataset(
            filesystem=fs.SubTreeFileSystem(root, system),
            # Spark's moments, which else were cut to the years that nanoseconds reach.
            parquet_read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"),
        )
    except TableNotFoundError:
        return None
    except DeltaError as error:
        raise TableUnreadable(folder, str(error)) from error


def _name(folder: str) -> str:
    """Name a folder to `deltalake`, which of a URL would leave out what follows a `#`."""
    system, root = file_system(folder)
    return folder_uri(folder) if local_path(system, root) is None else root


def _is_ours(table: DeltaTable) -> bool:
    return BUCKET in table.metadata().partition_columns


def _paths(table: DeltaTable) -> set[str]:
    return set(pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist())


def _loose_files(table: DeltaTable) -> int:
    buckets = pa.table(table.get_add_actions(flatten=True)).column(f"partition.{BUCKET}")
    return int(buckets.null_count)


def _values(file: DataFile) -> dict[str, str | None]:
    return {BUCKET: None if file.bucket is None else str(file.bucket)}


def _add(file: DataFile, now: int) -> Any:
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.size, _values(file), now, data_change=True, stats=stats)
