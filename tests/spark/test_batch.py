"""Reading streams once, on a real Spark."""

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from headwater.client import Client
from tests.spark.conftest import Reads

NUMBERS = [{"n": number, "pad": "é" * (number % 7)} for number in range(500)]


def fill(client: Client, path: str) -> str:
    """Make a stream of numbers; gives its end."""
    return client.stream(path).create(data=json.dumps(NUMBERS).encode()).next_offset


def test_rows_come_in_order_with_the_offset_behind_each(
    reads: Reads, client: Client, room: str
) -> None:
    tail = fill(client, f"{room}/a")
    rows = reads.batch(f"{room}/a").collect()
    assert [json.loads(row.value) for row in rows] == NUMBERS
    assert {row.stream for row in rows} == {f"{room}/a"}
    assert rows[-1].offset == tail
    behind = client.stream(f"{room}/a").read(rows[99].offset).items()
    assert list(behind) == NUMBERS[100:]


def test_a_long_stream_is_read_by_several_tasks(reads: Reads, client: Client, room: str) -> None:
    fill(client, f"{room}/a")
    whole = reads.batch(f"{room}/a")
    pieces = reads.batch(f"{room}/a", splitBytes="2k")
    assert whole.rdd.getNumPartitions() == 1
    assert pieces.rdd.getNumPartitions() > 5
    assert pieces.collect() == whole.collect()


def test_globs_and_lists_choose_streams(reads: Reads, client: Client, room: str) -> None:
    for name in ("x/1", "x/2", "y/1"):
        client.stream(f"{room}/{name}").create(data=b"[1]")

    def found(stream: str) -> list[str]:
        return [row.stream.removeprefix(f"{room}/") for row in reads.batch(stream).collect()]

    assert found(f"{room}/x/*") == ["x/1", "x/2"]
    assert found(f"{room}/**") == ["x/1", "x/2", "y/1"]
    assert found(f"{room}/y/1, {room}/x/2") == ["x/2", "y/1"]
    assert found(f"{room}/none/*") == []


def test_a_range_of_offsets_is_read(reads: Reads, client: Client, room: str) -> None:
    fill(client, f"{room}/a")
    offsets = [row.offset for row in reads.batch(f"{room}/a").collect()]
    chosen = {
        "startingOffsets": json.dumps({f"{room}/a": offsets[9]}),
        "endingOffsets": json.dumps({f"{room}/a": offsets[19]}),
    }
    rows = reads.batch(f"{room}/a", **chosen).collect()
    assert [json.loads(row.value)["n"] for row in rows] == list(range(10, 20))
    assert reads.batch(f"{room}/a", startingOffsets="latest").collect() == []


def test_filters_of_one_query_do_not_touch_another(reads: Reads, client: Client, room: str) -> None:
    for name in ("a", "b"):
        fill(client, f"{room}/{name}")
    everything = reads.batch(f"{room}/*", splitBytes="2k")
    late = everything.filter((f.col("stream") == f"{room}/b") & (f.col("value").contains("49")))
    assert {json.loads(row.value)["n"] for row in late.collect()} >= set(range(490, 500))
    assert everything.count() == 2 * len(NUMBERS)


def test_the_state_mode_gives_the_fields_of_changes(
    reads: Reads, client: Client, room: str
) -> None:
    change = {
        "type": "user",
        "key": "1",
        "value": {"name": "Ada"},
        "old_value": None,
        "headers": {"operation": "insert", "txid": "t1", "timestamp": "2026-01-01T00:00:00Z"},
    }
    other = {"type": "order", "key": "9", "headers": {"operation": "delete"}}
    events = [change, {"headers": {"control": "reset"}}, other]
    client.stream(f"{room}/s").create(data=json.dumps(events).encode())
    rows = reads.batch(f"{room}/s", mode="state")
    first, reset, last = rows.drop("stream", "offset").collect()
    assert first.asDict() == {
        "type": "user",
        "key": "1",
        "value": '{"name": "Ada"}',
        "old_value": "null",
        "operation": "insert",
        "txid": "t1",
        "timestamp": "2026-01-01T00:00:00Z",
        "control": None,
    }
    assert (reset.control, reset.type) == ("reset", None)
    assert (last.operation, last.value) == ("delete", None)
    assert [row.key for row in rows.filter("type = 'order'").collect()] == ["9"]


