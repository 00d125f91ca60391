"""Tables that something else has made: read whole, with their partitions, and never written to."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from headwater.errors import TableForeign, TableUnreadable
from headwater.spark.tables import holds_table, open_table, read_table
from headwater.spark.tables.files import file_system

AT = datetime(2026, 2, 11, 10, 0, 0, 123456, UTC)
ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "name": ["a", None, "c"],
        "at": pa.array([AT, None, AT], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 2)], pa.date32()),
        "place": ["a b", "ü/x", None],
    }
)


def found(spark: SparkSession, folder: str, table_format: str = "delta") -> list[dict[str, Any]]:
    assert holds_table(folder, table_format)
    rows = read_table(spark, folder, table_format)
    assert rows is not None
    return sorted((row.asDict() for row in rows.collect()), key=lambda row: int(row["id"]))


@pytest.fixture(params=["disk", "object storage"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "table")
    return f"{request.getfixturevalue('lake')}/table"


def test_a_delta_table_of_others_is_read_with_its_partitions(
    spark: SparkSession, folder: str
) -> None:
    assert read_table(spark, folder) is None
    assert not holds_table(folder)
    write_deltalake(folder, ROWS, partition_by=["day", "place"])
    more = pa.table({"id": [4], "day": pa.array([date(2026, 1, 3)], pa.date32()), "new": [1.5]})
    write_deltalake(folder, more, mode="append", schema_mode="merge", partition_by=["day", "place"])
    DeltaTable(folder).delete("id = 3")
    local = [
        {**row, "at": row["at"] and row["at"].astimezone().replace(tzinfo=None), "new": None}
        for row in ROWS.to_pylist()[:2]
    ]
    last = {"id": 4, "name": None, "at": None, "day": date(2026, 1, 3), "place": None, "new": 1.5}
    assert found(spark, folder) == [*local, last]
    DeltaTable(folder).delete()
    assert found(spark, folder) == []


def test_a_folder_of_parquet_is_read(spark: SparkSession, folder: str) -> None:
    assert read_table(spark, folder, "parquet") is None
    assert not holds_table(folder, "parquet")
    system, root = file_system(folder)
    for number, kind in enumerate(("x", "y")):
        system.create_dir(f"{root}/kind={kind}", recursive=True)
        rows = pa.table({"id": [number], "at": pa.array([AT], pa.timestamp("ns", "UTC"))})
        pq.write_table(
            rows,
            f"{root}/kind={kind}/part.parquet",
            filesystem=system,
            use_deprecated_int96_timestamps=True,
        )
    with system.open_output_stream(f"{root}/_SUCCESS"):
        pass
    at = AT.astimezone().replace(tzinfo=None)
    assert found(spark, folder, "parquet") == [
        {"id": 0, "at": at, "kind": "x"},
        {"id": 1, "at": at, "kind": "y"},
    ]


def test_an_empty_folder_holds_no_table(spark: SparkSession, tmp_path: Path) -> None:
    for table_format in ("parquet", "delta"):
        assert read_table(spark, str(tmp_path), table_format) is None
        assert not holds_table(str(tmp_path), table_format)


def test_ours_is_read_by_its_log(spark: SparkSession, tmp_path: Path) -> None:
    for table_format in ("delta", "parquet"):
        folder = str(tmp_path / table_format)
        rows = spark.createDataFrame([(1,), (2,)], "id long")
        open_table(folder, table_format).append(rows, writer="w", batch=0)
        assert found(spark, folder, table_format) == [{"id": 1}, {"id": 2}]


def test_a_table_of_others_is_not_written_to(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    rows = spark.createDataFrame([(1,)], "id long")
    with pytest.raises(TableForeign, match="was not created by Headwater"):
        open_table(str(tmp_path / "t")).append(rows, writer="w", batch=0)


def test_what_would_be_read_wrongly_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write_deltalake(folder, ROWS)
    with pytest.raises(TableUnreadable, match="Set its format to delta"):
        read_table(spark, str(folder), "parquet")
    with pytest.raises(TableUnreadable, match="Set its format to delta"):
        holds_table(str(folder), "parquet")
    (entry,) = (folder / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
    entry.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(TableUnreadable, match="columnMapping"):
        read_table(spark, str(folder))
