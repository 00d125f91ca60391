"""Tables of state streams on a real Spark say what `headwater.state` says."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headwater.client import Client
from headwater.errors import BadOption
from headwater.spark.jobs.materialize import materialize
from headwater.spark.jobs.materializing import table_folder
from headwater.spark.tables import open_table
from headwater.spark.transforms.state import as_of_offset, as_of_time
from headwater.state import collection, define_stream_state
from tests.spark.transforms.oracle import MALFORMED, Oracle, final
from tests.support.server import ServerProcess

SCHEMAS: Final = {"user": "n long not null, s string"}
SMALL: Final = "700"
"""So many bytes are a few events."""


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
        return sorted(tuple(row[name] for name in names) for row in self.rows("_quarantine"))  # type: ignore[misc] # four of them


def value_of(row: Mapping[str, Any]) -> Any:
    if "value" in row:
        return json.loads(row["value"])
    shown = {"n": row["n"], "s": row["s"]}
    return {name: value for name, value in shown.items() if value is not None}


@pytest.fixture
def job(spark: SparkSession, server: ServerProcess, room: str, tmp_path: Path) -> Iterator[Job]:
    yield Job(spark, server.url, room, tmp_path)


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
            bad = chance.choice([None, 7, {"n": "x"}, {}, {"n": 1, "s": 2}, []])
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


@pytest.mark.parametrize("seed", [1, 2])
def test_generated_streams_give_the_tables_that_the_state_gives(
    job: Job, client: Client, seed: int
) -> None:
    streams = {f"{job.room}/{name}": generated(seed * 10 + at, 150) for at, name in enumerate("ab")}
    for path, events in streams.items():
        client.stream(path).create(data=json.dumps(events[:70]).encode())
    assert job.run(source={"maxBytesPerTrigger": "3000"}) > 2
    for path, events in streams.items():
        append(client, path, events[70:])
    job.run(source={"maxBytesPerTrigger": "6000"})
    oracles = final(streams, state())
    assert job.current() == {path: each.rows for path, each in oracles.items() if each.rows}
    kept = {path: [row[1:3] for row in job.quarantined() if row[0] == path] for path in streams}
    assert kept == {path: told(each) for path, each in oracles.items()}
    for path, events in streams.items():
        check_time_travel(job, client, path, events)


def check_time_travel(job: Job, client: Client, path: str, events: list[Any]) -> None:
    """Ask the history for some offsets, and compare with the state there."""
    reads = job.spark.read.format("headwater").options(**job.source | {"stream": path}).load()
    offsets = [row.offset for row in reads.collect()]
    assert len(offsets) == len(events)
    oracle = Oracle(state())
    for at, (offset, event) in enumerate(zip(offsets, events, strict=True)):
        oracle.take(event)
        if at % 29 and at < len(events) - 1:
            continue
        shown = {}
        for type_ in ("user", "order"):
            history = open_table(f"{job.tables}/{type_}_history").read(job.spark)
            assert history is not None
            for row in as_of_offset(history, {path: offset}).collect():
                assert (type_, row.key) not in shown
                shown[type_, row.key] = value_of(row.asDict())
        assert shown == oracle.rows
