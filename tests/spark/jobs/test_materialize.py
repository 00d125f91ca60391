"""Tables of state streams on a real Spark say what `headwater.state` says."""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import BadOption
from headwater.spark.jobs.materialize import materialize
from headwater.spark.jobs.materializing import table_folder
from headwater.spark.tables import open_table
from headwater.spark.transforms.state import as_of_offset, as_of_time
from headwater.state import collection, define_stream_state
from tests.docs.test_pages import blocks
from tests.spark.transforms.oracle import MALFORMED, WILD_EVENTS, Oracle, final
from tests.support.server import ServerProcess

SCHEMAS: Final = {"user": "n long not null, s string"}


class Job:
    """One job over the streams of a room, run as often as a test likes."""

    def __init__(self, spark: SparkSession, url: str, room: str, folder: Path) -> None:
        self.spark = spark
        self.source = {"url": url, "stream": f"{room}/*"}
        self.room = room
        self.folder = folder
        self.tables = str(folder / "tables")

    def run(self, **options: Any) -> int:
        """Bring the tables up to date; gives the number of batches that it took."""
        source = {**self.source, **options.pop("source", {})}
        given: dict[str, Any] = {"schemas": SCHEMAS, "checkpoint": str(self.folder / "checkpoint")}
        query = materialize(
            self.spark,
            source,
            tables=self.tables,
            trigger={"availableNow": True},
            **{**given, **options},
        )
        assert query.awaitTermination(120)
        return sum(1 for each in query.recentProgress if each.numInputRows)

    def rows(self, name: str, table_format: str = "delta") -> list[dict[str, Any]]:
        found = open_table(f"{self.tables}/{name}", table_format).read(self.spark)
        assert found is not None
        return [row.asDict(recursive=True) for row in found.collect()]

    def current(self) -> dict[str, dict[tuple[str, str], Any]]:
        """By stream, type and key: the values of all tables."""
        found: dict[str, dict[tuple[str, str], Any]] = {}
        for name in sorted(path.name for path in (self.folder / "tables").iterdir()):
            if not name.startswith("_") and not name.endswith("_history"):
                for row in self.rows(name):
                    found.setdefault(row["stream"], {})[name, row["key"]] = value_of(row)
        return found

    def quarantined(self) -> list[tuple[str, str, str, str]]:
        if not (self.folder / "tables" / "_quarantine").exists():
            return []
        names = ("stream", "type", "key", "reason")
        return sorted(tuple(row[name] for name in names) for row in self.rows("_quarantine"))


def value_of(row: Mapping[str, Any]) -> Any:
    if "value" in row:
        return json.loads(row["value"])
    shown = {"n": row["n"], "s": row["s"]}
    return {name: value for name, value in shown.items() if value is not None}


@pytest.fixture
def job(spark: SparkSession, server: ServerProcess, room: str, tmp_path: Path) -> Job:
    return Job(spark, server.url, room, tmp_path)


def append(client: Client, path: str, events: list[Any]) -> None:
    stream = client.stream(path)
    data = json.dumps(events).encode()
    if events:
        stream.append(data)


def change(type_: str, key: str, operation: str, value: Any = None, **headers: str) -> Any:
    event = {"type": type_, "key": key, "headers": {"operation": operation, **headers}}
    return event if operation == "delete" else event | {"value": value}


def control(kind: str) -> Any:
    return {"headers": {"control": kind}}


def generated(seed: int, count: int) -> list[Any]:
    """Make a stream of everything that there is, well mixed."""
    chance = random.Random(seed)
    events: list[Any] = []
    while len(events) < count:
        kind = chance.random()
        key = f"key-{chance.randrange(40)}"
        type_ = chance.choice(["user", "order", "user"])
        second = f"2025-01-15T10:30:{chance.randrange(60):02}Z"
        if kind < 0.75:
            operation = chance.choice(["insert", "update", "upsert", "delete"])
            value = {"n": chance.randrange(1000)} | ({"s": "é"} if kind < 0.2 else {})
            events.append(change(type_, key, operation, value, timestamp=second))
        elif kind < 0.9:
            bad: Any = chance.choice([None, 7, {"n": "x"}, {}, {"n": 1, "s": 2}, []])
            events.append(change("user", key, "update", bad, txid="t"))
        elif kind < 0.95:
            events.append(chance.choice(MALFORMED))
        else:
            names = ["reset", "snapshot-start", "snapshot-start", "snapshot-end", "snapshot-end"]
            events.append(control(chance.choice([*names, "snapshot-end", "up-to-date"])))
    return events