def test_the_runs_mode_gives_the_fields_of_events(reads: Reads, client: Client, room: str) -> None:
    event = {
        "runId": "r1",
        "runSeq": 3,
        "eventType": "StepStarted",
        "stepId": "model.orders",
        "logicalAttemptId": "2",
        "emittedAt": "2026-01-02T03:04:05.678Z",
        "eventData": {"startedAt": "2026-01-02T03:04:05Z"},
    }
    client.stream(f"{room}/r").create(data=json.dumps([event]).encode())
    row = reads.batch(f"{room}/r", mode="runs").first()
    assert row is not None
    assert (row.run_id, row.run_seq, row.step_id, row.logical_attempt_id) == (
        "r1",
        3,
        "model.orders",
        2,
    )
    assert row.emitted_at.isoformat() == "2026-01-02T03:04:05.678000"
    assert json.loads(row.event_data) == event["eventData"]


def test_a_users_schema_is_applied(reads: Reads, client: Client, room: str) -> None:
    data = b'[{"id": 1, "tags": ["a", null], "at": {"x": 1.5}, "more": 1}, {"id": 2}, {"id": "no"}]'
    client.stream(f"{room}/j").create(data=data)
    schema = "id long, tags array<string>, at struct<x: double>, stream string"
    with pytest.raises(PySparkException, match=r"ends at offset .* Expected `int \| null`"):
        reads.batch(f"{room}/j", schema).collect()
    rows = reads.batch(f"{room}/j", f"{schema}, _corrupt string").collect()
    assert [row.id for row in rows] == [1, 2, None]
    assert rows[0].tags == ["a", None]
    assert rows[0]["at"].x == 1.5
    assert [row._corrupt for row in rows] == [None, None, '{"id": "no"}']


def test_values_come_as_binary_and_variant_too(reads: Reads, client: Client, room: str) -> None:
    fill(client, f"{room}/a")
    client.stream(f"{room}/b").create("application/octet-stream", data=b"\xff\x00")
    variants = reads.batch(f"{room}/a", valueType="variant")
    got = variants.selectExpr("sum(variant_get(value, '$.n', 'long')) AS total").first()
    assert got is not None
    assert got.total == sum(range(500))
    (row,) = reads.batch(f"{room}/b", valueType="binary").collect()
    assert bytes(row.value) == b"\xff\x00"
    with pytest.raises(PySparkException, match="use binary"):
        reads.batch(f"{room}/b").collect()


def test_a_fork_is_read_through_its_fork_point(reads: Reads, client: Client, room: str) -> None:
    client.stream(f"{room}/source").create(data=b"[1,2]")
    client.stream(f"{room}/source").fork(f"{room}/fork")
    client.stream(f"{room}/fork").append(b"[3,4]")
    rows = reads.batch(f"{room}/fork").collect()
    assert [row.value for row in rows] == ["1", "2", "3", "4"]
    for at, row in enumerate(rows):
        behind = list(client.stream(f"{room}/fork").read(row.offset).items())
        assert behind == [1, 2, 3, 4][at + 1 :]


def test_what_cannot_be_read_is_said(reads: Reads, client: Client, room: str) -> None:
    with pytest.raises(PySparkException, match="there is no stream"):
        reads.batch(f"{room}/none").collect()
    with pytest.raises(PySparkException, match="option 'strem' can't be used"):
        reads.batch(room, strem="x").collect()
    with pytest.raises(PySparkException, match="is none of"):
        reads.batch(room, mode="rwa").collect()
