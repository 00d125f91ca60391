"""Jobs whose driver is killed at any moment tell and keep everything once."""

import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import StreamNotFound
from headwater.runs import StoredEvent, project
from headwater.spark.jobs.project import project as run_projection
from headwater.spark.jobs.publish import publish
from headwater.spark.tables import open_table
from headwater.state import MaterializedState
from tests.spark.drivers import ATTEMPTS
from tests.spark.jobs.driving import KILLS, job_driver
from tests.spark.jobs.test_project import story
from tests.spark.patience import PATIENCE
from tests.spark.run_logs import messages_of, snapshots
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.starts_spark, pytest.mark.kills]

ROWS = 5_000 * KILLS
"""So many that each driver is killed amid its appends."""


def projection(url: str, folder: Path, limit: str) -> dict[str, Any]:
    return {
        "source": {"url": url, "stream": "log/*", "maxBytesPerTrigger": limit},
        "tables": f"{folder}/tables",
        "checkpoint": f"{folder}/checkpoint",
        "publish": "snapshots",
    }


def told(client: Client) -> list[bytes]:
    try:
        return [batch.data for batch in client.stream("snapshots").read() if batch.items()]
    except StreamNotFound:
        return []


def begin_runs(client: Client, chance: Random, known: int) -> dict[str, list[StoredEvent]]:
    """Write the events of forty more runs to the logs."""
    runs = {run: story(run, 6) for run in (f"run-{known + number}" for number in range(40))}
    events = [each for log in runs.values() for each in log]
    chance.shuffle(events)
    for number in range(4):
        stream = client.stream(f"log/{number}", content_type="application/json")
        stream.create()
        stream.append(messages_of(events[number::4]))
    return runs


def told_state(client: Client) -> MaterializedState:
    state = MaterializedState()
    for data in told(client):
        assert state.apply_json(data) == []
    return state


def reached(state: MaterializedState) -> dict[str, int]:
    """Say how far each run is, by what was told of it."""
    return {key: value["lastEventSeq"] for key, value in state.get_type("run").items()}


def killed_projection(client: Client, url: str, folder: Path, delay: float) -> bool:
    """Kill a driver some time after it has told something; gives whether that was amid its work."""
    before = len(b"".join(told(client)))
    with job_driver("project", folder, projection(url, folder, "20k")) as process:
        until = time.monotonic() + PATIENCE
        while len(b"".join(told(client))) == before and process.poll() is None:
            assert time.monotonic() < until, (folder / "driver.log").read_text()[-2000:]
            time.sleep(0.02)
        time.sleep(delay)  # then it is killed, with all its processes
    assert process.returncode in {0, -signal.SIGKILL}, (folder / "driver.log").read_text()[-2000:]
    return process.returncode != 0


def test_a_killed_projection_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    chance = Random(11)
    runs: dict[str, list[StoredEvent]] = {}
    with ServerProcess() as server, Client(server.url) as client:
        for _ in range(KILLS):
            for _ in range(ATTEMPTS):
                runs |= begin_runs(client, chance, len(runs))
                killed = killed_projection(client, server.url, tmp_path, chance.random() * 1.5)
                ends = {run: log[-1].run_seq for run, log in runs.items()}
                if killed and reached(told_state(client)) != ends:
                    break  # one that came when all was told shows nothing
            else:
                pytest.fail("it was never killed before its end")
        last = projection(server.url, tmp_path, "40k")
        query = run_projection(spark, trigger={"availableNow": True}, **last)
        assert query.awaitTermination(PATIENCE)
        state = told_state(client)
        operations: Counter[tuple[str, str, str]] = Counter()
        for item in client.stream("snapshots").read().items():
            operations[item["type"], item["key"], item["headers"]["operation"]] += 1
    tables = [open_table(str(tmp_path / "tables" / name)).read(spark) for name in ("runs", "steps")]
    assert tables[0] is not None
    assert tables[1] is not None
    wanted = {run: project(run, log) for run, log in runs.items()}
    assert snapshots(tables[0].toArrow(), tables[1].toArrow()) == wanted
    assert reached(state) == {run: snapshot.last_event_seq for run, snapshot in wanted.items()}
    inserts = {name: count for name, count in operations.items() if name[2] == "insert"}
    assert set(inserts.values()) == {1}
    assert len(inserts) == len(state)


def test_a_killed_publication_tells_the_rest_once(spark: SparkSession, tmp_path: Path) -> None:
    chance = Random(5)
    with ServerProcess() as server, Client(server.url) as client:
        stream = client.stream("rows")
        stream.create()
        given: dict[str, Any] = {
            "url": server.url,
            "stream": "rows",
            "type": "row",
            "key": "id",
            "count": ROWS,
            "state": f"{tmp_path}/state",
            "append_bytes": 1000,
        }

        for _ in range(KILLS):
            before = stream.head().next_offset
            with job_driver("publish", tmp_path, given) as process:
                until = time.monotonic() + PATIENCE
                while stream.head().next_offset == before and process.poll() is None:
                    assert time.monotonic() < until, (tmp_path / "driver.log").read_text()[-2000:]
                    time.sleep(0.01)
                time.sleep(chance.random() * 0.1)  # then it is killed, in the midst of many appends
            assert process.returncode == -signal.SIGKILL, "it was done before it was killed"
        assert len(list(stream.read().items())) < ROWS, "it was never killed before its end"
        publish(spark, spark.range(given.pop("count")), **given)
        told = Counter(
            (item["headers"]["operation"], item["key"]) for item in stream.read().items()
        )
    assert told == Counter(("insert", str(number)) for number in range(ROWS))