def state() -> Any:
    schema = {
        "type": "object",
        "required": ["n"],
        "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
    }
    return define_stream_state(
        {"users": collection(schema, type="user"), "orders": collection(type="order")}
    )


def told(oracle: Oracle) -> list[tuple[str, str]]:
    return sorted((each.type, each.key) for each in oracle.quarantined)


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=st.lists(WILD_EVENTS, min_size=1, max_size=6))
def test_any_streams_give_the_tables_that_the_state_gives(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[list[Any]],
) -> None:
    folder = tmp_path_factory.mktemp("any")
    job = Job(spark, server.url, folder.name, folder)
    sure = [change("user", "sure", "insert", {"n": 1})]
    streams = {f"{job.room}/{number}": events + sure for number, events in enumerate(drawn)}
    for path, events in streams.items():
        client.stream(path).create(data=json.dumps(events).encode())
    job.run()
    oracles = final(streams, state())
    assert job.current() == {path: each.rows for path, each in oracles.items() if each.rows}
    kept = {path: [row[1:3] for row in job.quarantined() if row[0] == path] for path in streams}
    assert kept == {path: told(each) for path, each in oracles.items()}


def test_the_history_of_generated_streams_can_be_asked_as_of_any_offset(
    job: Job, client: Client
) -> None:
    streams = {f"{job.room}/{name}": generated(10 + at, 100) for at, name in enumerate("ab")}
    for path, events in streams.items():
        client.stream(path).create(data=json.dumps(events[:60]).encode())
    assert job.run(source={"maxBytesPerTrigger": "4000"}) > 1
    for path, events in streams.items():
        append(client, path, events[60:])
    job.run()
    oracles = final(streams, state())
    assert job.current() == {path: each.rows for path, each in oracles.items() if each.rows}
    kept = {path: [row[1:3] for row in job.quarantined() if row[0] == path] for path in streams}
    assert kept == {path: told(each) for path, each in oracles.items()}
    for path, events in streams.items():
        check_time_travel(job, path, events)


def check_time_travel(job: Job, path: str, events: list[Any]) -> None:
    """Ask the history for some offsets, and compare with the state there."""
    reads = job.spark.read.format("headwater").options(**job.source | {"stream": path}).load()
    offsets = [row.offset for row in reads.collect()]
    assert len(offsets) == len(events)
    oracle = Oracle(state())
    for at, (offset, event) in enumerate(zip(offsets, events, strict=True)):
        oracle.take(event)
        if at % 33 and at < len(events) - 1:
            continue
        shown = {}
        for type_ in ("user", "order"):
            history = open_table(f"{job.tables}/{type_}_history").read(job.spark)
            assert history is not None
            for row in as_of_offset(history, {path: offset}).collect():
                assert (type_, row.key) not in shown
                shown[type_, row.key] = value_of(row.asDict())
        assert shown == oracle.rows


def everything(job: Job) -> dict[str, list[str]]:
    names = sorted(path.name for path in (job.folder / "tables").iterdir())
    return {name: sorted(str(sorted(row.items())) for row in job.rows(name)) for name in names}


