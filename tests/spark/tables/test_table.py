"""Tables take each batch once, show commits as a whole, and grow new columns."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headwater.errors import (
    BadOption,
    TableAhead,
    TableChanged,
    TableLost,
    TableSchemaRefused,
)
from headwater.spark.tables import DataFile, Merged, Table, open_table
from headwater.spark.tables.files import write_files
from headwater.spark.tables.packing import packed
from tests.spark.tables.making import SCHEMA, greatest, log_of, rows, shown


def newest(old: pa.Table, new: pa.Table) -> Merged:
    """Keep what is new, and close what was there."""
    return Merged(new, old)


def test_a_table_that_is_not_there_reads_as_none(made: Table, spark: SparkSession) -> None:
    assert not made.exists
    assert made.read(spark) is None
    assert made.committed("query") == -1


def test_appended_rows_are_there_once(made: Table, spark: SparkSession) -> None:
    assert made.append(rows(spark, ("a", 1), ("b", 2)), writer="query", batch=0) == 2
    assert made.append(rows(spark, ("a", 1), ("b", 2)), writer="query", batch=0) == 0
    assert made.append(rows(spark, ("c", 3)), writer="query", batch=1) == 1
    assert made.append(rows(spark, ("d", 4)), writer="other", batch=0) == 1
    assert shown(made, spark) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert (made.committed("query"), made.committed("other")) == (1, 0)


def test_a_batch_before_the_last_is_refused_and_changes_nothing(
    made: Table, spark: SparkSession
) -> None:
    rewrite = partial(made.rewrite, merge=greatest, key=["key"], schema=SCHEMA, writer="merging")
    for batch in (0, 20):
        made.append(rows(spark, ("a", batch)), writer="adding", batch=batch)
        rewrite(rows(spark, ("b", batch)), batch=batch)
    before = shown(made, spark)
    # The checkpoint is a copy from batch 10: what it calls batch 11 has never been written.
    with pytest.raises(TableAhead, match="the checkpoint is an older copy"):
        made.append(rows(spark, ("new", 1)), writer="adding", batch=11)
    with pytest.raises(TableAhead, match="holds batch 20 of this query, so batch 11 can't be"):
        rewrite(rows(spark, ("new", 1)), batch=11)
    assert made.committed("merging") == 20
    with pytest.raises(TableAhead):  # asking first is no excuse
        rewrite(rows(spark, ("new", 1)), batch=11)
    with pytest.raises(TableAhead):
        rewrite(rows(spark, ("new", 1)), batch=11, follows=20)
    assert shown(made, spark) == before


def test_a_table_that_lacks_the_batch_before_is_refused(
    made: Table, folder: str, kind: str, spark: SparkSession
) -> None:
    rewrite = partial(made.rewrite, merge=greatest, key=["key"], schema=SCHEMA, writer="merging")
    for batch in (0, 1, 1):  # the last one is replayed
        made.append(rows(spark, ("a", batch)), writer="adding", batch=batch, after=batch - 1)
        rewrite(rows(spark, ("b", batch)), batch=batch, after=batch - 1)
    before = shown(made, spark)
    elsewhere = open_table(f"{folder}-new", kind)
    for table, number in ((made, 3), (elsewhere, 2)):
        with pytest.raises(TableLost, match=f"before batch {number}.* start over"):
            table.append(rows(spark, ("c", 3)), writer="adding", batch=number, after=number - 1)
        with pytest.raises(TableLost):
            table.rewrite(
                rows(spark, ("c", 3)),
                greatest,
                key=["key"],
                schema=SCHEMA,
                writer="merging",
                batch=number,
                after=number - 1,
            )
    assert shown(made, spark) == before
    assert not elsewhere.exists


def test_a_folder_has_one_format(made: Table, folder: str, kind: str, spark: SparkSession) -> None:
    made.append(rows(spark, ("a", 1)), writer="query", batch=0)
    other = open_table(folder, "parquet" if kind == "delta" else "delta")
    with pytest.raises(BadOption, match=f"holds a table of the format {kind}"):
        other.append(rows(spark, ("b", 2)), writer="new", batch=0)
    assert not other.exists
    assert shown(made, spark) == [("a", 1)]


def test_who_is_overtaken_after_asking_finds_the_batch_done(
    made: Table, kind: str, spark: SparkSession
) -> None:
    rewrite = partial(made.rewrite, merge=greatest, key=["key"], schema=SCHEMA, writer="fold")
    rewrite(rows(spark, ("a", 1)), batch=100)
    done = made.committed("fold")
    other = open_table(made.folder, kind)
    other.rewrite(
        rows(spark, ("a", 3)), greatest, key=["key"], schema=SCHEMA, writer="fold", batch=300
    )
    with pytest.raises(TableAhead):
        rewrite(rows(spark, ("a", 2)), batch=200)
    assert rewrite(rows(spark, ("a", 2)), batch=200, follows=done) == 0
    assert shown(made, spark) == [("a", 3)]


def test_who_is_overtaken_while_merging_finds_the_batch_done(
    made: Table, kind: str, spark: SparkSession
) -> None:
    rewrite = partial(made.rewrite, key=["key"], schema=SCHEMA, writer="fold")
    rewrite(rows(spark, ("a", 1)), greatest, batch=100)
    merge = partial(overtaken, folder=made.folder, kind=kind)
    assert rewrite(rows(spark, ("a", 2)), merge, batch=200, follows=100) == 0
    assert made.committed("fold") == 300
    assert shown(made, spark) == []


def overtaken(old: pa.Table, new: pa.Table, *, folder: str, kind: str) -> Merged:
    """Merge while another process empties the table with a later batch."""
    other = log_of(folder, kind)
    seen = other.snapshot("fold")
    assert seen is not None
    other.commit(seen, [], seen.files, writer="fold", batch=300)
    return greatest(old, new)


def test_a_batch_without_rows_is_remembered(made: Table, spark: SparkSession) -> None:
    assert made.append(rows(spark), writer="query", batch=3) == 0
    assert made.committed("query") == 3
    assert shown(made, spark) == []


def test_rows_are_merged_into_their_buckets_once(made: Table, spark: SparkSession) -> None:
    def merge(batch: int, *items: tuple[str, int]) -> int:
        return made.rewrite(
            rows(spark, *items), greatest, key=["key"], schema=SCHEMA, writer="query", batch=batch
        )

    keys = [f"key-{number}" for number in range(20)]
    assert merge(0, *((key, 1) for key in keys)) == 20
    merge(1, ("key-3", 7), ("key-4", 0), ("new", 5))
    assert merge(1, ("key-3", 9)) == 0
    expected = dict.fromkeys(keys, 1) | {"key-3": 7, "new": 5}
    assert shown(made, spark) == sorted(expected.items())


def test_a_bucket_may_become_empty(made: Table, spark: SparkSession) -> None:
    rewrite = partial(made.rewrite, key=["key"], schema=SCHEMA, writer="query")
    rewrite(rows(spark, ("a", 1), ("b", 1)), greatest, batch=0)
    rewrite(rows(spark), lambda _old, new: Merged(new), batch=1, every_bucket=True)
    assert shown(made, spark) == []


def test_closed_rows_stay_and_are_not_merged_again(made: Table, spark: SparkSession) -> None:
    for batch in range(3):
        made.rewrite(
            rows(spark, ("a", batch)),
            newest,
            key=["key"],
            schema=SCHEMA,
            writer="query",
            batch=batch,
        )
    assert shown(made, spark) == [("a", 0), ("a", 1), ("a", 2)]


def test_a_new_column_is_null_in_rows_from_before(made: Table, spark: SparkSession) -> None:
    made.rewrite(
        rows(spark, ("a", 1)), greatest, key=["key"], schema=SCHEMA, writer="query", batch=0
    )
    wider = StructType().add("key", "string").add("n", "long").add("note", "string")
    made.rewrite(
        spark.createDataFrame([("b", 2, "new")], wider),
        lambda old, new: Merged(pa.concat_tables([old, new.cast(old.schema)])),
        key=["key"],
        schema=wider,
        writer="query",
        batch=1,
    )
    assert shown(made, spark) == [("a", 1, None), ("b", 2, "new")]


def test_what_one_batch_never_has_null_may_be_null_in_the_next(
    made: Table, spark: SparkSession
) -> None:
    columns = "{0} AS n, struct({0} AS x, array({0}) AS xs) AS s, map('k', {0}) AS m"
    for batch, value in enumerate(("1", "CAST(NULL AS int)")):
        made.append(spark.sql(f"SELECT {columns.format(value)}"), writer="query", batch=batch)
    made.append(spark.sql("SELECT 2 AS other"), writer="query", batch=2)
    found = made.read(spark)
    assert found is not None
    assert {(row.n, row.s and (row.s.x, *row.s.xs), str(row.m)) for row in found.collect()} == {
        (1, (1, 1), "{'k': 1}"),
        (None, (None, None), "{'k': None}"),
        (None, None, "None"),
    }


def test_a_table_from_before_whose_parts_are_never_null_goes_on(
    kind: str, folder: str, spark: SparkSession
) -> None:
    part = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    log_of(folder, kind).create(pa.schema([("s", part)]), 4)
    made = open_table(folder, kind)
    made.append(spark.sql("SELECT struct(1 AS x) AS s"), writer="query", batch=0)
    assert shown(made, spark) == [((1,),)]


def test_a_column_that_is_spelled_in_another_case_is_refused(
    made: Table, spark: SparkSession
) -> None:
    made.append(spark.sql("SELECT 'a' AS userId"), writer="query", batch=0)
    with pytest.raises(TableSchemaRefused, match="'userid' is spelled 'userId' in the table"):
        made.append(spark.sql("SELECT 'b' AS userid"), writer="query", batch=1)
    read = made.read(spark)
    assert read is not None
    assert [tuple(row) for row in read.collect()] == [("a",)]


def test_a_batch_that_is_there_is_read_all_the_same(
    made: Table, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark wants the state of a query, if it has one, to be brought behind each batch."""
    read = str(tmp_path / "read")

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Path(read).open("a") as told:
            told.write("once ")
        yield from batches

    for _ in range(2):
        added = rows(spark, ("a", 1)).coalesce(1).mapInArrow(noted, SCHEMA)
        made.append(added, writer="query", batch=0)
    assert Path(read).read_text().split() == ["once", "once"]
    assert shown(made, spark) == [("a", 1)]


