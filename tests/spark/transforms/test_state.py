"""Tables of state say what `headwater.state` says, however a stream is cut and mixed."""

import json
import pickle
from datetime import UTC, datetime
from time import process_time
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.spark.transforms.controls import Control, Course, courses
from headwater.spark.transforms.state import (
    CurrentState,
    History,
    current_schema,
    history_schema,
    last_of_each_key,
)
from headwater.spark.transforms.times import TIME, moment, times
from tests.spark.transforms.oracle import EVENTS, Event, Oracle, Rows

CURRENT = to_arrow_schema(current_schema(None), timezone="UTC")
VERSIONS = to_arrow_schema(history_schema(None), timezone="UTC")
NEW = pa.schema(
    [
        *((name, pa.string()) for name in ("stream", "key", "value", "offset", "operation")),
        ("timestamp", TIME),
        ("txid", pa.string()),
    ]
)


def offset_of(number: int) -> str:
    """Name the position behind an event, in a stream that was forked after its tenth."""
    return f"{7 if number > 10 else 3:016}_{number * 100:016}"


class Entry:
    """An event with its place."""

    def __init__(self, stream: str, number: int, event: Event) -> None:
        self.stream, self.event = stream, event
        self.offset = offset_of(number)
        self.headers: dict[str, Any] = event["headers"]

    def row(self) -> dict[str, Any]:
        value = self.event.get("value")
        return {
            "stream": self.stream,
            "key": self.event["key"],
            "value": None if value is None else json.dumps(value),
            "offset": self.offset,
            "operation": self.headers["operation"],
            "timestamp": moment(self.headers.get("timestamp")),
            "txid": None,
        }

    def control(self) -> Control:
        time = moment(self.headers.get("timestamp"))
        return Control(self.stream, self.offset, self.headers["control"], time)


class Tables:
    """The tables of one type, as a job keeps them, without Spark."""

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.current = CURRENT.empty_table()
        self.open = VERSIONS.empty_table()
        self.closed: list[dict[str, Any]] = []

    def take(self, rows: list[Entry], known: dict[str, Course], chunks: int) -> None:
        mine = [entry.row() for entry in rows if entry.event.get("type") == self.type]
        parts = [pa.Table.from_pylist(mine[at::chunks], schema=NEW) for at in range(chunks)]
        parts = [part if part.num_rows else pa.table({}) for part in parts]
        state: Any = pickle.loads(pickle.dumps(CurrentState(known)))
        kept = self.current
        for part in parts:
            kept = state(kept, part).kept
        self.current = state.finish(kept).kept.select(CURRENT.names).cast(CURRENT)
        history: Any = pickle.loads(pickle.dumps(History(known)))
        kept = self.open
        for part in parts:
            kept = history(kept, part).kept
        merged = history.finish(kept)
        self.open = merged.kept.cast(VERSIONS)
        assert merged.closed is not None
        self.closed += merged.closed.to_pylist()

    @property
    def versions(self) -> list[dict[str, Any]]:
        return [*self.closed, *self.open.to_pylist()]


def rows_of(table: list[dict[str, Any]], type_: str) -> Rows:
    found = {(type_, row["key"]): json.loads(row["value"]) for row in table}
    assert len(found) == len(table)
    return found


@st.composite
def batches(draw: st.DrawFn) -> tuple[dict[str, list[Event]], list[list[Entry]]]:
    """Draw streams, and how they are cut into batches."""
    streams = {"one": draw(EVENTS), "two": draw(EVENTS)}
    cut: list[list[Entry]] = []
    left = {
        stream: [Entry(stream, number, event) for number, event in enumerate(events, 1)]
        for stream, events in streams.items()
    }
    while any(left.values()):
        batch: list[Entry] = []
        for stream, entries in left.items():
            size = draw(st.integers(0, max(1, len(entries))))
            batch += entries[:size]
            left[stream] = entries[size:]
        cut.append(draw(st.permutations(batch)))
    return streams, cut