def test_a_batch_that_is_replayed_changes_nothing(job: Job, client: Client) -> None:
    path = f"{job.room}/a"
    events = [*generated(5, 40), control("reset"), *generated(6, 40)]
    client.stream(path).create(data=json.dumps(events).encode())
    batches = job.run(source={"maxBytesPerTrigger": "4000"})
    before = everything(job)
    # As if the driver had died before it could say that the last batch is done.
    last = max(
        (job.folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda each: int(each.name)
    )
    assert int(last.name) == batches - 1
    last.unlink()
    assert job.run() == 1
    assert everything(job) == before
    assert job.current() == {path: final({path: events}, state())[path].rows}


def test_a_batch_that_fails_between_two_tables_is_finished_later(job: Job, client: Client) -> None:
    path = f"{job.room}/a"
    events = [
        control("snapshot-start"),
        change("order", "a", "insert", 1),
        change("user", "a", "insert", {"n": 1}),
        control("snapshot-end"),
        change("user", "a", "update", {"n": 2}),
        change("user", "b", "update", {"n": "two"}),
    ]
    client.stream(path).create(data=json.dumps(events).encode())
    (job.folder / "tables").mkdir()
    obstacle = job.folder / "tables" / "user_history"
    obstacle.write_text("not a folder")
    with pytest.raises(StreamingQueryException):
        job.run()
    assert value_of(job.rows("user")[0]) == {"n": 2}
    assert job.quarantined() == []
    obstacle.unlink()
    assert job.run() == 1
    assert job.current() == {path: {("order", "a"): 1, ("user", "a"): {"n": 2}}}
    assert [(row["n"], row["valid_to"] is None) for row in by_offset(job.rows("user_history"))] == [
        (1, False),
        (2, True),
    ]
    assert [row[1:3] for row in job.quarantined()] == [("user", "b")]


@pytest.mark.parametrize("name", ["user", "user_history", "_history off"])
def test_a_table_that_is_gone_is_not_begun_anew(job: Job, client: Client, name: str) -> None:
    path = f"{job.room}/a"
    history = name != "_history off"
    client.stream(path).create(data=json.dumps([change("user", "a", "insert", {"n": 1})]).encode())
    job.run(history=history)
    append(client, path, [change("order", "b", "insert", 2)])  # a type that comes later
    job.run(history=history)
    before = everything(job)
    table, aside = job.folder / "tables" / (name if history else "order"), job.folder / "aside"
    table.rename(aside)
    append(client, path, [change("user", "c", "insert", {"n": 3})])
    with pytest.raises(StreamingQueryException, match=r"does not hold.*Bring it back"):
        job.run(history=history)
    assert not table.exists()
    aside.rename(table)
    assert everything(job) == before
    job.run(history=history)
    assert {key for _, key in job.current()[path]} == {"a", "b", "c"}


def test_tables_in_another_folder_or_format_are_not_begun_under_a_checkpoint(
    job: Job, client: Client
) -> None:
    path = f"{job.room}/a"
    client.stream(path).create(data=json.dumps([change("user", "a", "insert", {"n": 1})]).encode())
    job.run()
    append(client, path, [change("user", "b", "insert", {"n": 2})])
    with pytest.raises(StreamingQueryException, match=r"does not hold.*begin anew"):
        job.run(table_format="parquet")
    there, job.tables = job.tables, str(job.folder / "others")
    with pytest.raises(StreamingQueryException, match=r"does not hold.*begin anew"):
        job.run()
    job.tables = there
    job.run(history=False)  # from here on the histories lack something, and are not asked for
    (job.folder / "tables" / "user_history").rename(job.folder / "aside")
    append(client, path, [change("user", "c", "insert", {"n": 3})])
    job.run(history=False)
    assert {key for _, key in job.current()[path]} == {"a", "b", "c"}


def by_offset(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["offset"]))


def test_a_snapshot_that_is_open_ends_with_its_stream(job: Job, client: Client) -> None:
    def data(*events: Any) -> bytes:
        return json.dumps(events).encode()

    start, end = control("snapshot-start"), control("snapshot-end")
    begun = data(start, change("order", "old", "insert", 1))
    for name in ("a", "b"):
        client.stream(f"{job.room}/{name}").create(data=begun)
    # A fork has offsets of its source as well: its snapshot goes on.
    source = client.stream(f"source-of-{job.room}")
    source.create(data=begun)
    source.fork(f"{job.room}/c")
    careless = {"failOnDataLoss": "false"}
    job.run(source=careless)
    assert job.current() == {}
    for name in ("a", "b"):
        client.stream(f"{job.room}/{name}").delete()
    new = change("order", "new", "insert", 2)
    client.stream(f"{job.room}/a").create(data=data(new))
    client.stream(f"{job.room}/b").create(data=data(new, end))
    append(client, f"{job.room}/c", [new, end])
    job.run(source=careless)
    assert job.current() == {
        f"{job.room}/a": {("order", "new"): 2},
        f"{job.room}/b": {("order", "new"): 2},
        f"{job.room}/c": {("order", "old"): 1, ("order", "new"): 2},
    }


