"""Changes between two tables make the one of the other."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from headwater.errors import BadOption
from headwater.spark.transforms.comparing import (
    BODIES,
    STATE,
    bodies,
    changes_within,
    compared,
    keyed,
    merge_state,
)
from headwater.spark.transforms.controls import Course, Part, course_of
from headwater.state import MaterializedState, change, control, encode_events
from headwater.state.events import StateEvent
from headwater.state.fold import Fold, Incoming
from headwater.state.memory import MemoryBackend
from tests.support.effort import examples

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "é\n", '"']),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=3)
    ),
    max_leaves=4,
)
_TABLES = st.dictionaries(st.sampled_from(["a", "b", "ä", "d/e", '"', "0"]), _JSON, max_size=6)


@settings(max_examples=examples(3, 20), deadline=None)
@given(st.lists(st.tuples(_TABLES, _TABLES), min_size=1, max_size=20))
def test_the_changes_between_two_tables_make_the_new_one(
    spark: SparkSession, pairs: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    # A run of Spark is dear: many pairs of tables are compared at once, as one pair.
    before = {f"{n} {key}": value for n, (one, _) in enumerate(pairs) for key, value in one.items()}
    after = {f"{n} {key}": value for n, (_, two) in enumerate(pairs) for key, value in two.items()}
    state = MaterializedState()
    state.apply_batch(change("insert", "row", key, value) for key, value in before.items())
    # The same in another spelling, which is no change.
    old = [(key, json.dumps(value, indent=1), "0") for key, value in before.items()]
    new = [(key, json.dumps(value)) for key, value in after.items()]
    found = compared(
        spark.createDataFrame(old, STATE), spark.createDataFrame(new, "key string, value string")
    ).collect()
    assert [row["problem"] for row in found if row["problem"] is not None] == []
    arrow = pa.Table.from_pylist([row.asDict() for row in found])
    sent = 0
    for batch in bodies(arrow.to_batches(), kind="row", txid="t", most_bytes=40):
        for body in batch["body"].to_pylist():
            assert state.apply_json(body) == []
        sent += sum(batch["events"].to_pylist())
    assert dict(state.get_type("row")) == after
    same = [key for key in before if key in after and dumped(before[key]) == dumped(after[key])]
    assert sent == len(found) == len(before.keys() | after.keys()) - len(same)
    assert {row["key"]: row["operation"] for row in found if row["operation"] != "update"} == {
        **{key: "delete" for key in before if key not in after},
        **{key: "insert" for key in after if key not in before},
    }


@pytest.mark.parametrize(
    ("before", "after", "is_change"),
    [
        ("12345678901234567.01", "12345678901234567.02", True),
        ("123456789012345678901234567890123456", "123456789012345678901234567890123457", True),
        ("1e400", "1e500", True),
        ("1e-400", "1e-500", True),
        ("0.0", "-0.0", True),
        ("1", "1.0", True),  # the column has got another type
        ("1", "true", True),
        ("1.5", '"1.5"', True),
        ("1e99999999999999999999", "2e99999999999999999999", True),
        ("1.50", "1.5", False),
        ("100.0", "1.0E2", False),
        ("1e400", "10E399", False),
    ],
)
def test_numbers_are_compared_to_the_last_digit(
    spark: SparkSession, before: str, after: str, is_change: bool
) -> None:
    old = spark.createDataFrame([("k", f'{{"a":1,"n":[{before}]}}', "0")], STATE)
    new = spark.createDataFrame([("k", f'{{"n":[{after}],"a":1}}')], "key string, value string")
    found = [(row["operation"], row["problem"]) for row in compared(old, new).collect()]
    assert found == ([("update", None)] if is_change else [])


def dumped(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


_EVENTS = st.lists(
    st.one_of(
        st.builds(
            change,
            st.sampled_from(["insert", "update", "upsert"]),
            st.sampled_from(["row", "row", "other"]),
            st.sampled_from("abc"),
            st.integers(0, 9),
        ),
        st.builds(change, st.just("delete"), st.just("row"), st.sampled_from("abc")),
        st.builds(control, st.sampled_from(["reset", "snapshot-start", "snapshot-end"])),
    ),
    max_size=25,
)


@given(_EVENTS, st.data())
def test_a_state_that_is_read_in_parts_is_what_the_fold_makes(
    events: list[StateEvent], data: st.DataObject
) -> None:
    backend = MemoryBackend()
    fold = Fold(backend.load())
    fold.take(Incoming(encode_events(events), "-1", "9"))
    backend.commit(fold.work())
    wanted = {row.key: json.loads(row.data) for row in backend.rows("row")}

    rows = [row_of(place, event) for place, event in enumerate(events)]
    table = pa.Table.from_pylist([], ARROW)
    since = "-1"
    while rows:
        size = data.draw(st.integers(1, len(rows)), "read so far")
        while course_in(rows[:size]).opened is not None and size < len(rows):
            size += 1  # within a snapshot a publisher waits
        part, rows = rows[:size], rows[size:]
        course = course_in(part)
        new = [row for row in part if counts(row, course.part)]
        data.draw(st.randoms(use_true_random=False)).shuffle(new)
        cut = data.draw(st.integers(0, len(new)), "cut")
        for some in (new[:cut], new[cut:]):
            rows_new = pa.Table.from_pylist(some, ARROW)
            table = merge_state(
                table, rows_new, since=since, cleared=course.cleared is not None
            ).kept
        since = part[-1]["offset"]
    found = {row["key"]: json.loads(row["value"]) for row in table.to_pylist() if row["value"]}
    assert found == wanted


ARROW = pa.schema([("key", pa.string()), ("value", pa.string()), ("offset", pa.string())])


def row_of(place: int, event: StateEvent) -> dict[str, Any]:
    wire = json.loads(event.encode())
    headers = wire["headers"]
    value = None if headers.get("operation") == "delete" else json.dumps(wire.get("value"))
    return {
        "offset": f"{place:04}",
        "type": wire.get("type"),
        "key": wire.get("key"),
        "value": value,
        "operation": headers.get("operation"),
        "control": headers.get("control"),
    }


def course_in(rows: list[dict[str, Any]]) -> Course:
    return course_of((row["offset"], row["control"]) for row in rows if row["control"])


def counts(row: dict[str, Any], part: Part) -> bool:
    is_early = part.until is None or row["offset"] <= part.until
    return row["type"] == "row" and part.behind < row["offset"] and is_early


def test_only_what_counts_is_taken_from_a_stream(spark: SparkSession) -> None:
    def told(operation: str, kind: str, key: str, value: str = "", **headers: str) -> str:
        wire = {"type": kind, "key": key, "headers": {"operation": operation, **headers}}
        return json.dumps(wire | ({"value": value} if value else {}))

    rows = [
        ("1", told("insert", "row", "before", "1")),
        ("3", told("insert", "row", "inside", "2")),
        ("5", told("upsert", "row", "after", "3")),
        ("6", told("insert", "other", "after", "4")),
        ("7", told("delete", "row", "inside")),
        # What is no event by the rules of the state:
        ("80", told("insert", "row", "broken")),
        ("81", told("explode", "row", "strange", "5")),
        ("82", told("insert", "row", "broken", "6", txid="")),
        ("83", told("insert", "row", "broken", "7", timestamp="yesterday")),
        ("84", told("insert", "row", "broken", "8", control="reset")),
        ("85", "9"),
        ("99", '{"headers": {"control": "reset"}}'),
    ]
    part = course_of([("2", "snapshot-start"), ("4", "snapshot-end")]).part
    messages = spark.createDataFrame(
        [(offset, text.encode()) for offset, text in rows], "offset string, value binary"
    )
    assert {tuple(row) for row in changes_within(messages, "row", part).collect()} == {
        ("after", '"3"', "5"),
        ("inside", '"2"', "3"),
        ("inside", None, "7"),
    }


def test_rows_get_keys_and_values(spark: SparkSession) -> None:
    df = spark.sql(
        "SELECT 1L AS id, 'x' AS `a.b`, CAST(NULL AS STRING) AS n, "
        "timestamp'2026-02-11 10:00:00.123456' AS at, named_struct('d', 1.50BD) AS s"
    )
    (row,) = keyed(df, "id").collect()
    assert (row["key"], json.loads(row["value"])) == (
        "1",
        {"id": 1, "a.b": "x", "n": None, "at": "2026-02-11T10:00:00.123456Z", "s": {"d": 1.5}},
    )
    (row,) = keyed(df, ["id", "a.b"], ["n"]).collect()
    assert (row["key"], row["value"]) == ('["1","x"]', '{"n":null}')
    (row,) = keyed(df, ["id", "n"], ["n"]).collect()
    assert row["key"] is None
    (row,) = keyed(df.withColumn("json", f.lit("[1]")), "a.b", "json").collect()
    assert tuple(row) == ("x", "[1]")
    (row,) = keyed(df, "a.b", "n").collect()
    assert tuple(row) == ("x", "null")
    variants = df.selectExpr("id", "parse_json('\"x\"') AS v")
    (row,) = keyed(variants, "id", "v").collect()
    assert tuple(row) == ("1", '"x"')


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("nope", None, "'key' can't be used: there is no column 'nope'; there are id, at"),
        ([], None, "'key' can't be used: name the column"),
        ("id", ["nope"], "'value' can't be used: there is no column 'nope'"),
        ("id", "nope", "'value' can't be used: there is no column 'nope'"),
        ("id", "at", "'value' can't be used: the column 'at' is timestamp, and holds no JSON"),
    ],
)
def test_columns_that_make_no_key_or_value_are_refused(
    spark: SparkSession, key: str | list[str], value: str | list[str] | None, told: str
) -> None:
    df = spark.sql("SELECT 1L AS id, timestamp'2026-02-11 10:00:00' AS at")
    with pytest.raises(BadOption, match=told):
        keyed(df, key, value)


def test_keys_and_values_are_the_same_in_every_zone(spark: SparkSession) -> None:
    berlin = spark.newSession()
    berlin.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    # The second and the third are an hour apart, and one time of day in Berlin.
    text = (
        "SELECT timestamp_micros(at) AS at, at AS number FROM VALUES "
        "(1770804000123450), (1761438600000000), (1761442200000000), (-1) AS t(at)"
    )
    (here, there) = (
        [tuple(row) for row in keyed(each.sql(text), ["at", "number"], ["at"]).collect()]
        for each in (spark, berlin)
    )
    assert here == there
    assert here[0] == (
        '["2026-02-11 10:00:00.12345","1770804000123450"]',
        '{"at":"2026-02-11T10:00:00.123450Z"}',
    )
    (one,) = keyed(berlin.sql("SELECT timestamp_micros(-1) AS at"), "at").collect()
    assert one["key"] == "1969-12-31 23:59:59.999999"


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([(None, "1"), ("a", "1")], "key is null"),
        ([("", "1")], "key is empty"),
        ([("a", "1"), ("b", "1"), ("a", "1")], "2 rows have the key 'a'"),
        ([("a", "1,2")], "'a', '1,2', is no JSON"),
    ],
)
def test_rows_that_cannot_be_told_apart_are_named(
    spark: SparkSession, rows: list[tuple[str | None, str]], problem: str
) -> None:
    old = spark.createDataFrame([("a", "2", "0")], STATE)
    found = compared(old, spark.createDataFrame(rows, "key string, value string")).collect()
    (wrong,) = [row["problem"] for row in found if row["problem"] is not None]
    assert problem in wrong


def test_bodies_are_cut_by_their_size() -> None:
    rows = [{"key": f"{n}", "operation": "insert", "value": f"{n}"} for n in range(10)]
    batches = pa.Table.from_pylist(rows).to_batches(max_chunksize=3)
    for most, expected in ((1, 10), (10_000, 1)):
        found = list(bodies(batches, kind="row", txid="t", most_bytes=most))
        assert len(found) == expected
        assert found[0].schema.names == BODIES.names
        items = [item for one in found for item in json.loads(one["body"][0].as_py())]
        assert [item["value"] for item in items] == list(range(10))
        assert {item["headers"]["txid"] for item in items} == {"t"}