@settings(deadline=None, max_examples=200)
@given(batches(), st.integers(1, 3))
def test_tables_are_what_the_state_is_after_every_batch_and_as_of_every_offset(
    drawn: tuple[dict[str, list[Event]], list[list[Entry]]], chunks: int
) -> None:
    streams, cut = drawn
    everything = [entry for batch in cut for entry in batch]
    tables = {type_: Tables(type_) for type_ in ("user", "order")}
    opened: dict[str, str] = {}
    oracles = {stream: Oracle() for stream in streams}
    taken = dict.fromkeys(streams, 0)
    expected: dict[tuple[str, str], Rows] = {}
    for batch in cut:
        controls = [entry.control() for entry in batch if "control" in entry.headers]
        known = courses(opened, controls)
        opened = {name: each.opened for name, each in known.items() if each.opened is not None}
        rows = list(batch)
        for stream, each in known.items():
            if each.earlier is not None:  # as the job reads a snapshot again, once it has ended
                after, until = each.earlier
                rows += [
                    entry
                    for entry in everything
                    if entry.stream == stream and after < entry.offset <= until
                ]
        for table in tables.values():
            table.take(rows, known, chunks)
        for stream, oracle in oracles.items():
            for _ in [entry for entry in batch if entry.stream == stream]:
                oracle.take(streams[stream][taken[stream]])
                taken[stream] += 1
                expected[stream, offset_of(taken[stream])] = oracle.rows
            shown: Rows = {}
            for table in tables.values():
                mine = [row for row in table.current.to_pylist() if row["stream"] == stream]
                shown |= rows_of(mine, table.type)
            assert shown == oracle.rows
    for (stream, offset), rows_then in expected.items():
        shown = {}
        for table in tables.values():
            valid = [
                row
                for row in table.versions
                if row["stream"] == stream
                and row["valid_from"] <= offset
                and (row["valid_to"] is None or offset < row["valid_to"])
            ]
            shown |= rows_of(valid, table.type)
        assert shown == rows_then
    for table in tables.values():
        assert all(row["operation"] for row in table.versions)
        for row in table.versions:
            deleted = row["operation"] == "delete"
            assert deleted == (row["valid_from"] == row["valid_to"])


def changed(stream: str, number: int, key: str, operation: str, **headers: str) -> Entry:
    event: Event = {"type": "user", "key": key, "headers": {"operation": operation, **headers}}
    return Entry(stream, number, event if operation == "delete" else event | {"value": number})


def controlled(stream: str, number: int, kind: str, **headers: str) -> Entry:
    return Entry(stream, number, {"headers": {"control": kind, **headers}})


def history_of(*entries: Entry) -> list[tuple[Any, ...]]:
    table = Tables("user")
    known = courses({}, [each.control() for each in entries if "control" in each.headers])
    table.take([each for each in entries if "key" in each.event], known, 1)
    names = ("key", "operation", "valid_from", "valid_to", "valid_from_time", "valid_to_time")
    rows = [tuple(row[name] for name in names) for row in table.versions]
    return sorted(rows, key=lambda row: (row[2], row[0]))


def at(second: int) -> datetime:
    return datetime(2025, 1, 15, 10, 30, second, tzinfo=UTC)