def test_rows_of_a_deleted_stream_stay_until_the_next_one_at_its_path_has_a_snapshot(
    job: Job, client: Client
) -> None:
    def data(*events: Any) -> bytes:
        return json.dumps(events).encode()

    source = client.stream(f"source-of-{job.room}")
    source.create(data=data(change("order", "k", "insert", "taken over")))
    old = data(change("order", "k", "insert", "old"), change("order", "gone", "insert", "old"))
    for name in ("anew", "fork"):
        client.stream(f"{job.room}/{name}").create(data=old)
    careless = {"failOnDataLoss": "false"}
    job.run(source=careless)
    for name in ("anew", "fork"):
        client.stream(f"{job.room}/{name}").delete()
    client.stream(f"{job.room}/anew").create(data=data(change("order", "k", "insert", "new")))
    source.fork(f"{job.room}/fork")
    append(client, f"{job.room}/fork", [change("order", "own", "insert", "new")])
    job.run(source=careless)
    # The offsets of what a fork took over are older than those of the stream before it.
    stays = {("order", "k"): "old", ("order", "gone"): "old"}
    assert job.current() == {
        f"{job.room}/anew": stays | {("order", "k"): "new"},
        f"{job.room}/fork": stays | {("order", "own"): "new"},
    }
    snapshot = [change("order", "k", "insert", "taken over"), change("order", "own", "insert", 1)]
    start, end = control("snapshot-start"), control("snapshot-end")
    for name in ("anew", "fork"):
        append(client, f"{job.room}/{name}", [start, *snapshot, end])
    job.run(source=careless)
    right = {("order", "k"): "taken over", ("order", "own"): 1}
    assert job.current() == {f"{job.room}/{name}": right for name in ("anew", "fork")}
    valid = [row for row in job.rows("order_history") if row["valid_to"] is None]
    assert sorted((row["stream"], row["key"]) for row in valid) == sorted(
        (f"{job.room}/{name}", key) for name in ("anew", "fork") for key in ("k", "own")
    )


def test_columns_of_the_tables(job: Job, client: Client) -> None:
    event = change("user", "a", "insert", {"n": 1}, timestamp="2025-01-15T10:30:00Z", txid="t1")
    client.stream(f"{job.room}/a").create(data=json.dumps([event]).encode())
    job.run(source={"mode": "raw"})
    (row,) = job.rows("user")
    offset = client.stream(f"{job.room}/a").head().next_offset
    assert row == {
        "stream": f"{job.room}/a",
        "key": "a",
        "n": 1,
        "s": None,
        "offset": offset,
        "timestamp": datetime(2025, 1, 15, 10, 30),  # noqa: DTZ001 - as Spark gives it
        "txid": "t1",
    }
    (version,) = job.rows("user_history")
    assert version["operation"] == "insert"
    assert (version["valid_from"], version["valid_to"]) == (offset, None)
    assert version["valid_from_time"] == row["timestamp"]


def test_history_is_asked_as_of_a_time(job: Job, client: Client) -> None:
    def at(second: int) -> str:
        return f"2025-01-15T10:30:{second:02}Z"

    events = [
        change("user", "a", "insert", {"n": 1}, timestamp=at(10)),
        change("user", "b", "insert", {"n": 2}),
        change("user", "a", "update", {"n": 3}, timestamp=at(20)),
        change("user", "b", "update", {"n": 4}, timestamp=at(15)),
        {"headers": {"control": "reset", "timestamp": at(30)}},
    ]
    client.stream(f"{job.room}/a").create(data=json.dumps(events).encode())
    job.run()
    history = open_table(f"{job.tables}/user_history").read(job.spark)
    assert history is not None

    def numbers(second: int) -> list[int]:
        when = datetime(2025, 1, 15, 10, 30, second, tzinfo=UTC)
        return sorted(row.n for row in as_of_time(history, when).collect())

    # What is written late with an early time is as late as what came before it.
    seconds = (9, 10, 19, 20, 29, 30, 40)
    assert [numbers(second) for second in seconds] == [[], [1, 2], [1, 2], [3, 4], [3, 4], [], []]


