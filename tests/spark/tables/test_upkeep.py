"""Files of a table stay few, and those that left it are deleted once nobody reads them."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from headwater.spark.tables import DataFile, manifest, open_table
from headwater.spark.tables.files import file_system, write_files
from headwater.spark.tables.manifest import ManifestLog
from tests.spark.tables.making import SCHEMA, greatest, log_of, rows, shown


def files_on(folder: str) -> set[str]:
    """Name the data files below a folder, whether or not a table knows them."""
    system, root = file_system(folder)
    found = system.get_file_info(fs.FileSelector(root, recursive=True))
    names = [file.path.removeprefix(f"{root}/") for file in found if file.is_file]
    return {name for name in names if not name.startswith(("_delta_log/", "_headwater/"))}


def test_files_that_left_are_deleted_later(kind: str, folder: str, spark: SparkSession) -> None:
    made = open_table(folder, kind, keep_seconds=0)
    system, root = file_system(folder)

    def files() -> set[str]:
        found = system.get_file_info(fs.FileSelector(root, recursive=True))
        return {file.path for file in found if "/bucket-" in file.path and file.is_file}

    def merge(batch: int) -> None:
        made.rewrite(
            rows(spark, ("a", batch)), greatest, key=["key"], schema=SCHEMA, writer="q", batch=batch
        )

    merge(0)
    merge(1)
    assert len(files()) == 2  # the one that is in the table, and the one that just left it
    merge(2)
    assert len(files()) == 2
    assert shown(made, spark) == [("a", 2)]


@pytest.mark.parametrize("keep_seconds", [600.0, 0.0])
def test_files_that_left_under_a_process_that_has_ended_are_deleted_by_the_next(
    kind: str, folder: str, spark: SparkSession, keep_seconds: float
) -> None:
    log = log_of(folder, kind)  # as another process knows it
    log.create(pa.schema([("key", pa.string()), ("n", pa.int64())]), 4)
    written: list[DataFile] = []
    for number in range(3):
        seen = log.snapshot()
        assert seen is not None
        new = write_files(folder, [(pa.table({"key": ["a"], "n": [number]}), 1)])
        log.commit(seen, new, written[-1:], writer="query", batch=number)
        written += new
    (begun,) = write_files(folder, [(pa.table({"key": ["c"], "n": [1]}), 1)])  # by some task
    made = open_table(folder, kind, keep_seconds=keep_seconds)
    made.rewrite(
        rows(spark, ("b", 1)), greatest, key=["key"], schema=SCHEMA, writer="query", batch=3
    )
    left = {file.path for file in written[:2]}
    assert files_on(folder) & left == (left if keep_seconds == 600 else set())
    seen = log.snapshot()
    assert seen is not None
    assert files_on(folder) >= {begun.path, *(file.path for file in seen.files)}


def test_many_small_files_become_fewer(kind: str, folder: str, spark: SparkSession) -> None:
    made = open_table(folder, kind)
    made.append(rows(spark, ("a", 0)), writer="query", batch=0)
    log = log_of(folder, kind)
    for number in range(1, 3):
        copies = [(pa.table({"key": ["a"], "n": [number]}), None)] * 50
        seen = log.snapshot()
        assert seen is not None
        log.commit(seen, write_files(folder, copies), [], writer="query", batch=number)
    for time_ in range(2):  # the second time there is nothing to be done
        gone = log.tidy(600)
        assert len(gone) == (0 if time_ else 101)
        after = log.snapshot("query")
        assert after is not None
        assert (len(after.files), after.files[0].bucket, after.committed) == (1, None, 2)
        assert len(files_on(folder)) == 102
    wanted = [("a", 0), *[("a", 1)] * 50, *[("a", 2)] * 50]
    assert shown(made, spark) == wanted
    log.tidy(0)
    assert len(files_on(folder)) == 1
    assert shown(made, spark) == wanted


def test_files_that_are_large_enough_are_not_joined_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "table")
    log = ManifestLog(folder)
    log.create(pa.schema([("key", pa.string()), ("n", pa.int64())]), 4)
    few = pa.table({"key": ["a"], "n": [1]})
    (one,) = write_files(folder, [(few, None)])
    monkeypatch.setattr(manifest, "_JOINED_BYTES", 40 * one.size)
    rewritten: list[int] = []
    for number in range(8):
        seen = log.snapshot()
        assert seen is not None
        log.commit(seen, write_files(folder, [(few, None)] * 100), [], writer="query", batch=number)
        rewritten.append(len(log.tidy(600)))
    assert max(rewritten) <= 110  # the new ones, and what was left over before
    after = log.snapshot()
    assert after is not None
    assert sum(file.rows for file in after.files) == 800


def test_files_that_became_fewer_are_deleted_later(
    kind: str, folder: str, spark: SparkSession
) -> None:
    log = log_of(folder, kind)  # as another process knows it
    log.create(pa.schema([("key", pa.string()), ("n", pa.int64())]), 4)
    seen = log.snapshot()
    assert seen is not None
    small = write_files(folder, [(pa.table({"key": ["a"], "n": [1]}), None)] * 100)
    log.commit(seen, small, [], writer="query", batch=0)
    made = open_table(folder, kind, keep_seconds=600)
    made.append(rows(spark, ("b", 1)).coalesce(1), writer="query", batch=1)
    after = log.snapshot()
    assert after is not None
    assert len(after.files) < len(small)
    assert files_on(folder) > {file.path for file in small}
    made = open_table(folder, kind, keep_seconds=0)  # by now it is later
    made.append(rows(spark, ("b", 2)).coalesce(1), writer="query", batch=2)
    after = log.snapshot()
    assert after is not None
    assert files_on(folder) == {file.path for file in after.files}
    assert shown(made, spark) == [*[("a", 1)] * 100, ("b", 1), ("b", 2)]
