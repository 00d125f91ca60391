"""A long state stream as a compact one, and a reader that starts from it."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import BadOption, OffsetGone, SnapshotRefused, StateError
from headwater.spark.jobs.snapshot import Snapshotted, snapshot
from headwater.spark.ranges import byte_of
from headwater.spark.transforms.controls import Part, course_of
from headwater.state import (
    MemoryBackend,
    StreamDB,
    begin_from_snapshot,
    change,
    control,
    find_snapshots,
)
from headwater.state.backend import Saved
from headwater.state.events import encode_events
from headwater.state.fold import Fold, Incoming
from tests.spark.drivers import kill_all
from tests.spark.jobs.driving import KILLS, job_driver
from tests.spark.patience import PATIENCE
from tests.support.effort import examples
from tests.support.server import ServerProcess

State = dict[str, dict[str, Any]]


class Pair:
    """A source, and the compact stream beside it."""

    def __init__(self, spark: SparkSession, client: Client, url: str, room: str) -> None:
        self.spark = spark
        self.client = client
        self.options = {"url": url, "stream": f"{room}/source"}
        self.target = f"{room}/compact"
        self.source = client.stream(f"{room}/source")
        self.compact = client.stream(self.target)
        self.source.create()

    def write(self, *events: Any) -> None:
        self.source.append(encode_events(events))

    def snapshot(self, **options: Any) -> Snapshotted:
        return snapshot(self.spark, self.options, target=self.target, **options)

    def started(self, backend: Any = None) -> State:
        """The state of a reader that starts from the compact stream and goes on in the source."""
        backend = begin_from_snapshot(self.compact, self.source, backend=backend)
        with StreamDB(self.source, backend=backend) as db:
            return shown(db.preload(timeout=30))

    def read(self) -> State:
        """The state of a reader of the whole source."""
        with StreamDB(self.source) as db:
            return shown(db.preload(timeout=30))


@pytest.fixture
def pair(spark: SparkSession, client: Client, server: ServerProcess, room: str) -> Pair:
    return Pair(spark, client, server.url, room)


def shown(db: StreamDB) -> State:
    return {name: {key: each.get(key) for key in each} for name, each in db.collections.items()}


def put(type_: str, key: str, value: Any) -> Any:
    return change("update", type_, key, value)


def gone(type_: str, key: str) -> Any:
    return change("delete", type_, key)


def items(pair: Pair) -> list[Any]:
    return list(pair.compact.read().items())


def test_a_snapshot_holds_the_last_value_of_each_key_in_order(pair: Pair) -> None:
    pair.write(put("b", "2", 1), put("a", "é", {"x": [None]}), put("b", "1", 2))
    pair.write(put("b", "2", "new"), put("c", "3", 1), gone("c", "3"))
    done = pair.snapshot()
    offset = pair.source.head().next_offset
    headers = {"offset": offset, "source": pair.options["stream"]}
    insert = {"operation": "insert"}
    assert items(pair) == [
        {"headers": {"control": "snapshot-start", **headers}},
        {"type": "a", "key": "é", "value": {"x": [None]}, "headers": insert},
        {"type": "b", "key": "1", "value": 2, "headers": insert},
        {"type": "b", "key": "2", "value": "new", "headers": insert},
        {"headers": {"control": "snapshot-end", "start": done.begin, **headers}},
    ]
    assert (done.entities, done.offset, done.appended) == (3, offset, done.bytes)
    assert done.end == pair.compact.head().next_offset


def test_a_reader_starts_from_it_and_goes_on_in_the_source(pair: Pair, tmp_path: Path) -> None:
    pair.write(put("a", "1", 1), put("a", "2", 2))
    pair.snapshot()
    pair.write(put("a", "3", 3), gone("a", "1"))
    assert pair.started() == pair.read() == {"a": {"2": 2, "3": 3}}
    file = tmp_path / "state.db"
    assert pair.started(file) == pair.read()
    pair.write(put("a", "4", 4))
    assert pair.started(file) == pair.read()  # the file is at its own offset by now


def test_a_state_without_entities_and_a_stream_without_events_have_snapshots_too(
    pair: Pair,
) -> None:
    assert pair.snapshot().entities == 0
    pair.write(put("a", "1", 1), gone("a", "1"))
    assert pair.snapshot().entities == 0
    assert [item["headers"]["control"] for item in items(pair)] == [
        "snapshot-start",
        "snapshot-end",
    ] * 2
    assert pair.started() == pair.read() == {}


def test_a_later_snapshot_replaces_the_one_before_and_the_same_is_not_written_again(
    pair: Pair,
) -> None:
    pair.write(*(put("a", str(number), number) for number in range(50)))
    first = pair.snapshot()
    assert pair.snapshot().appended == 0
    pair.write(gone("a", "7"), put("a", "8", "eight"))
    second = pair.snapshot()
    assert byte_of(second.begin) == byte_of(first.end)
    found, opened = find_snapshots(pair.compact)
    assert opened is None
    assert found is not None
    assert (found.begin, found.end, found.offset) == (second.begin, second.end, second.offset)
    with StreamDB(pair.compact) as db:  # who reads all of the compact stream has the last one too
        assert shown(db.preload(timeout=30)) == pair.read() == pair.started()


def test_a_snapshot_as_of_an_offset(pair: Pair) -> None:
    pair.write(put("a", "1", 1))
    offset = pair.source.head().next_offset
    pair.write(put("a", "1", 2))
    assert pair.snapshot(until=offset).offset == offset
    assert items(pair)[1]["value"] == 1
    assert pair.started() == {"a": {"1": 2}}


def test_a_reader_never_begins_within_a_snapshot_of_the_source(pair: Pair) -> None:
    pair.write(put("a", "1", 1))
    before = pair.source.head().next_offset
    pair.write(control("snapshot-start"), put("a", "2", 2))
    pair.write(control("snapshot-start"), put("a", "3", 3))
    assert pair.snapshot().offset == before
    assert pair.started() == pair.read() == {"a": {"1": 1}}
    pair.write(control("snapshot-end"))
    assert pair.started() == pair.read() == {"a": {"3": 3}}


def test_what_is_no_event_is_left_out(pair: Pair) -> None:
    pair.source.append(
        b'[1, {"headers":{}}, {"type":"a","key":"","headers":{"operation":"insert"}}]'
    )
    pair.source.append(
        b'[{"type":"a","key":"1","value":1,"headers":{"operation":"insert"}},'
        b'{"type":"a","key":"1","headers":{"operation":"update"}},'
        b'{"type":"a","key":"2","value":1,"headers":{"operation":"insert","control":"reset"}},'
        b'{"headers":{"\\u0063ontrol":"unknown"}}]'
    )
    assert pair.snapshot().entities == 1
    assert pair.started() == pair.read() == {"a": {"1": 1}}


def test_what_cannot_be_made_is_said(pair: Pair, client: Client, room: str) -> None:
    with pytest.raises(BadOption, match="one stream"):
        snapshot(pair.spark, {**pair.options, "stream": f"{room}/*"}, target="x")
    with pytest.raises(BadOption, match="another stream than the source"):
        snapshot(pair.spark, pair.options, target=pair.options["stream"])
    with pytest.raises(SnapshotRefused, match="no such stream"):
        snapshot(pair.spark, {**pair.options, "stream": f"{room}/none"}, target=f"{room}/x")
    client.stream(f"{room}/text").create("text/plain")
    with pytest.raises(SnapshotRefused, match="text/plain"):
        snapshot(pair.spark, {**pair.options, "stream": f"{room}/text"}, target=f"{room}/x")


def test_a_reader_of_another_stream_is_refused(pair: Pair, client: Client, room: str) -> None:
    pair.write(put("a", "1", 1))
    pair.snapshot()
    other = client.stream(f"{room}/other")
    other.create()
    with pytest.raises(StateError, match="holds snapshots of"):
        begin_from_snapshot(pair.compact, other)
    pair.source.delete()
    pair.source.create()
    with pytest.raises(OffsetGone):
        begin_from_snapshot(pair.compact, pair.source)


def test_what_was_begun_and_does_not_fit_is_given_up(pair: Pair) -> None:
    pair.write(put("a", "1", 1))
    offset = pair.source.head().next_offset
    started = {"control": "snapshot-start", "offset": offset, "source": pair.options["stream"]}
    pair.compact.create(data=[{"headers": started}, {"something": "else"}])
    done = pair.snapshot()
    assert not done.resumed
    assert pair.started() == {"a": {"1": 1}}
    with StreamDB(pair.compact) as db:
        assert shown(db.preload(timeout=30)) == {"a": {"1": 1}}


def test_killed_snapshots_are_gone_on_with_and_leave_one(
    pair: Pair, client: Client, tmp_path: Path
) -> None:
    pair.write(*(put("a", f"{number:04d}", {"n": number}) for number in range(1500)))
    expected = pair.read()
    arguments = {"source": pair.options, "target": pair.target, "chunk_bytes": 50}
    tails = [0]
    for _ in range(KILLS):
        with job_driver("snapshot", tmp_path, arguments) as process:
            until = time.monotonic() + PATIENCE
            while process.poll() is None:
                assert time.monotonic() < until
                if pair.compact.exists():
                    tail = byte_of(pair.compact.head().next_offset)
                    if tail > tails[-1] + 2000:
                        break
                time.sleep(0.01)
            kill_all(process.pid)
        tails.append(byte_of(pair.compact.head().next_offset))
        with StreamDB(pair.compact) as db:  # half a state is never seen
            assert shown(db.preload(timeout=30)) == {}
        # The source goes on meanwhile; what was begun is ended as of where it was begun.
        pair.write(put("b", "later", len(tails)))
    assert tails == sorted(set(tails))
    assert pair.snapshot().resumed
    controls = [item["headers"]["control"] for item in items(pair) if "type" not in item]
    assert controls == ["snapshot-start", "snapshot-end"]
    with StreamDB(pair.compact) as db:
        assert shown(db.preload(timeout=30)) == expected
    assert pair.started() == pair.read() == {**expected, "b": {"later": len(tails)}}


EVENTS = st.lists(
    st.one_of(
        st.builds(
            change,
            st.sampled_from(["insert", "update", "upsert"]),
            st.sampled_from(["user", "ü~\u2028", "a/b"]),
            st.sampled_from(["1", "2", "\x00", "😀", '"']),
            st.none() | st.integers() | st.text(max_size=4) | st.lists(st.booleans(), max_size=2),
        ),
        st.builds(
            change,
            st.just("delete"),
            st.sampled_from(["user", "ü~\u2028", "a/b"]),
            st.sampled_from(["1", "2", "\x00", "😀", '"']),
        ),
        st.builds(
            control,
            st.sampled_from(["snapshot-start", "snapshot-end", "snapshot-end", "reset"]),
        ),
    ),
    max_size=25,
)


def folded(events: Sequence[Any]) -> dict[str, dict[str, bytes]]:
    """The state by the rules of `headwater.state`."""
    fold, backend = Fold(Saved()), MemoryBackend()
    fold.take(Incoming(encode_events(events), "-1", "1"))
    backend.commit(fold.work())
    return {type_: {row.key: row.data for row in backend.rows(type_)} for type_ in backend.types()}


@given(events=EVENTS)
def test_the_state_is_the_last_writes_of_one_range(events: list[Any]) -> None:
    controls = [
        (f"{at:04d}", event.headers.control)
        for at, event in enumerate(events)
        if hasattr(event.headers, "control")
    ]
    part = course_of(controls).part
    state: dict[str, dict[str, bytes]] = {}
    for at, event in enumerate(events):
        offset = f"{at:04d}"
        if hasattr(event.headers, "control") or offset <= part.behind:
            continue
        if part.until is not None and offset >= part.until:
            break
        state.setdefault(event.type, {}).pop(event.key, None)
        if event.headers.operation != "delete":
            state[event.type][event.key] = json.dumps(event.value).encode()
    found = {
        type_: {key: json.loads(data) for key, data in rows.items()}
        for type_, rows in state.items()
        if rows
    }
    wanted = {
        type_: {key: json.loads(data) for key, data in rows.items()}
        for type_, rows in folded(events).items()
    }
    assert found == wanted


def test_no_controls_leave_everything_valid() -> None:
    assert course_of([]).part == Part("", None)


@settings(
    max_examples=examples(3, 20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(first=EVENTS.filter(bool), then=EVENTS)
def test_starting_from_a_snapshot_gives_what_reading_everything_gives(
    spark: SparkSession, server: ServerProcess, first: list[Any], then: list[Any]
) -> None:
    with Client(server.url) as client:
        room = f"h{time.monotonic_ns()}"
        pair = Pair(spark, client, server.url, room)
        pair.write(*first)
        pair.snapshot(chunk_bytes=64)
        if then:
            pair.write(*then)
        assert pair.started() == pair.read()