def test_types_whose_histories_are_asked_together_are_as_of_one_offset(
    job: Job, client: Client
) -> None:
    events = [
        change("user", "a", "insert", {"n": 1}, timestamp="2025-01-15T10:00:00Z"),
        change("order", "b", "insert", 2, timestamp="2025-01-15T12:00:00Z"),
        change("user", "a", "update", {"n": 3}),
    ]
    client.stream(f"{job.room}/a").create(data=json.dumps(events).encode())
    job.run()
    users = open_table(f"{job.tables}/user_history").read(job.spark)
    orders = open_table(f"{job.tables}/order_history").read(job.spark)
    assert users is not None
    assert orders is not None
    when = datetime(2025, 1, 15, 11, tzinfo=UTC)
    # Nothing in the history of one type tells that the other one was later.
    assert [row.n for row in as_of_time(users, when).collect()] == [3]
    both = users.unionByName(orders, allowMissingColumns=True)
    assert [(row.key, row.n) for row in as_of_time(both, when).collect()] == [("a", 1)]


def test_new_types_and_new_columns_appear_and_what_cannot_change_is_said(
    job: Job, client: Client
) -> None:
    stream = client.stream(f"{job.room}/a")
    stream.create(data=json.dumps([change("user", "a", "insert", {"n": 1, "x": 2})]).encode())
    job.run(history=False, table_format="parquet")
    append(client, f"{job.room}/a", [change("../über history", "é", "insert", [1])])
    append(client, f"{job.room}/a", [change("user", "b", "insert", {"n": 1, "x": 2})])
    wider = {"user": "n long not null, s string, x long"}
    job.run(history=False, table_format="parquet", schemas=wider)
    rows = sorted(job.rows("user", "parquet"), key=lambda row: str(row["key"]))
    assert [row["x"] for row in rows] == [None, 2]
    assert job.rows(table_folder("../über history"), "parquet")[0]["value"] == "[1]"
    assert not (job.folder / "tables" / "user_history").exists()

    append(client, f"{job.room}/a", [change("user", "c", "insert", {"n": 1, "x": 2})])
    for schema, reason in {
        "n string": "can't become string",
        "n long, s string, y long not null": "'y' is not there",
        None: "'value' is columns",
    }.items():
        schemas = {} if schema is None else {"user": schema}
        with pytest.raises(StreamingQueryException, match=reason):
            job.run(history=False, table_format="parquet", schemas=schemas)
    other = str(job.folder / "other")
    with pytest.raises(StreamingQueryException, match="another checkpoint"):
        job.run(history=False, table_format="parquet", schemas=wider, checkpoint=other)
    with pytest.raises(StreamingQueryException, match="gone on without"):
        job.run(table_format="parquet", schemas=wider)
    job.run(history=False, table_format="parquet", schemas=wider)
    assert len(job.rows("user", "parquet")) == 3


def test_columns_come_and_go_in_the_history_too(job: Job, client: Client) -> None:
    client.stream(f"{job.room}/a").create()
    for value, schema in [
        ({"n": 1, "s": "x"}, "n long not null, s string"),
        ({"n": 2, "s": "y", "x": 5}, "n long not null, s string, x long"),
        ({"n": 3, "s": "z", "x": 6}, "n long not null, x long"),
    ]:
        append(client, f"{job.room}/a", [change("user", "a", "upsert", value)])
        job.run(schemas={"user": schema})
    (row,) = job.rows("user")
    assert (row["n"], row["s"], row["x"]) == (3, None, 6)
    versions = sorted(job.rows("user_history"), key=lambda each: str(each["valid_from"]))
    assert [(each["n"], each["s"], each["x"]) for each in versions] == [
        (1, "x", None),
        (2, "y", 5),
        (3, None, 6),
    ]


def test_a_field_may_be_called_as_a_column_of_the_table(job: Job, client: Client) -> None:
    value = {"key": "k", "Offset": 5, "_bucket": 6, "n": 1}
    data = json.dumps([change("user", "a", "insert", value)]).encode()
    client.stream(f"{job.room}/a").create(data=data)
    job.run(schemas={"user": "key string, Offset int, _bucket int, n long"})
    for name in ("user", "user_history"):
        (row,) = job.rows(name)
        assert (row["key"], row["value_key"], row["value_Offset"], row["n"]) == ("a", "k", 5, 1)
        assert row["value__bucket"] == 6


