"""Histories of state streams say what `headwater.state` said at an offset or a time."""

import json
from datetime import UTC, datetime
from typing import Any

from headwater.client import Client
from headwater.spark.tables import open_table
from headwater.spark.transforms.state import as_of_offset, as_of_time
from tests.spark.jobs.materializing import Job, append, change, generated, state, told, value_of
from tests.spark.transforms.oracle import Oracle, final


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
