"""Tables of events at hand say what `headwater.state` says, and what the job's tables hold."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from headwater.client import Client
from headwater.errors import BadOption
from headwater.spark.transforms.state import as_of_offset
from headwater.spark.transforms.state_tables import current_state, history, violations
from tests.spark.conftest import Reads
from tests.spark.jobs.materializing import SCHEMAS, Job, change, generated, state, told, value_of
from tests.spark.transforms.oracle import TYPES, WILD_EVENTS, Oracle, final
from tests.spark.transforms.test_state import offset_of
from tests.support.effort import examples

MESSAGES: Final = "stream string, offset string, value binary"
EVENTS: Final = (
    "stream string, offset string, type string, key string, value string, old_value string, "
    "operation string, txid string, timestamp string, control string"
)
ROOM: Final = "tables of events"


def messages(spark: SparkSession, streams: Mapping[str, list[Any]]) -> DataFrame:
    rows = [
        (stream, offset_of(number), json.dumps(event).encode())
        for stream, events in streams.items()
        for number, event in enumerate(events, 1)
    ]
    return spark.createDataFrame(rows, MESSAGES)


def shown(rows: DataFrame) -> Iterator[dict[str, Any]]:
    return (row.asDict(recursive=True) for row in rows.collect())


def values(tables: Mapping[str, DataFrame]) -> dict[str, dict[tuple[str, str], Any]]:
    """By stream, type and key: the values of all tables."""
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for type_, rows in tables.items():
        for row in shown(rows):
            name = type_, row["key"]
            assert name not in found.setdefault(row["stream"], {})
            found[row["stream"]][name] = value_of(row)
    return found


@settings(max_examples=examples(2, 20), deadline=None)
@given(st.lists(WILD_EVENTS, min_size=1, max_size=12))
def test_tables_of_any_messages_say_what_the_state_says(
    spark: SparkSession, drawn: list[list[Any]]
) -> None:
    # A run of Spark is dear: many streams are read at once.
    streams = {f"s/{number}": events for number, events in enumerate(drawn)}
    events = messages(spark, streams).cache()
    oracles = final(streams, state())
    now = {type_: current_state(events, type_, SCHEMAS.get(type_)) for type_ in TYPES}
    assert values(now) == {path: each.rows for path, each in oracles.items() if each.rows}
    aside = [(row["stream"], row["type"], row["key"]) for row in shown(violations(events, SCHEMAS))]
    assert sorted(aside) == sorted(
        (path, *each) for path, oracle in oracles.items() for each in told(oracle)
    )
    events.unpersist()


def test_a_history_of_any_messages_can_be_asked_as_of_any_offset(spark: SparkSession) -> None:
    streams = {f"s/{seed}": generated(seed, 60) for seed in range(20, 24)}
    events = messages(spark, streams)
    versions = {type_: history(events, type_, SCHEMAS.get(type_)).cache() for type_ in TYPES}
    for number in (7, 31, 60):
        oracles = {path: Oracle(state()) for path in streams}
        for path, all_of_it in streams.items():
            for event in all_of_it[:number]:
                oracles[path].take(event)
        ends = dict.fromkeys(streams, offset_of(number))
        then = {type_: as_of_offset(rows, ends) for type_, rows in versions.items()}
        assert values(then) == {path: each.rows for path, each in oracles.items() if each.rows}


def rows_of(rows: DataFrame, *, without: str = "") -> list[str]:
    return sorted(str(sorted(row.items())) for row in shown(rows.drop(without)))


def table_rows(job: Job, name: str, *, without: str = "") -> list[str]:
    rows = [{n: v for n, v in row.items() if n != without} for row in job.rows(name)]
    return sorted(str(sorted(row.items())) for row in rows)


def test_they_are_the_rows_of_the_job_s_tables(
    spark: SparkSession, client: Client, reads: Reads, room: str, tmp_path: Path
) -> None:
    def is_seen(event: Any) -> bool:
        # Mode `state` takes a header that is null for one that is not there.
        return not (isinstance(event, dict) and None in event.get("headers", {}).values())

    job = Job(spark, reads.url, room, tmp_path)
    for seed, name in enumerate("ab", 50):
        made = [event for event in generated(seed, 90) if is_seen(event)]
        client.stream(f"{room}/{name}").create(data=json.dumps(made).encode())
    assert job.run(source={"maxBytesPerTrigger": "9000"}) > 1
    raw = reads.batch(f"{room}/*")
    events = reads.batch(f"{room}/*", mode="state", onCorrupt="column")
    for each in (raw, events):
        for type_ in TYPES:
            schema = SCHEMAS.get(type_)
            assert rows_of(current_state(each, type_, schema)) == table_rows(job, type_)
            assert rows_of(history(each, type_, schema)) == table_rows(job, f"{type_}_history")
    aside = table_rows(job, "_quarantine")
    assert rows_of(violations(raw, SCHEMAS)) == aside != []
    # Events are not spelled as the messages were that they were read from.
    aside = table_rows(job, "_quarantine", without="message")
    assert rows_of(violations(events, SCHEMAS), without="message") == aside


def test_a_bucket_takes_what_many_tasks_bring_in_any_order(spark: SparkSession) -> None:
    made = [change("user", f"k{number % 7}", "upsert", {"n": number}) for number in range(150)]
    made.insert(40, {"headers": {"control": "reset"}})
    events = messages(spark, {"s": made}).repartition(80)
    rows = {row["key"]: row["n"] for row in shown(current_state(events, "user", SCHEMAS["user"]))}
    assert rows == {f"k{number % 7}": number for number in range(143, 150)}
    versions = list(shown(history(events, "user", SCHEMAS["user"])))
    assert len(versions) == 150
    assert sum(row["valid_to"] == offset_of(41) for row in versions) == 7


def test_a_moment_is_the_same_whatever_zone_the_session_is_in(spark: SparkSession) -> None:
    at = "2025-01-15T10:30:01Z"
    events = messages(spark, {"s": [change("user", "a", "insert", {"n": 1}, timestamp=at)]})
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = current_state(events, "user").selectExpr("unix_seconds(timestamp) AS s").first()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert found is not None
    assert found.s == 1_736_937_001


def test_values_that_a_schema_can_not_say_are_read_as_variants(spark: SparkSession) -> None:
    events = messages(spark, {"s": [change("user", "a", "insert", {"doc": [{"n": 7}]})]})
    with pytest.raises(BadOption, match="read them with parse_json"):
        current_state(events, "user", "doc variant")
    read = current_state(events, "user").selectExpr("parse_json(value) AS value")
    (row,) = read.selectExpr("variant_get(value, '$.doc[0].n', 'int') AS n").collect()
    assert row.n == 7


def test_what_is_no_json_is_kept_aside(spark: SparkSession) -> None:
    rows = [(ROOM, offset_of(at), text) for at, text in enumerate([b"1,2", b"\xff", None, b"["], 1)]
    raw = spark.createDataFrame(rows, MESSAGES)
    assert sorted(row["reason"] for row in shown(violations(raw))) == ["must be a JSON object"] * 4
    change_of = ("user", "a", "1]", None, "insert", None, None, None)
    events = spark.createDataFrame([(ROOM, offset_of(1), *change_of)], EVENTS)
    (aside,) = shown(violations(events))
    assert json.loads(aside["message"]).endswith('"type":"user","key":"a","value":1]}')
    assert list(shown(current_state(events, "user"))) == []


def test_nothing_gives_empty_tables_of_the_same_columns(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], EVENTS)
    for made in (current_state(nothing, "user", SCHEMAS["user"]), history(nothing, "user")):
        assert made.isEmpty()
        assert made.columns[:2] == ["stream", "key"]
    assert violations(nothing).isEmpty()
    reset = messages(spark, {"s": [{"headers": {"control": "reset"}}]})
    assert current_state(reset, "user").isEmpty()
    assert history(reset, "user").isEmpty()


def test_what_can_not_be_made_is_refused_at_once(
    spark: SparkSession, reads: Reads, room: str
) -> None:
    nothing = spark.createDataFrame([], EVENTS)
    with pytest.raises(BadOption, match="'schema' can't be used: it is no schema"):
        history(nothing, "user", "n lnog")
    with pytest.raises(BadOption, match=r"'schemas\.user' can't be used: it is one type"):
        violations(nothing, {"user": "int"})
    with pytest.raises(BadOption, match="name the type"):
        current_state(nothing, "")
    with pytest.raises(BadOption, match="a query that goes on: keep tables of it"):
        current_state(reads.stream(f"{room}/*", mode="state"), "user")