def test_a_nested_value_that_is_never_null_keeps_aside_what_lacks_it(
    job: Job, client: Client
) -> None:
    events = [
        change("user", "a", "insert", {"o": {"p": 1}}),
        change("user", "b", "insert", {"o": {"p": None}}),
        change("user", "c", "insert", {"o": {}}),
        change("user", "d", "insert", {"o": None}),
        change("user", "e", "insert", {}),
        change("user", "a", "delete"),
    ]
    client.stream(f"{job.room}/a").create(data=json.dumps(events).encode())
    job.run(schemas={"user": "o struct<p: int not null>"})
    assert {row["key"]: row["o"] for row in job.rows("user")} == {"d": None, "e": None}
    versions = [(row["key"], row["operation"], row["o"]) for row in job.rows("user_history")]
    assert sorted(versions, key=lambda row: row[:2]) == [
        ("a", "delete", None),
        ("a", "insert", {"p": 1}),
        ("d", "insert", None),
        ("e", "insert", None),
    ]
    assert job.quarantined() == [
        (f"{job.room}/a", "user", "b", "Expected `int`, got `null` - at `$.o.p`"),
        (f"{job.room}/a", "user", "c", "Object missing required field `p` - at `$.o`"),
    ]


def test_a_stream_that_holds_no_messages_is_kept_aside_and_others_go_on(
    job: Job, client: Client
) -> None:
    text, image = client.stream(f"{job.room}/a"), client.stream(f"{job.room}/b")
    text.create(content_type="text/plain", data=b"hello")
    image.create(content_type="image/png", data=b"\x89PNG\xff")
    events = [change("order", "a", "insert", 1)]
    client.stream(f"{job.room}/c").create(data=json.dumps(events).encode())
    job.run()
    assert job.current() == {f"{job.room}/c": {("order", "a"): 1}}
    aside = sorted(job.rows("_quarantine"), key=lambda row: str(row["stream"]))
    assert [(row["stream"], row["offset"], row["reason"]) for row in aside] == [
        (
            f"{job.room}/{name}",
            stream.head().next_offset,
            f"the stream holds {kind} and no messages",
        )
        for name, stream, kind in (("a", text, "text/plain"), ("b", image, "image/png"))
    ]


def test_names_of_tables_are_safe_and_apart() -> None:
    names = ["user", "user_history", "_quarantine", "../x", "a b", "é", "a.b-c_d", "..", "~"]
    folders = [table_folder(name) for name in names]
    assert len(set(folders)) == len(names)
    assert folders[0] == "user"
    assert folders[6] == "a.b-c_d"
    assert all(name[0] not in "._" and "/" not in name for name in folders)
    assert not any(name.endswith("_history") for name in folders)
    long = [table_folder("é" * 200 + end) for end in "ab"]
    assert len(set(long)) == 2
    assert all(len(name) < 200 for name in long)


def test_schemas_that_cannot_be_used_are_refused_before_anything_runs(job: Job) -> None:
    for schema, reason in {
        "n lnog": "no schema",
        "int": "one type",
        "n interval day": "read it as string",
        "name string, Name string": "'name' and 'Name' would be one column: rename one",
        "key string, value_key string": "'key' and 'value_key' would be one column: rename one",
        "n int, n int": "'n' and 'n' would be one column",
        "o struct<a: int, A: int>": "'o.a' and 'o.A' would be one column",
        "l array<struct<m: map<string, struct<a: int, A: int>>>>": "'l.m.a' and 'l.m.A' would be",
    }.items():
        with pytest.raises(BadOption, match=reason):
            job.run(schemas={"user": schema})
    with pytest.raises(BadOption, match="all types: remove it"):
        job.run(source={"mode": "state", "types": "user"})
    with pytest.raises(BadOption, match="delta, parquet"):
        job.run(table_format="csv")


def test_the_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "page"}
    printed, shown = io.StringIO(), 0
    with ServerProcess() as server:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "HEADWATER_URL": server.url, "PATH": path}
        for language, text in blocks("docs/pipelines-materialize.md"):
            code = text.replace("http://localhost:4437", server.url)
            if language == "bash":
                subprocess.run(["bash", "-euc", code], env=environment, check=True, timeout=60)
            elif language == "python":
                printed = io.StringIO()
                # Spark's JVM does not change its folder: it has to be told where this one is.
                code = code.replace('"checkpoints/shop"', repr(str(tmp_path / "checkpoint")))
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, "page.py", "exec"), scope)
            elif language == "output":
                assert text.strip() in printed.getvalue()
                shown += 1
    assert shown == 2
