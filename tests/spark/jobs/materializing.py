"""A job that makes tables of state streams, and events for its streams."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.spark.jobs.materialize import materialize
from headwater.spark.tables import open_table
from headwater.state import collection, define_stream_state
from tests.spark.patience import PATIENCE
from tests.spark.transforms.oracle import MALFORMED, Oracle

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
        assert query.awaitTermination(PATIENCE)
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
