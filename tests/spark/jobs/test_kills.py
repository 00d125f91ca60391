"""Jobs whose driver is killed at any moment tell and keep everything once."""

import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from subprocess import Popen

from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import StreamNotFound
from headwater.runs import StoredEvent, project
from headwater.spark.tables import open_table
from headwater.state import MaterializedState
from tests.spark.jobs.driving import KILLS, job_driver
from tests.spark.jobs.test_project import story
from tests.spark.patience import PATIENCE
from tests.spark.run_logs import messages_of, snapshots
from tests.support.server import ServerProcess

ROWS = 5_000


def projecting(url: str, folder: Path, limit: str) -> AbstractContextManager[Popen[bytes]]:
    arguments = {
        "source": {"url": url, "stream": "log/*", "maxBytesPerTrigger": limit},
        "tables": f"{folder}/tables",
        "checkpoint": f"{folder}/checkpoint",
        "publish": "snapshots",
    }
    return job_driver("project", folder, arguments)


def told(client: Client) -> list[bytes]:
    try:
        return [batch.data for batch in client.stream("snapshots").read() if batch.items()]
    except StreamNotFound:
        return []


def test_a_killed_projection_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    chance = Random(11)
    runs = {f"run-{number}": story(f"run-{number}", 6) for number in range(40)}
    events: list[StoredEvent] = [each for log in runs.values() for each in log]
    chance.shuffle(events)
    with ServerProcess() as server, Client(server.url) as client:
        for number in range(4):
            client.stream(f"log/{number}").create(data=messages_of(events[number::4]))
        for _ in range(KILLS):
            before = len(b"".join(told(client)))
            with projecting(server.url, tmp_path, "20k") as process:
                until = time.monotonic() + PATIENCE
                while len(b"".join(told(client))) == before and process.poll() is None:
                    assert time.monotonic() < until, (tmp_path / "driver.log").read_text()[-2000:]
                    time.sleep(0.02)
                time.sleep(chance.random() * 1.5)  # then it is killed, with all its processes
        with projecting(server.url, tmp_path, "40k") as process:
            code = process.wait(PATIENCE)
            assert code == 0, (tmp_path / "driver.log").read_text()[-3000:]
        state = MaterializedState()
        operations: Counter[tuple[str, str, str]] = Counter()
        for data in told(client):
            assert state.apply_json(data) == []
        for item in client.stream("snapshots").read().items():
            operations[item["type"], item["key"], item["headers"]["operation"]] += 1
    tables = [open_table(str(tmp_path / "tables" / name)).read(spark) for name in ("runs", "steps")]
    assert tables[0] is not None
    assert tables[1] is not None
    wanted = {run: project(run, log) for run, log in runs.items()}
    assert snapshots(tables[0].toArrow(), tables[1].toArrow()) == wanted
    assert {key: value["lastEventSeq"] for key, value in state.get_type("run").items()} == {
        run: snapshot.last_event_seq for run, snapshot in wanted.items()
    }
    inserts = {name: count for name, count in operations.items() if name[2] == "insert"}
    assert set(inserts.values()) == {1}
    assert len(inserts) == len(state)


def test_a_killed_publication_tells_the_rest_once(tmp_path: Path) -> None:
    chance = Random(5)
    with ServerProcess() as server, Client(server.url) as client:
        stream = client.stream("rows")
        stream.create()
        given = {
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
        assert len(list(stream.read().items())) < ROWS, "it was never killed before its end"
        with job_driver("publish", tmp_path, given) as process:
            code = process.wait(PATIENCE)
            assert code == 0, (tmp_path / "driver.log").read_text()[-3000:]
        told = Counter(
            (item["headers"]["operation"], item["key"]) for item in stream.read().items()
        )
    assert told == Counter(("insert", str(number)) for number in range(ROWS))