def test_a_file_without_statistics_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """An engine that optimises the table may write none."""
    folder = str(tmp_path / "table")
    made = open_table(folder)
    made.append(rows(spark, ("a", 1)), writer="query", batch=0)
    table = DeltaTable(folder)
    (file,) = write_files(folder, [(pa.table({"key": ["b"], "n": [2]}), None)])
    bare = AddAction(file.path, file.size, {"_bucket": None}, 0, data_change=True, stats="{}")
    table.create_write_transaction([bare], "append", table.schema(), ["_bucket"])
    assert shown(made, spark) == [("a", 1), ("b", 2)]


def test_a_column_of_another_type_is_refused(made: Table, spark: SparkSession) -> None:
    made.append(rows(spark, ("a", 1)), writer="query", batch=0)
    other = spark.createDataFrame([("a", "text")], "key string, n string")
    with pytest.raises(TableSchemaRefused, match="'n' is int64"):
        made.append(other, writer="query", batch=1)
    assert made.committed("query") == 0


def test_a_batch_is_not_committed_over_what_it_did_not_see(kind: str, folder: str) -> None:
    made = log_of(folder, kind)
    made.create(pa.schema([("key", pa.string())]), 4)
    file = DataFile("bucket-00001/a.parquet", 10, 1, 1)
    seen = made.snapshot()
    assert seen is not None
    made.commit(seen, [file], [], writer="query", batch=0)
    seen = made.snapshot()
    assert seen is not None
    assert seen.files == (file,)
    made.commit(seen, [], [file], writer="other", batch=0)
    with pytest.raises(TableChanged):
        made.commit(seen, [], [file], writer="query", batch=1)
    seen = made.snapshot("query")
    assert seen is not None
    assert seen.committed == 0


