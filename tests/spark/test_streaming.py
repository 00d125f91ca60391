"""Reading streams on and on, on a real Spark."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.client import Client
from tests.spark.conftest import Reads
from tests.spark.patience import PATIENCE


def start(df: DataFrame, name: str, folder: Path, *, once: bool = True) -> StreamingQuery:
    writer = df.writeStream.format("memory").queryName(name).outputMode("append")
    writer = writer.option("checkpointLocation", str(folder / name))
    return (writer.trigger(availableNow=True) if once else writer).start()


def values(spark: SparkSession, name: str) -> list[Any]:
    return [json.loads(row.value) for row in spark.table(name).collect()]


def wait_until(check: Callable[[], bool]) -> None:
    """Wait as long as Spark may take."""
    deadline = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_is_available_is_read_in_bounded_batches_and_the_query_ends(
    spark: SparkSession, reads: Reads, client: Client, room: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        data = json.dumps([{"of": name, "n": number} for number in range(200)]).encode()
        client.stream(f"{room}/{name}").create(data=data, closed=True)
    query = start(reads.stream(f"{room}/*", maxBytesPerTrigger="1500"), room, tmp_path)
    assert query.awaitTermination(PATIENCE)
    found = values(spark, room)
    for name in ("a", "b"):
        assert [one["n"] for one in found if one["of"] == name] == list(range(200))
    sizes = [progress.numInputRows for progress in query.recentProgress]
    assert len(sizes) > 3
    assert max(sizes) < 100
    assert json.loads(query.recentProgress[-1].sources[0].endOffset) == {
        f"{room}/{name}": client.stream(f"{room}/{name}").head().next_offset for name in ("a", "b")
    }


def test_a_query_goes_on_where_its_checkpoint_ends(
    spark: SparkSession, reads: Reads, client: Client, room: str, tmp_path: Path
) -> None:
    seen: list[int] = []

    def run() -> None:
        df = reads.stream(f"{room}/a", "n long")

        def keep(batch: DataFrame, _: int) -> None:
            seen.extend(row.n for row in batch.collect())

        query = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c"))
        assert query.trigger(availableNow=True).start().awaitTermination(PATIENCE)

    client.stream(f"{room}/a").create(data=b'[{"n":1},{"n":2}]')
    run()
    client.stream(f"{room}/a").append(b'[{"n":3}]')
    run()
    run()
    assert seen == [1, 2, 3]


def test_new_events_and_new_streams_are_picked_up(
    spark: SparkSession, reads: Reads, client: Client, room: str, tmp_path: Path
) -> None:
    client.stream(f"{room}/a").create(data=b"[1]")
    source = reads.stream(f"{room}/*", startingOffsets="latest", waitSeconds="20")
    query = start(source, room, tmp_path, once=False)
    try:
        # What the query begins behind is noted before the first batch, which reads nothing.
        wait_until((tmp_path / room / "offsets" / "0").exists)
        client.stream(f"{room}/a").append(b"[2]")
        wait_until(lambda: values(spark, room) == [2])
        client.stream(f"{room}/b").create(data=b"[3]")
        wait_until(lambda: values(spark, room) == [2, 3])
        client.stream(f"{room}/a").delete()
        wait_until(lambda: not query.isActive)
        with pytest.raises(StreamingQueryException, match="was deleted since it was read"):
            query.awaitTermination(PATIENCE)
    finally:
        query.stop()


def test_a_stream_that_was_created_again_is_told_or_read_from_its_start(
    spark: SparkSession, reads: Reads, client: Client, room: str, tmp_path: Path
) -> None:
    def run(**options: str) -> list[str]:
        seen: list[str] = []

        def keep(batch: DataFrame, _: int) -> None:
            seen.extend(row.value for row in batch.collect())

        df = reads.stream(f"{room}/*", **options)
        query = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c"))
        assert query.trigger(availableNow=True).start().awaitTermination(PATIENCE)
        return seen

    client.stream(f"{room}/a").create(data=b"[1]")
    client.stream(f"{room}/b").create(data=b"[10]")
    assert run() == ["1", "10"]
    client.stream(f"{room}/a").delete()
    client.stream(f"{room}/a").create(data=b"[2]")
    with pytest.raises(StreamingQueryException, match="created again since it was read"):
        run()
    assert run(failOnDataLoss="false") == ["2"]
    client.stream(f"{room}/b").delete()
    with pytest.raises(StreamingQueryException, match="was deleted since it was read"):
        run()
    client.stream(f"{room}/a").append(b"[3]")
    assert run(failOnDataLoss="false") == ["3"]
    assert run() == []
