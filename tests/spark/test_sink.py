"""Writing to streams, on a real Spark."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headwater.client import Client
from tests.spark.conftest import Reads
from tests.support.server import ServerProcess


def write(df: DataFrame, server: ServerProcess, **options: str) -> None:
    df.write.format("headwater").mode("append").options(url=server.url, **options).save()


def test_rows_go_to_the_streams_that_a_column_names_in_their_order(
    spark: SparkSession, server: ServerProcess, client: Client, room: str
) -> None:
    df = spark.range(100).select(
        f.format_string(f"{room}/%d", f.col("id") % 3).alias("stream"),
        "id",
        f.lit(None).cast("string").alias("nothing"),
        f.struct(f.lit(1.5).alias("x")).alias("nested"),
    )
    write(df.coalesce(1), server)
    for key in range(3):
        items = list(client.stream(f"{room}/{key}").read().items())
        assert [item["id"] for item in items] == list(range(key, 100, 3))
    assert items[0] == {"id": 2, "nothing": None, "nested": {"x": 1.5}}


def test_values_are_written_as_they_are(
    spark: SparkSession, server: ServerProcess, client: Client, room: str
) -> None:
    rows = [('{"a": [1,  2]}',), ("[3]",), ("null",)]
    write(spark.createDataFrame(rows, "value string").coalesce(1), server, stream=f"{room}/v")
    assert list(client.stream(f"{room}/v").read().items()) == [{"a": [1, 2]}, [3], None]
    text = spark.createDataFrame([("a",), ("é\n",)], "value string").coalesce(1)
    write(text, server, stream=f"{room}/t", contentType="text/plain")
    assert "".join(client.stream(f"{room}/t").read().text()) == "aé\n"


def test_a_write_id_is_written_once_and_in_the_order_of_its_batches(
    spark: SparkSession, server: ServerProcess, client: Client, room: str
) -> None:
    def run(batch: str, partitions: int) -> None:
        df = spark.range(10).selectExpr("id", f"{batch} AS batch").repartition(partitions)
        write(df, server, stream=f"{room}/once", writeId=room, batchId=batch)

    run("0", 1)
    run("0", 2)
    run("3", 2)
    run("3", 1)
    items = list(client.stream(f"{room}/once").read().items())
    assert sorted((item["batch"], item["id"]) for item in items) == [
        (batch, number) for batch in (0, 3) for number in range(10)
    ]
    with pytest.raises(PySparkException, match="a later batch of this query"):
        run("1", 1)


@pytest.mark.parametrize(
    ("column", "message"),
    [("'1,2'", "is no JSON"), ("CAST(NULL AS STRING)", "is null"), ("'{'", "is no JSON")],
)
def test_a_bad_row_fails_the_write_and_leaves_nothing(
    spark: SparkSession, server: ServerProcess, client: Client, room: str, column: str, message: str
) -> None:
    df = spark.range(20).selectExpr(
        f"'{room}/bad' AS stream", f"IF(id = 19, {column}, string(id)) AS value"
    )
    with pytest.raises(PySparkException, match=message):
        write(df, server)
    assert not client.stream(f"{room}/bad").exists()


def test_what_cannot_be_written_to_is_said(
    spark: SparkSession, server: ServerProcess, client: Client, room: str
) -> None:
    df = spark.range(1)
    client.stream(f"{room}/closed").create(closed=True)
    client.stream(f"{room}/text").create("text/plain")
    for options, message in [
        ({"stream": f"{room}/closed"}, "takes no more appends"),
        ({"stream": f"{room}/text"}, "Set the option contentType"),
        ({"stream": f"{room}/new", "createStreams": "false"}, "new"),
        ({"stream": f"{room}/*"}, "a glob can't be written to"),
        ({}, "name a stream"),
    ]:
        with pytest.raises(PySparkException, match=message):
            write(df, server, **options)
    with pytest.raises(PySparkException, match="only ever appended to"):
        df.write.format("headwater").mode("overwrite").options(
            url=server.url, stream=f"{room}/x"
        ).save()


def test_a_streaming_query_writes_each_input_once_over_restarts(
    reads: Reads, server: ServerProcess, client: Client, room: str, tmp_path: Path
) -> None:
    def run(partitions: int, *, fail_at: int = -1) -> None:
        df = reads.stream(f"{room}/in", "n long", maxBytesPerTrigger="600").repartition(partitions)
        routed = df.selectExpr(
            f"concat('{room}/out/', n % 2) AS stream",
            f"IF(n = {fail_at}, raise_error('stop here'), n) AS n",
        )
        query = (
            routed.writeStream.format("headwater")
            .options(url=server.url, checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    client.stream(f"{room}/in").create(
        data=json.dumps([{"n": number} for number in range(200)]).encode()
    )
    with pytest.raises(StreamingQueryException, match="stop here"):
        run(2, fail_at=150)
    run(3)
    # As after a crash between the append and Spark's own commit: the last batch runs again, and
    # its rows are split in another way.
    *_, last = sorted((tmp_path / "c" / "commits").iterdir(), key=lambda file: int(file.name))
    last.unlink()
    run(1)
    assert last.exists()
    for key in (0, 1):
        items = client.stream(f"{room}/out/{key}").read().items()
        assert sorted(item["n"] for item in items) == list(range(key, 200, 2))