def test_thousands_of_controls_cost_a_bucket_little_more_than_none() -> None:
    def seconds(streams: int, *controls: str) -> float:
        each = 2000 // streams
        known = courses(
            {},
            [
                Control(f"s/{name}", offset_of(at), kind)
                for name in range(streams)
                for number in range(each)
                for at, kind in enumerate(controls, 3 * number)
            ],
        )
        entries = [
            changed(f"s/{at % streams}", 1 + at // streams, "k", "insert") for at in range(4000)
        ]
        new = pa.Table.from_pylist([entry.row() for entry in entries], schema=NEW)
        best = 60.0
        for _ in range(3):
            started = process_time()
            state, history = CurrentState(known), History(known)
            state.finish(state(CURRENT.empty_table(), new).kept)
            history.finish(history(VERSIONS.empty_table(), new).kept)
            best = min(best, process_time() - started)
        return best

    none = seconds(2000)
    # Many streams with a snapshot each, and one with many.
    assert seconds(2000, "snapshot-start", "snapshot-end") < 25 * none
    assert seconds(1, "snapshot-start", "snapshot-end") < 25 * none


def test_a_history_tells_offsets_and_times_of_every_visible_change() -> None:
    told = history_of(
        changed("s", 1, "a", "insert", timestamp="2025-01-15T10:30:01Z"),
        changed("s", 2, "a", "update"),
        changed("s", 3, "a", "delete", timestamp="2025-01-15T11:30:03+01:00"),
        changed("s", 4, "a", "delete"),
        changed("s", 5, "b", "delete"),
    )
    assert told == [
        ("a", "insert", offset_of(1), offset_of(2), at(1), None),
        ("a", "update", offset_of(2), offset_of(3), None, at(3)),
        ("a", "delete", offset_of(3), offset_of(3), at(3), at(3)),
    ]


def test_a_snapshot_is_visible_from_its_end_on_and_closes_what_it_does_not_name() -> None:
    told = history_of(
        changed("s", 1, "a", "insert"),
        changed("s", 2, "b", "insert"),
        controlled("s", 3, "snapshot-start"),
        changed("s", 4, "b", "insert", timestamp="2025-01-15T10:30:04Z"),
        changed("s", 5, "b", "update", timestamp="2025-01-15T10:30:05Z"),
        controlled("s", 6, "snapshot-end", timestamp="2025-01-15T10:30:06Z"),
    )
    assert told == [
        ("a", "insert", offset_of(1), offset_of(6), None, at(6)),
        ("b", "insert", offset_of(2), offset_of(6), None, at(6)),
        ("b", "update", offset_of(6), None, at(6), None),
    ]


def test_the_last_of_each_key_is_found_across_epochs() -> None:
    rows = pa.table(
        {
            "stream": ["s"] * 3,
            "key": ["a", "a", "b"],
            "offset": [f"{2:016}_{5:016}", f"{1:016}_{9:016}", f"{1:016}_{1:016}"],
        }
    )
    assert sorted(row["offset"] for row in last_of_each_key(rows).to_pylist()) == [
        f"{1:016}_{1:016}",
        f"{2:016}_{5:016}",
    ]
    assert last_of_each_key(rows.slice(0, 0)).num_rows == 0


def test_timestamps_are_read_to_the_microsecond() -> None:
    texts = [
        "2025-01-15T10:30:01Z",
        "2025-01-15t10:30:01.5z",
        "2025-01-15T10:30:01.123456789Z",
        "2025-01-15T10:29:60Z",
        "2025-01-15T05:00:01-05:30",
        "0000-01-01T00:00:00Z",
        "no time",
        None,
    ]
    told = times(pa.chunked_array([pa.array(texts, pa.string())])).to_pylist()
    assert told[:5] == [
        at(1),
        at(1).replace(microsecond=500_000),
        at(1).replace(microsecond=123_456),
        at(0),
        at(1),
    ]
    assert told[5:] == [None, None, None]
    quick = times(pa.chunked_array([pa.array(texts[:1], pa.string())])).to_pylist()
    assert quick == told[:1]


def test_timestamps_that_no_calendar_of_spark_has_are_none() -> None:
    texts = [
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+05:00",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59-05:00",
        None,
    ]
    mixed = times(pa.chunked_array([pa.array(texts, pa.string())])).to_pylist()
    alone = [times(pa.chunked_array([pa.array([text], pa.string())])) for text in texts]
    assert mixed == [moment(text) for text in texts]
    assert [each.to_pylist() for each in alone] == [[each] for each in mixed]
    assert [each is None for each in mixed] == [True, True, False, False, False, True, True]


def test_an_unmatched_end_means_nothing_and_a_second_start_begins_anew() -> None:
    known = courses(
        {},
        [
            Control("s", offset_of(1), "snapshot-end"),
            Control("s", offset_of(2), "snapshot-start"),
            Control("s", offset_of(4), "snapshot-start"),
        ],
    )["s"]
    assert known.clears == ()
    assert known.opened == offset_of(4)
    assert [span.visible for span in known.spans] == [None, None]
