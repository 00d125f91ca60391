"""Writing to streams, on a real Spark."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headwater.client import START, Client
from tests.spark.conftest import Reads
from tests.spark.patience import PATIENCE
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


def test_a_batch_is_repeated_onto_a_stream_that_was_closed_since(
    spark: SparkSession, server: ServerProcess, client: Client, room: str
) -> None:
    df = spark.range(10).coalesce(1)
    target = {"stream": f"{room}/ended", "writeId": room}
    write(df, server, **target, batchId="1")
    client.stream(f"{room}/ended").close()
    write(df, server, **target, batchId="1")
    items = list(client.stream(f"{room}/ended").read().items())
    assert [item["id"] for item in items] == list(range(10))
    with pytest.raises(PySparkException, match="takes no more appends"):
        write(df, server, **target, batchId="2")


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


@pytest.mark.parametrize(
    "column",
    [
        "IF(id = 19, double('NaN'), id)",
        "IF(id = 19, float('-Infinity'), 1)",
        "named_struct('x', array(map('k', IF(id = 19, double('Infinity'), 1))))",
    ],
)
def test_numbers_that_json_has_not_fail_the_write(
    spark: SparkSession, server: ServerProcess, client: Client, room: str, column: str
) -> None:
    df = spark.range(20).selectExpr(f"'{room}/bad' AS stream", f"{column} AS n")
    with pytest.raises(PySparkException, match="'n' is or holds NaN or an infinity"):
        write(df, server)
    assert not client.stream(f"{room}/bad").exists()
    write(df.where("id < 19"), server)
    assert len(list(client.stream(f"{room}/bad").read().items())) == 19


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{room}//b", "no path of a stream"),
        (" ", "no path of a stream"),
        ("{room}/b/", "no path of a stream"),
        ("{room}/../b", "no path of a stream"),
        ("{room}/\u0007", "no path of a stream"),
        ("{room}/" + "x" * 5000, "longer than"),
    ],
    ids=["empty part", "blank", "empty end", "upwards", "control", "long"],
)
def test_a_row_with_a_path_that_no_stream_can_have_leaves_nothing(
    spark: SparkSession, server: ServerProcess, client: Client, room: str, path: str, message: str
) -> None:
    rows = [(f"{room}/a", "1"), (path.format(room=room), "2")]
    df = spark.createDataFrame(rows, "stream string, value string")
    with pytest.raises(PySparkException, match=message):
        write(df, server)
    assert not list(client.streams(f"{room}/**"))


def test_a_query_has_no_write_id(
    reads: Reads, server: ServerProcess, client: Client, room: str, tmp_path: Path
) -> None:
    client.stream(f"{room}/in").create(data=b"[1]")
    writer = reads.stream(f"{room}/in").select("value").writeStream.format("headwater")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.options(url=server.url, stream=f"{room}/out", writeId="x")
    with pytest.raises(PySparkException, match="a query has an id of its own"):
        writer.start().awaitTermination(PATIENCE)


@pytest.mark.parametrize("path", ["{other}/v1/stream/stolen", "__ds/subscriptions/x"])
def test_a_row_goes_to_a_stream_of_this_server_or_nowhere(
    spark: SparkSession, server: ServerProcess, room: str, path: str
) -> None:
    with ServerProcess() as other, Client(other.url) as elsewhere:
        stream = path.format(other=other.url)
        df = spark.createDataFrame(
            [(f"{room}/a", "1"), (stream, "2")], "stream string, value string"
        )
        with pytest.raises(PySparkException, match="no path of a stream"):
            write(df, server)
        with pytest.raises(PySparkException, match="the path of a stream"):
            write(df.select("value"), server, stream=stream)
        assert list(elsewhere.streams()) == []


def test_rows_without_a_stream_go_to_the_one_of_the_option(
    spark: SparkSession, server: ServerProcess, client: Client, room: str
) -> None:
    df = spark.createDataFrame([(None, "1"), (f"{room}/b", "2")], "stream string, value string")
    with pytest.raises(PySparkException, match="its column 'stream' is empty"):
        write(df, server)
    write(df, server, stream=f"{room}/a")
    assert list(client.stream(f"{room}/a").read().items()) == [1]
    assert list(client.stream(f"{room}/b").read().items()) == [2]


def test_empty_texts_add_nothing(
    spark: SparkSession, server: ServerProcess, client: Client, room: str
) -> None:
    df = spark.createDataFrame(
        [(f"{room}/a", ""), (f"{room}/b", "x")], "stream string, value string"
    )
    write(df, server, contentType="text/plain")
    assert not client.stream(f"{room}/a").exists()
    assert "".join(client.stream(f"{room}/b").read().text()) == "x"


def test_a_batch_reaches_many_streams(
    spark: SparkSession, server: ServerProcess, client: Client, room: str
) -> None:
    df = spark.range(300).selectExpr(f"concat('{room}/', id % 100) AS stream", "id")
    write(df, server, writeId=room)
    write(df.repartition(3), server, writeId=room)
    found = [
        item["id"]
        for each in client.streams(f"{room}/*")
        for item in client.stream(each.path).read().items()
    ]
    assert sorted(found) == list(range(300))


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
        assert query.awaitTermination(PATIENCE)

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


def test_order_is_kept_over_the_tasks_of_a_batch(
    reads: Reads, server: ServerProcess, client: Client, room: str, tmp_path: Path
) -> None:
    data = json.dumps([{"n": number} for number in range(600)]).encode()
    client.stream(f"{room}/in").create(data=data)
    df = reads.stream(f"{room}/in", "n long", splitBytes="1k")
    routed = df.selectExpr(
        f"concat('{room}/out/', n % 2) AS stream", "n", "spark_partition_id() AS task"
    )
    query = (
        routed.writeStream.format("headwater")
        .options(url=server.url, checkpointLocation=str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    for key in range(2):
        items = list(client.stream(f"{room}/out/{key}").read().items())
        assert [item["n"] for item in items] == list(range(key, 600, 2))
        assert len({item["task"] for item in items}) > 4


def test_a_batch_that_is_too_long_for_one_stream_is_in_none(
    reads: Reads, client: Client, room: str, tmp_path: Path
) -> None:
    data = json.dumps([{"n": number} for number in range(400)]).encode()
    client.stream(f"{room}/in").create(data=data)
    store = str(tmp_path / "store")

    def run(url: str, **options: str) -> None:
        routed = reads.stream(f"{room}/in", "n long", **options).selectExpr(
            "IF(n < 10, 'a/few', 'b/many') AS stream", "n"
        )
        writer = routed.writeStream.format("headwater").trigger(availableNow=True)
        query = writer.options(url=url, checkpointLocation=str(tmp_path / "c")).start()
        assert query.awaitTermination(PATIENCE)

    with ServerProcess("--store", store, "--max-body-bytes", "1000") as small:
        port = small.url.rpartition(":")[2]
        for options in ({}, {"maxBytesPerTrigger": "500"}):  # a batch is repeated as it was
            with pytest.raises(StreamingQueryException, match="and nothing was appended"):
                run(small.url, **options)
        with Client(small.url) as target:
            assert [one.path for one in target.streams("**") if one.tail != START] == []
    with ServerProcess("--store", store, "--port", port) as large, Client(large.url) as target:
        run(large.url)
        assert [item["n"] for item in target.stream("a/few").read().items()] == list(range(10))
        many = [item["n"] for item in target.stream("b/many").read().items()]
        assert many == list(range(10, 400))
