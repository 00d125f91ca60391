"""Publishing tables as change events, on a real Spark and a real server."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from headwater.client import Client, ProducerClaim
from headwater.errors import BadOption, BadRow, BatchRefused
from headwater.spark.jobs.publish import Published, publish, publishing
from headwater.state import MaterializedState, change, control, encode_events
from tests.spark.conftest import Reads
from tests.spark.patience import PATIENCE
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess


class Target:
    """A stream of one test, published to."""

    def __init__(self, spark: SparkSession, client: Client, url: str, room: str, state: Path):
        self.spark = spark
        self.stream = client.stream(f"{room}/rows", content_type="application/json")
        self.url = url
        self.path = f"{room}/rows"
        self.folder = state

    def table(self, *rows: tuple[Any, ...]) -> DataFrame:
        return self.spark.createDataFrame(list(rows), "id long, name string")

    def publish(self, df: DataFrame | str, **more: Any) -> Published:
        given = {"type": "row", "key": "id", "state": str(self.folder), **more}
        return publish(self.spark, df, url=self.url, stream=self.path, **given)

    def events(self) -> list[dict[str, Any]]:
        return list(self.stream.read().items())

    def state(self, kind: str = "row") -> dict[str, Any]:
        state = MaterializedState()
        for batch in self.stream.read():
            assert state.apply_json(batch.data) == []
        return dict(state.get_type(kind))


@pytest.fixture
def target(
    spark: SparkSession, server: ServerProcess, client: Client, room: str, tmp_path: Path
) -> Target:
    return Target(spark, client, server.url, room, tmp_path / "state")


def test_what_has_changed_is_told_once(target: Target) -> None:
    first = target.publish(target.table((1, "a"), (2, "b"), (3, None)))
    assert (first.inserts, first.updates, first.deletes) == (3, 0, 0)
    same = target.publish(target.table((3, None), (2, "b"), (1, "a")))
    assert same == Published(0, 0, 0, first.offset)
    second = target.publish(target.table((1, "a"), (2, "B"), (4, "d")))
    assert (second.inserts, second.updates, second.deletes) == (1, 1, 1)
    events = target.events()
    assert sorted((each["headers"]["operation"], each["key"]) for each in events[3:]) == [
        ("delete", "3"),
        ("insert", "4"),
        ("update", "2"),
    ]
    assert {each["headers"]["txid"] for each in events[3:]} == {second.txid}
    assert target.state() == {
        "1": {"id": 1, "name": "a"},
        "2": {"id": 2, "name": "B"},
        "4": {"id": 4, "name": "d"},
    }
    empty = target.publish(target.table())
    assert (empty.deletes, target.state()) == (3, {})


@pytest.mark.parametrize("kind", ["日本", "é", "a\nb", " "])
def test_a_type_may_have_any_name(target: Target, kind: str) -> None:
    assert target.publish(target.table((1, "a")), type=kind).inserts == 1
    assert target.publish(target.table((1, "b")), type=kind).updates == 1
    assert target.state(kind) == {"1": {"id": 1, "name": "b"}}


def test_without_deletes_only_rows_are_told(target: Target) -> None:
    target.publish(target.table((1, "a"), (2, "b")))
    assert target.publish(target.table((2, "c")), deletes=False).deletes == 0
    assert target.state() == {"1": {"id": 1, "name": "a"}, "2": {"id": 2, "name": "c"}}


def test_a_table_by_name_and_chosen_columns(target: Target) -> None:
    target.table((1, "a")).createOrReplaceTempView("publish_me")
    given = {"type": "row", "state": str(target.folder), "value": ["name"]}
    target.publish("publish_me", **given, key=["id", "name"])
    assert target.state() == {'["1","a"]': {"name": "a"}}


def test_the_state_is_the_streams_and_the_folder_can_be_lost(target: Target) -> None:
    rows = target.table(*((number, f"n{number}") for number in range(50)))
    target.publish(rows)
    rmtree(target.folder)
    assert target.publish(rows).txid is None
    # As after a crash in the midst of several appends: what is there is not told again.
    target.stream.append(
        encode_events([change("delete", "row", "7"), change("update", "row", "8", {"id": 8})])
    )
    healed = target.publish(rows)
    assert (healed.inserts, healed.updates, healed.deletes) == (1, 1, 0)
    assert len(target.state()) == 50


def test_a_new_column_updates_every_row(target: Target) -> None:
    rows = target.table((1, "a"), (2, "b"))
    target.publish(rows)
    assert target.publish(rows.selectExpr("*", "id * 2 AS twice")).updates == 2
    assert target.state()["2"] == {"id": 2, "name": "b", "twice": 4}
    assert target.publish(rows.selectExpr("CAST(id AS STRING) id", "name")).updates == 2
    assert target.state()["2"] == {"id": "2", "name": "b"}


def test_a_decimal_of_many_digits_is_told_to_its_last_one(target: Target) -> None:
    for cents in ("01", "02"):
        rows = target.spark.sql(f"SELECT 1L AS id, 12345678901234567.{cents}BD AS amount")
        assert target.publish(rows).txid is not None
    assert b"12345678901234567.02" in b"".join(batch.data for batch in target.stream.read())


@pytest.mark.parametrize(
    ("rows", "problem"),
    [(((1, "a"), (1, "a")), "2 rows have the key '1'"), (((None, "a"),), "key is null")],
)
def test_rows_that_cannot_be_told_apart_publish_nothing(
    target: Target, rows: tuple[tuple[Any, ...], ...], problem: str
) -> None:
    with pytest.raises(BadRow, match=problem):
        target.publish(target.table((5, "fine"), *rows))
    assert target.events() == []


def test_controls_and_other_types_are_honoured(target: Target) -> None:
    target.stream.create(
        data=encode_events(
            [
                change("insert", "row", "0", "gone with the snapshot"),
                change("insert", "other", "1", "not ours"),
                control("snapshot-start"),
                change("insert", "row", "1", {"id": 1, "name": "a"}),
                control("snapshot-end"),
            ]
        )
    )
    done = target.publish(target.table((1, "a"), (2, "b")))
    assert (done.inserts, done.updates, done.deletes) == (1, 0, 0)
    target.stream.append(control("reset").encode())
    done = target.publish(target.table((1, "a"), (2, "b")))
    assert (done.inserts, done.updates, done.deletes) == (2, 0, 0)
    target.stream.append(control("snapshot-start").encode())
    with pytest.raises(BatchRefused, match="a snapshot is being written"):
        target.publish(target.table((1, "a")))


def test_what_is_no_event_to_other_readers_is_none_here(target: Target) -> None:
    wrong = {"type": "row", "key": "2", "value": {"id": 2, "name": "x"}}
    right = wrong | {"value": {"id": 2, "name": "b"}, "headers": {"operation": "insert"}}
    events = [
        right,
        {"headers": {"control": "reset", "offset": ""}},
        wrong | {"headers": {"operation": "update", "txid": ""}},
        wrong | {"headers": {"operation": "update", "timestamp": "yesterday"}},
        wrong | {"headers": {"operation": "update", "control": "reset"}},
    ]
    target.stream.create(data=json.dumps(events).encode())
    done = target.publish(target.table((1, "a"), (2, "b")))
    assert (done.inserts, done.updates, done.deletes) == (1, 0, 0)
    state = MaterializedState()
    for batch in target.stream.read():
        state.apply_json(batch.data)
    assert dict(state.get_type("row")) == {
        "1": {"id": 1, "name": "a"},
        "2": {"id": 2, "name": "b"},
    }


def test_a_stream_that_is_made_anew_is_published_to_from_the_start(target: Target) -> None:
    rows = target.table((1, "a"))
    target.publish(rows)
    target.stream.delete()
    assert target.publish(rows).inserts == 1
    assert target.publish(rows).txid is None


def test_a_server_that_began_anew_is_published_to_from_the_start(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerProcess() as server, Client(server.url) as client:
        target = Target(spark, client, server.url, "shop", tmp_path)
        rows = target.table((1, "a"), (2, "b"))
        target.publish(rows)
        assert target.publish(rows).txid is None
    port = server.url.rpartition(":")[2]
    for _ in range(2):
        with ServerProcess("--port", port) as server, Client(server.url) as client:
            target = Target(spark, client, server.url, "shop", tmp_path)
            caplog.clear()
            assert target.publish(rows).inserts == 2
            assert "read anew stream=shop/rows" in caplog.text
            caplog.clear()
            assert target.publish(rows).txid is None
            assert caplog.text == ""
            assert target.state().keys() == {"1", "2"}


@pytest.mark.parametrize("name", ["x" * 150, "b", "bb", "b" * 150])
def test_another_stream_of_the_same_name_is_found_out_however_long_it_is(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    with ServerProcess() as server, Client(server.url) as client:
        target = Target(spark, client, server.url, "shop", tmp_path)
        rows = target.table((1, "a"), (2, "b"))
        target.publish(rows)
        assert target.publish(rows).txid is None
        before = target.stream.head().next_offset
    port = server.url.rpartition(":")[2]
    with ServerProcess("--port", port) as server, Client(server.url) as client:
        target = Target(spark, client, server.url, "shop", tmp_path)
        # As long as the first was, shorter, or longer: all that is known of it is of no use.
        target.publish(target.table((1, "a"), (3, name)), state=str(tmp_path / "another"))
        assert target.stream.head().next_offset[:16] == before[:16]
        done = target.publish(rows)
        assert (done.inserts, done.updates, done.deletes) == (1, 0, 1)
        assert target.state() == {"1": {"id": 1, "name": "a"}, "2": {"id": 2, "name": "b"}}


def test_a_store_that_was_put_back_is_told_the_rest_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, backup, state = tmp_path / "store", tmp_path / "backup", tmp_path / "state"
    with ServerProcess("--store", str(store)) as server, Client(server.url) as client:
        target = Target(spark, client, server.url, "shop", state)
        target.publish(target.table((1, "a")))
    copytree(store, backup)
    port = server.url.rpartition(":")[2]
    again = ("--store", str(store), "--port", port)
    with ServerProcess(*again) as server, Client(server.url) as client:
        target = Target(spark, client, server.url, "shop", state)
        rows = target.table((1, "A"), (2, "b"))
        assert target.publish(rows).inserts == 1
        assert target.publish(rows).txid is None
    rmtree(store)
    copytree(backup, store)
    with ServerProcess(*again) as server, Client(server.url) as client:
        target = Target(spark, client, server.url, "shop", state)
        done = target.publish(rows)
        assert (done.inserts, done.updates, done.deletes) == (1, 1, 0)
        assert target.state() == {"1": {"id": 1, "name": "A"}, "2": {"id": 2, "name": "b"}}


def test_large_changes_come_in_several_appends(target: Target, spark: SparkSession) -> None:
    rows = spark.range(3000).selectExpr("id", "repeat('x', 100) AS name").repartition(3)
    done = target.publish(rows, append_bytes=20_000)
    assert done.inserts == 3000
    assert len(target.state()) == 3000
    assert done.offset == target.stream.head().next_offset
    assert target.publish(rows).txid is None


def test_what_is_told_need_not_fit_into_the_driver(target: Target, spark: SparkSession) -> None:
    rows = spark.range(20).selectExpr("id", "repeat('x', 200000) AS name").repartition(1)
    limits = spark.sparkContext._jsc.sc().conf()
    limits.set("spark.driver.maxResultSize", "1m")
    try:
        done = target.publish(rows, append_bytes=20_000)
    finally:
        limits.remove("spark.driver.maxResultSize")
    assert done.inserts == 20
    assert target.state().keys() == {str(number) for number in range(20)}


@pytest.mark.parametrize(
    "value",
    [
        "double('NaN')",
        "float('-Infinity')",
        "array(map('x', named_struct('y', array(0.5D, NULL, double('Infinity')))))",
    ],
)
def test_numbers_that_json_has_none_for_publish_nothing(
    target: Target, spark: SparkSession, value: str
) -> None:
    rows = spark.sql(f"SELECT 7L AS id, {value} AS v UNION ALL SELECT 8L, NULL")
    with pytest.raises(BadRow, match="the value of '7', 'NaN or Infinity in "):
        target.publish(rows)
    assert list(target.stream.read().items()) == []


def test_two_publishers_at_once_tell_each_change_once(target: Target, tmp_path: Path) -> None:
    rows = target.table(*((number, "a") for number in range(20)))
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            target.publish(rows, state=str(tmp_path / f"state{number}"), append_bytes=300)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    threads = [Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert len(target.state()) == 20
    # Whoever came second has seen what the first had told.
    assert len(target.events()) == 20


def test_a_publisher_that_comes_second_looks_again(target: Target) -> None:
    target.stream.create()
    steal = partial(act_once, url=target.url, path=target.path)
    # Rows are looked at after the stream's end was: then someone else publishes.
    done = target.publish(target.table((1, "ours")).mapInArrow(steal, "id long, name string"))
    assert (done.inserts, done.updates) == (0, 1)
    assert target.state() == {"1": {"id": 1, "name": "ours"}}
    assert len(target.events()) == 2


def test_a_publisher_whose_reading_is_overtaken_looks_again(
    target: Target, server: ServerProcess
) -> None:
    with Proxy(server.url) as proxy:
        target.url = proxy.url
        target.publish(target.table((1, "a")))

        def overtake(request: bytes) -> None:
            if request.startswith(
                b"GET "
            ):  # the first one knows how far the state is, and reads on
                proxy.before_request = None
                for name in ("b", "c"):  # the second one reads what the first has told
                    target.publish(target.table((1, name)))

        proxy.before_request = overtake
        done = target.publish(target.table((1, "ours")))
    assert (done.inserts, done.updates) == (0, 1)
    assert [each["value"]["name"] for each in target.events()] == ["a", "b", "c", "ours"]


def act_once(batches: Iterable[pa.RecordBatch], *, url: str, path: str) -> Iterator[pa.RecordBatch]:
    stolen = encode_events([change("insert", "row", "1", {"id": 1, "name": "theirs"})])
    with Client(url) as client:
        client.stream(path).append(stolen, producer=ProducerClaim("publish-row", 0, 0))
    yield from batches


def test_what_cannot_be_published_to_is_said(target: Target, client: Client, room: str) -> None:
    rows = target.table((1, "a"))
    with pytest.raises(BadOption, match="name it"):
        publish(
            target.spark,
            rows,
            url=target.url,
            stream=f"{room}/*",
            type="row",
            key="id",
            state=str(target.folder),
        )
    with pytest.raises(BadOption, match="no column 'nope'"):
        target.publish(rows, key="nope")
    with pytest.raises(BadOption, match="type"):
        target.publish(rows, type="")
    target.stream.create(closed=True)
    with pytest.raises(BatchRefused, match="takes no more appends"):
        target.publish(rows)
    target.stream.delete()
    target.stream.create("text/plain", data=b"none")
    with pytest.raises(BatchRefused, match="holds text/plain"):
        target.publish(rows)


def test_from_foreach_batch_a_replay_appends_nothing(
    target: Target, reads: Reads, client: Client, room: str, tmp_path: Path
) -> None:
    source = client.stream(f"{room}/in", content_type="application/json")
    source.create(data=b'[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]')

    def run() -> None:
        totals = reads.stream(f"{room}/in", "id long, name string").groupBy("id").count()
        each = publishing(
            url=target.url,
            stream=target.path,
            type="row",
            key="id",
            state=str(target.folder),
            deletes=False,
        )
        query = (
            totals.writeStream.outputMode("update")
            .foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE)

    run()
    assert target.state() == {"1": {"id": 1, "count": 1}, "2": {"id": 2, "count": 1}}
    source.append(b'[{"id": 2, "name": "c"}]')
    run()
    assert len(target.events()) == 3
    *_, last = sorted((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    run()
    assert len(target.events()) == 3
    assert target.state()["2"] == {"id": 2, "count": 2}
