"""What a table writes outlives the machine before anybody is told of it, or goes some day."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from headwater.errors import BadOption
from headwater.spark.jobs.notes import Notes
from headwater.spark.queries import query_id
from headwater.spark.tables.delta import DeltaLog
from headwater.spark.tables.files import LEFT_OVER_SECONDS, file_system, folder_uri, write_files
from headwater.spark.tables.log import DataFile, Log
from headwater.spark.tables.manifest import ManifestLog
from tests.spark.tables.syncing import synced

SCHEMA = pa.schema([("key", pa.string())])
FILE = DataFile("closed/a.parquet", 10, 1)


def test_a_folder_has_one_name_for_all() -> None:
    assert folder_uri("some/table") == f"file://{Path.cwd()}/some/table"
    assert folder_uri("s3://bucket/table/") == "s3://bucket/table"
    for name in ("/some/a b%20c", "file:///some/a b%20c"):
        system, root = file_system(folder_uri(name))
        assert isinstance(system, fs.LocalFileSystem)
        assert root == "/some/a b%20c"


@pytest.mark.parametrize("bucket", [None, 3])
def test_a_file_is_synced_with_its_name_and_new_folders(tmp_path: Path, bucket: int | None) -> None:
    folder = tmp_path / "tables" / "a"
    with synced() as found:
        (told,) = write_files(str(folder), [(SCHEMA.empty_table(), bucket)])
    file = folder / told.path
    assert file.stat().st_size == told.size
    for each in (file, file.parent, folder, folder.parent, tmp_path):
        assert each in found
    with synced() as found:
        (told,) = write_files(str(folder), [(SCHEMA.empty_table(), bucket)])
    assert folder / told.path in found
    assert file.parent in found
    assert folder not in found  # it has no new name


@pytest.mark.parametrize(("kind", "name"), [(DeltaLog, "_delta_log"), (ManifestLog, "_headwater")])
def test_a_commit_is_synced(tmp_path: Path, kind: Callable[[str], Log], name: str) -> None:
    folder = tmp_path / "tables" / "a"
    log = kind(str(folder))

    def newest() -> Path:
        return max((folder / name).glob("*.json"))

    with synced() as found:
        log.create(SCHEMA, 4)
    for each in (newest(), folder / name, folder, folder.parent, tmp_path):
        assert each in found
    with synced() as found:
        log.add_columns([pa.field("more", pa.string())])
    assert newest() in found
    seen = log.snapshot()
    assert seen is not None
    with synced() as found:
        log.commit(seen, [FILE], [], writer="query", batch=0)
    assert newest() in found
    assert folder / name in found


def test_a_checkpoint_of_deltas_log_is_synced(tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path / "a"))
    log.create(SCHEMA, 4)
    for batch in range(49):  # the table's creation was the first of fifty
        seen = log.snapshot()
        assert seen is not None
        with synced() as found:
            log.commit(seen, [], [], writer="query", batch=batch)
    (checkpoint,) = (tmp_path / "a" / "_delta_log").glob("*.checkpoint.parquet")
    assert checkpoint in found
    assert checkpoint.with_name("_last_checkpoint") in found


def test_what_delta_writes_by_itself_is_synced(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    log = DeltaLog(str(folder))
    log.create(SCHEMA, 4)
    seen = log.snapshot()
    assert seen is not None
    rows = pa.table({"key": ["a"]})
    files = write_files(str(folder), [(rows, None)] * 100)
    log.commit(seen, files, [], writer="query", batch=0)
    with synced() as found:
        log.tidy(600)
    seen = log.snapshot()
    assert seen is not None
    (compacted,) = seen.files
    assert compacted.rows == 100
    assert folder / compacted.path in found


def test_notes_are_synced(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path / "checkpoint" / "notes"), dict[str, int])
    with synced() as found:
        notes.write(3, {"a": 1})
    (file,) = (tmp_path / "checkpoint" / "notes").iterdir()
    for each in (file, file.parent, file.parent.parent, tmp_path):
        assert each in found
    assert notes.before(3) == {"a": 1}


def test_what_is_beside_a_checkpoint_is_on_object_storage_as_spark_names_it(lake: str) -> None:
    checkpoint = f"{lake.replace('s3://', 's3a://')}/checkpoint"
    system, root = file_system(checkpoint)
    with system.open_output_stream(f"{root}/metadata") as file:
        file.write(b'{"id":"7"}')  # as Spark does, with its jars
    assert query_id(checkpoint) == "7"
    notes = Notes(f"{checkpoint}/notes", dict[str, int])
    assert notes.before(9) is None
    for batch in range(5):
        notes.write(batch, {"batch": batch})
    assert notes.before(9) == {"batch": 4}
    assert Notes(f"{lake}/checkpoint/notes", dict[str, int]).before(3) == {"batch": 3}


@pytest.mark.parametrize("kind", [DeltaLog, ManifestLog])
def test_tables_are_on_object_storage_as_spark_names_it(
    lake: str, kind: Callable[[str], Log]
) -> None:
    folder = f"{lake.replace('s3://', 's3a://')}/table"
    log = kind(folder)
    log.create(SCHEMA, 4)
    seen = log.snapshot()
    assert seen is not None
    files = write_files(folder, [(pa.table({"key": ["a"]}), 1)])
    log.commit(seen, files, [], writer="query", batch=0)
    log.tidy(600)
    seen = kind(f"{lake}/table").snapshot("query")
    assert seen is not None
    assert (seen.files, seen.committed) == (tuple(files), 0)


def test_a_folder_that_nothing_here_can_reach_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="dbfs://x/y is on no file system that Arrow knows"):
        file_system("dbfs://x/y")


@pytest.mark.parametrize("kind", [DeltaLog, ManifestLog])
def test_old_files_that_no_log_knows_are_deleted(
    tmp_path: Path, kind: Callable[[str], Log]
) -> None:
    folder = tmp_path / "a"
    rows = pa.table({"key": ["a"]})
    log = kind(str(folder))
    log.create(SCHEMA, 4)
    kept, left, failed, closed = write_files(str(folder), [(rows, n) for n in (1, 1, 2, None)])
    (below,) = write_files(str(folder / "below"), [(rows, 1)])  # of a table within this one
    long_ago = time.time() - LEFT_OVER_SECONDS - 1
    old = [folder / each.path for each in (kept, left, failed, closed)]
    old.append(folder / "below" / below.path)
    replaced = folder / "_bucket=__HIVE_DEFAULT_PARTITION__" / "part.parquet"  # by Delta itself
    replaced.parent.mkdir()
    replaced.touch()
    old.append(replaced)
    for path in old:
        os.utime(path, (long_ago, long_ago))
    (begun,) = (folder / file.path for file in write_files(str(folder), [(rows, 2)]))
    for batch, (added, removed) in enumerate([([kept, left], []), ([], [left])]):
        seen = log.snapshot()
        assert seen is not None
        log.commit(seen, added, removed, writer="query", batch=batch)
    log.tidy(600)
    assert not (folder / failed.path).exists()
    assert not (folder / closed.path).exists()
    assert not replaced.exists()
    assert begun.exists()  # a task may have written it just now
    assert (folder / left.path).exists()  # it has just left, and readers may be at it
    assert (folder / kept.path).exists()
    assert (folder / "below" / below.path).exists()