def test_any_reader_of_delta_reads_the_table(spark: SparkSession, tmp_path: Path) -> None:
    made = open_table(str(tmp_path / "table"))
    made.append(rows(spark, ("a", 1)), writer="query", batch=0)
    read = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["key", "n"])
    assert read.to_pylist() == [{"key": "a", "n": 1}]


def test_a_path_is_of_this_machine_whatever_spark_takes_for_its_default(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    made = open_table(str(tmp_path / "a b#c"), kind)
    made.append(rows(spark, ("a", 1)), writer="query", batch=0)
    spark.conf.set("fs.defaultFS", "nowhere://host")
    try:
        assert shown(made, spark) == [("a", 1)]
    finally:
        spark.conf.unset("fs.defaultFS")
    assert shown(open_table(f"file://{tmp_path}/a b#c", kind), spark) == [("a", 1)]


def test_a_name_is_no_glob(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / "g [prod] {a,b} c*d?")
    for batch in range(2):
        open_table(folder, kind).append(rows(spark, ("a", batch)), writer="query", batch=batch)
    assert shown(open_table(folder, kind), spark) == [("a", 0), ("a", 1)]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="delta, parquet"):
        open_table(str(tmp_path), "csv")


def one_bad(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ValueError("a task fails")


def test_a_task_that_fails_leaves_the_table_as_it_was(made: Table, spark: SparkSession) -> None:
    made.append(rows(spark, ("a", 1)), writer="query", batch=0)
    with pytest.raises(Exception, match="a task fails"):
        made.append(rows(spark, ("b", 2)).mapInArrow(one_bad, SCHEMA), writer="query", batch=1)
    assert shown(made, spark) == [("a", 1)]
    assert made.committed("query") == 0


def packed_rows(spark: SparkSession, *items: tuple[str, int]) -> DataFrame:
    table = pa.table({"key": [key for key, _ in items], "n": [number for _, number in items]})
    return spark.createDataFrame(list(packed(table, "key", 4)), "_bucket int, _rows binary")


def summed(old: pa.Table, new: pa.Table) -> Merged:
    """Add up the numbers of each key, of which some may be negative."""
    if not new.num_rows:
        return Merged(old)
    rows = pa.concat_tables([old, new.cast(old.schema)])
    return Merged(rows.group_by("key").aggregate([("n", "sum")]).rename_columns(["key", "n"]))


def positive(rows: pa.Table) -> Merged:
    above = pc.greater(rows.column("n"), 0)
    return Merged(rows.filter(above), rows.filter(pc.invert(above)))


def test_packed_rows_are_merged_and_a_bucket_is_finished_once(
    made: Table, spark: SparkSession
) -> None:
    for batch, items in enumerate(([("a", 1), ("b", 5)], [("a", -1), ("a", -2), ("c", 4)])):
        made.rewrite(
            packed_rows(spark, *items),
            summed,
            key=None,
            schema=SCHEMA,
            writer="query",
            batch=batch,
            every_bucket=True,
            finish=positive,
        )
    assert shown(made, spark) == [("a", -2), ("b", 5), ("c", 4)]
    made.rewrite(
        packed_rows(spark, ("a", 7)),
        summed,
        key=None,
        schema=SCHEMA,
        writer="query",
        batch=2,
        finish=positive,
    )
    # What was closed is not merged again.
    assert shown(made, spark) == [("a", -2), ("a", 7), ("b", 5), ("c", 4)]
