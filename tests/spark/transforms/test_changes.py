"""Messages are read as `headwater.state` reads them, and nothing is lost on the way."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StructType

from headwater.spark.packing import BUCKET, PACKED
from headwater.spark.tables.files import fitted
from headwater.spark.tables.packing import packed, unpacked
from headwater.spark.transforms.changes import (
    ASIDE,
    CHANGES,
    CONTROLS,
    Packing,
    packed_changes,
    read_messages,
)
from headwater.spark.transforms.controls import Control, courses
from headwater.spark.transforms.state import current_schema
from headwater.spark.transforms.violations import QUARANTINE, Quarantine, Values
from headwater.state import collection, define_stream_state
from headwater.state.fold import Fold, Incoming
from headwater.state.memory import MemoryBackend
from tests.spark.transforms.oracle import WILD_EVENTS, Oracle

SCHEMA = StructType().add("n", "long", nullable=False).add("s", "string")


class User(msgspec.Struct):
    n: int
    s: str | None = None


def messages(events: list[Any]) -> pa.Table:
    return pa.table(
        {
            "stream": pa.array(["a"] * len(events), pa.string()),
            "offset": pa.array([f"{1:016}_{at:016}" for at in range(len(events))], pa.string()),
            "value": pa.array([json.dumps(event).encode() for event in events], pa.binary()),
            "content_type": pa.nulls(len(events), pa.string()),
        }
    )


@settings(deadline=None, max_examples=150)
@given(WILD_EVENTS)
def test_what_is_kept_aside_is_what_the_state_keeps_aside(events: list[Any]) -> None:
    events = [event for event in events if control_of(event) != "reset"]  # both would forget
    read = read_messages(messages(events), {"user": Values(SCHEMA)})
    users = collection(User, type="user")
    oracle = Oracle(define_stream_state({"users": users, "orders": collection(type="order")}))
    for event in events:
        oracle.take(event)
    expected = [
        (each.type, each.key, each.reason, json.loads(each.message)) for each in oracle.quarantined
    ]
    told = [
        (each["type"], each["key"], each["reason"], json.loads(each["message"]))
        for each in sorted(read.aside, key=lambda each: each["offset"])
    ]
    assert told == expected
    changes = sum(table.num_rows for table in read.changes.values())
    silent = sum(control_of(event) == "up-to-date" for event in events)
    assert changes + len(read.aside) + len(read.controls) + silent == len(events)


def control_of(event: Any) -> str | None:
    headers = event.get("headers", {}) if isinstance(event, dict) else {}
    return None if "operation" in headers else headers.get("control")


def test_values_become_columns_and_those_that_do_not_fit_go_aside() -> None:
    events = [
        {"type": "user", "key": "a", "value": {"n": 1}, "headers": {"operation": "insert"}},
        {"type": "user", "key": "b", "headers": {"operation": "delete", "txid": "t"}},
        {"type": "user", "key": "c", "value": {"n": "x"}, "headers": {"operation": "update"}},
        {"type": "order", "key": "d", "value": [1], "headers": {"operation": "upsert"}},
    ]
    read = read_messages(messages(events), {"user": Values(SCHEMA)})
    users = read.changes["user"].select(["key", "operation", "txid", "n", "s"]).to_pylist()
    assert users == [
        {"key": "a", "operation": "insert", "txid": None, "n": 1, "s": None},
        {"key": "b", "operation": "delete", "txid": "t", "n": None, "s": None},
    ]
    assert read.changes["order"].column("value").to_pylist() == ["[1]"]
    (aside,) = read.aside
    assert (aside["key"], aside["reason"]) == ("c", "Expected `int`, got `str` - at `$.n`")
    assert aside["offset"] == f"{1:016}_{2:016}"


def test_a_deletion_has_no_value_however_much_its_schema_requires() -> None:
    inner = StructType().add("p", "integer", nullable=False)
    schema = StructType().add("o", inner, nullable=False).add("list", ArrayType(inner, False))
    events = [
        {"type": "user", "key": "a", "headers": {"operation": "delete"}},
        {"type": "user", "key": "b", "value": {"o": {"p": 1}}, "headers": {"operation": "insert"}},
    ]
    read = read_messages(messages(events), {"user": Values(schema)})
    assert read.aside == []
    users = fitted(read.changes["user"], to_arrow_schema(current_schema(schema), timezone="UTC"))
    pq.write_table(users, pa.BufferOutputStream())  # it looks whether what is never null is not
    assert users.select(["o", "list"]).to_pylist() == [
        {"o": None, "list": None},
        {"o": {"p": 1}, "list": None},
    ]


def test_what_a_stream_without_messages_holds_goes_aside() -> None:
    rows = messages([{"type": "user", "key": "a", "headers": {"operation": "delete"}}, 0])
    rows = rows.set_column(0, "stream", pa.array(["a", "b"]))
    rows = rows.set_column(2, "value", pa.array([rows["value"][0].as_py(), b"\xff["]))
    rows = rows.set_column(3, "content_type", pa.array([None, "text/plain"]))
    found = [
        row for part in packed_changes(rows.to_batches(), Packing(4)) for row in part.to_pylist()
    ]
    assert [row["kind"] for row in found] == [CONTROLS, CHANGES, ASIDE]
    assert (found[0]["messages"], found[0]["aside"]) == (2, 1)
    assert unpacked(pa.table({PACKED: [found[2][PACKED]]})).to_pylist() == [
        {
            "stream": "b",
            "offset": f"{1:016}_{1:016}",
            "type": "",
            "key": "",
            "reason": "the stream holds text/plain and no messages",
            "message": "",
        }
    ]


ODD_CONTROLS: dict[str, str | None] = {
    '{"headers":{"control":"reset"},"note":1e400}': None,
    '{"headers":{"control":"reset","timestamp":1e400}}': None,
    '{"headers":{"control":"reset","timestamp":{}}}': None,
    '{"headers":7,"headers":{"control":"reset","timestamp":"x"}}': "x",
    '{"headers":{"control":"reset","timestamp":"\\u0078","more":1e400}}': "x",
}


@pytest.mark.parametrize("message", ODD_CONTROLS)
def test_of_a_control_only_its_timestamp_is_read(message: str) -> None:
    fold = Fold(MemoryBackend().load())
    assert fold.take(Incoming(f"[{message}]".encode(), "", "1")).events == 1
    assert fold.work().quarantined == []
    rows = messages([0]).set_column(2, "value", pa.array([message.encode()]))
    (told,) = read_messages(rows, {}).controls
    assert (told["kind"], told["time"]) == ("reset", ODD_CONTROLS[message])


def test_packed_changes_are_in_one_bucket_each_and_all_there() -> None:
    events: list[Any] = [
        {"type": "user", "key": f"é{n}", "value": n, "headers": {"operation": "insert"}}
        for n in range(200)
    ]
    events.append({"headers": {"control": "reset", "timestamp": "2025-01-15T10:30:00Z"}})
    events.append({"type": "user"})
    batches = messages(events).to_batches(max_chunksize=30)

    def read(given: list[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for batch in packed_changes(given, Packing.parse(Packing(4).text)):
            yield from batch.to_pylist()

    found = list(read(batches))
    parts = [row for row in found if row["kind"] == CHANGES]
    assert sorted(row[BUCKET] for row in parts) == [0, 1, 2, 3]
    keys = [
        key
        for row in parts
        for key in unpacked(pa.table({PACKED: [row[PACKED]]})).column("key").to_pylist()
    ]
    assert sorted(keys) == sorted(event["key"] for event in events[:200])
    (controls,) = [row["controls"] for row in found if row["kind"] == CONTROLS]
    assert [(each["kind"], each["time"]) for each in controls] == [
        ("reset", "2025-01-15T10:30:00Z")
    ]
    assert sum(row["kind"] == ASIDE for row in found) == 1
    assert unpacked(pa.table({PACKED: pa.array([], pa.binary())})).num_columns == 0


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=50))
def test_a_key_is_always_in_the_same_bucket(keys: list[str]) -> None:
    where: dict[str, int] = {}
    for part in (keys, keys[::-1]):
        for bucket, data in packed(pa.table({"key": pa.array(part, pa.string())}), "key", 7):
            for key in unpacked(pa.table({PACKED: [data]})).column("key").to_pylist():
                assert where.setdefault(key, bucket) == bucket
    assert set(where) == set(keys)


def test_a_reset_forgets_what_was_kept_aside_before_it() -> None:
    names = QUARANTINE.fieldNames()
    old = pa.table({name: pa.array(["a", "b"]) for name in names})
    old = old.set_column(1, "offset", pa.array(["1", "1"]))
    new = pa.table({name: pa.array(["a", "a"]) for name in names})
    new = new.set_column(1, "offset", pa.array(["2", "4"]))

    merge = Quarantine(courses({}, [Control("a", "3", "reset")]))
    assert merge.forgets
    kept = merge(old, new).kept.select(["stream", "offset"]).to_pylist()
    assert kept == [{"stream": "b", "offset": "1"}, {"stream": "a", "offset": "4"}]
