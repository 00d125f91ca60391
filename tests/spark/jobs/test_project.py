"""Projecting runs on a real Spark and a real server, over crashes, replays and late events."""

import asyncio
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import BadOption
from headwater.runs import RunSnapshot, StoredEvent, project
from headwater.runs.stores.streams import StreamRunStore
from headwater.spark.jobs.project import bodies_of, lag_of
from headwater.spark.jobs.project import project as start_project
from headwater.spark.tables import open_table
from headwater.spark.transforms.run_changes import step_key
from headwater.state import MaterializedState
from tests.spark.patience import PATIENCE
from tests.spark.run_logs import completed, messages_of, snapshots
from tests.suites.run_steps import (
    all_events,
    as_stored,
    at,
    event,
    started,
    step_completed,
    step_failed,
    step_started,
)
from tests.support.server import ServerProcess


def story(run: str, steps: int = 3) -> list[StoredEvent]:
    told = [started(run)]
    for number in range(steps):
        told.append(step_started(f"s{number}", run=run))
        ended = step_failed if number % 3 == 2 else step_completed
        told.append(ended(f"s{number}", run=run, seconds=number))
    return as_stored([*told, completed(run, 60)])


class Job:
    """Streams, tables and a checkpoint of one test."""

    def __init__(self, spark: SparkSession, client: Client, url: str, room: str, folder: Path):
        self.spark = spark
        self.client = client
        self.url = url
        self.room = room
        self.folder = folder
        self.progress: list[Any] = []

    def append(self, name: str, events: list[StoredEvent]) -> None:
        stream = self.client.stream(f"{self.room}/log/{name}", content_type="application/json")
        stream.create()
        stream.append(messages_of(events))

    def run(self, checkpoint: str = "c", *, publish: bool = True, **more: Any) -> None:
        source = {"url": self.url, "stream": f"{self.room}/log/*", **more.pop("source", {})}
        query = start_project(
            self.spark,
            source,
            tables=str(self.folder / "tables"),
            checkpoint=str(self.folder / checkpoint),
            publish=f"{self.room}/snapshots" if publish else None,
            trigger={"availableNow": True},
            **more,
        )
        try:
            assert query.awaitTermination(PATIENCE)
        finally:
            query.stop()
        self.progress = list(query.recentProgress)

    def table(self, name: str, table_format: str = "delta") -> Any:
        found = open_table(str(self.folder / "tables" / name), table_format).read(self.spark)
        assert found is not None
        return found.toArrow()

    def snapshots(self, table_format: str = "delta") -> dict[str, RunSnapshot]:
        return snapshots(self.table("runs", table_format), self.table("steps", table_format))

    def told(self) -> list[dict[str, Any]]:
        return list(self.client.stream(f"{self.room}/snapshots").read().items())

    def state(self) -> MaterializedState:
        state = MaterializedState()
        for batch in self.client.stream(f"{self.room}/snapshots").read():
            assert state.apply_json(batch.data) == []
        return state

    def forget_commit(self, checkpoint: str = "c") -> None:
        """Have the last batch run again, as after a crash before Spark noted it as done."""
        folder = self.folder / checkpoint / "commits"
        *_, last = sorted(folder.glob("[0-9]*"), key=lambda file: int(file.name))
        last.unlink()


@pytest.fixture
def job(
    spark: SparkSession, server: ServerProcess, client: Client, room: str, tmp_path: Path
) -> Job:
    return Job(spark, client, server.url, room, tmp_path)


def projected(told: dict[str, list[StoredEvent]]) -> dict[str, RunSnapshot]:
    return {run: project(run, log) for run, log in told.items()}


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_events_in_any_order_over_streams_and_batches_make_the_tables(
    job: Job, table_format: str
) -> None:
    chance = Random(5)
    told = {f"run-{number}": story(f"run-{number}", number % 4) for number in range(12)}
    events = [each for log in told.values() for each in log]
    events += chance.choices(events, k=20)
    chance.shuffle(events)
    for number in range(3):
        job.append(f"part{number}", events[number::3])
    source = {"maxBytesPerTrigger": "12k"}
    job.run(publish=False, source=source, table_format=table_format)
    assert len([each for each in job.progress if each.numInputRows]) > 2
    assert job.snapshots(table_format) == projected(told)


def test_a_query_goes_on_and_a_replay_changes_nothing(job: Job) -> None:
    told = {run: story(run) for run in ("a", "b")}
    job.append("a", told["a"][:4])
    job.append("b", told["b"][:1])
    job.run()
    assert job.snapshots() == projected({"a": told["a"][:4], "b": told["b"][:1]})
    assert [each["headers"]["operation"] for each in job.told()] == ["insert"] * 4
    job.append("a", told["a"][4:])
    job.append("b", told["b"][1:5])
    job.run()
    wanted = {"a": told["a"], "b": told["b"][:5]}
    assert job.snapshots() == projected(wanted)
    before = (job.table("runs"), job.table("steps"), job.told())
    job.forget_commit()
    job.run()
    assert (job.table("runs"), job.table("steps"), job.told()) == before
    # A query of its own that reads everything again finds nothing new.
    job.run("another")
    assert job.snapshots() == projected(wanted)
    assert job.told() == before[2]


def test_an_older_copy_of_the_checkpoint_is_refused_and_loses_nothing(job: Job) -> None:
    told = story("a")
    job.append("a", told[:2])
    job.run(publish=False)
    shutil.copytree(job.folder / "c", job.folder / "copy")
    for number, part in enumerate((told[2:4], told[4:6])):
        job.append(f"part{number}", part)
        job.run(publish=False)
    job.append("new", told[6:])
    with pytest.raises(StreamingQueryException, match="the checkpoint is an older copy"):
        job.run("copy", publish=False)
    assert job.snapshots() == projected({"a": told[:6]})
    job.run(publish=False)
    assert job.snapshots() == projected({"a": told})


@pytest.mark.parametrize("name", ["runs", "steps", "an older copy of steps"])
def test_a_table_that_is_gone_is_not_begun_anew(job: Job, name: str) -> None:
    told = story("a")
    tables, aside = job.folder / "tables", job.folder / "aside"
    job.append("a", told[:2])
    job.run(publish=False)
    shutil.copytree(tables / "steps", job.folder / "older")
    job.append("more", told[2:4])
    job.run(publish=False)
    gone = tables / name.rpartition(" ")[2]
    gone.rename(aside)
    if " " in name:
        shutil.copytree(job.folder / "older", gone)
    job.append("last", told[4:])
    with pytest.raises(StreamingQueryException, match=r"does not hold.*Restore the table"):
        job.run(publish=False)
    shutil.rmtree(gone, ignore_errors=True)
    aside.rename(gone)
    job.run(publish=False)
    assert job.snapshots() == projected({"a": told})


def test_what_is_told_makes_the_state_of_the_tables(job: Job) -> None:
    told = {run: story(run) for run in ("a", "b")}
    late = [each for each in told["a"] if each.run_seq != 3]
    job.append("a", late)
    job.run()
    job.append("more", [told["a"][2], *told["b"]])
    job.run()
    state = job.state()
    assert set(state.get_type("run")) == {"a", "b"}
    assert state.get("run", "a")["status"] == "COMPLETED"
    assert "steps" not in state.get("run", "a")
    assert {key: value["status"] for key, value in state.get_type("step").items()} == {
        step_key(run, step.step_id): step.status
        for run, snapshot in projected(told).items()
        for step in snapshot.steps
    }
    assert state.get("step", step_key("a", "s0"))["runId"] == "a"
    # Each entity was inserted once, and then updated.
    inserts = [each["key"] for each in job.told() if each["headers"]["operation"] == "insert"]
    assert len(inserts) == len(set(inserts)) == len(state)


def test_a_stream_that_is_asked_for_later_begins_with_what_changes_then(job: Job) -> None:
    told = {run: story(run) for run in ("still", "moving", "new")}
    job.append("still", told["still"])
    job.append("moving", told["moving"][:2])
    job.run(publish=False)
    job.append("moving", told["moving"][2:])
    job.append("new", told["new"])
    job.run()
    first = {
        each["key"]: each["headers"]["operation"] for each in job.told() if each["type"] == "run"
    }
    assert first == {"moving": "update", "new": "insert"}
    assert job.snapshots() == projected(told)


@pytest.mark.parametrize("stop_after", ["runs", "steps"])
def test_a_crash_between_two_commits_leaves_nothing_out_and_nothing_twice(
    job: Job, stop_after: str
) -> None:
    told = {run: story(run) for run in ("a", "b", "c")}
    for run, log in told.items():
        job.append(run, log[:5])
    job.run(publish=False)
    for run, log in told.items():
        job.append(run, log[5:])
    crash = crash_at(job, stop_after)
    with pytest.raises(StreamingQueryException):
        job.run()
    crash()
    job.run()
    assert job.snapshots() == projected(told)
    events = job.told()
    names = [(each["type"], each["key"]) for each in events]
    assert len(names) == len(set(names))
    assert ("run", "c") in names


def test_what_is_told_need_not_fit_into_the_driver(job: Job, spark: SparkSession) -> None:
    error = {"code": "BOOM", "message": "x" * 200_000, "retryable": False}
    failed = {"failedAt": "2026-02-11T10:00:07Z", "error": error}
    for number in range(10):
        run = f"run-{number}"
        job.append(run, as_stored([started(run), event("RunFailed", failed, run=run)]))
    limits = spark.sparkContext._jsc.sc().conf()
    limits.set("spark.driver.maxResultSize", "1m")
    try:
        job.run()
    finally:
        limits.remove("spark.driver.maxResultSize")
    assert [each["key"] for each in job.told()] == [f"run-{number}" for number in range(10)]


def crash_at(job: Job, place: str) -> Callable[[], None]:
    """Make the batch fail behind a commit: what comes next can't be written."""
    if place == "steps":
        stream = job.client.stream(f"{job.room}/snapshots")
        stream.create("text/plain")
        return stream.delete
    # The folder of the steps is not to be written to: the runs are committed before.
    steps = job.folder / "tables" / "steps"
    steps.rename(steps.with_name("away"))
    steps.write_text("in the way")

    def undo() -> None:
        steps.unlink()
        steps.with_name("away").rename(steps)

    return undo


def test_a_gap_that_is_older_than_the_grace_is_stepped_over(job: Job) -> None:
    log = story("a")
    job.append("a", [log[0], log[2]])
    job.run(grace_seconds=0.0)
    (row,) = job.table("runs").to_pylist()
    assert (row["health"], row["contiguous_seq"], row["skipped_events"]) == ("LIVE", 3, 0)
    job.append("a", [log[1], log[3]])
    job.run(grace_seconds=0.0)
    (row,) = job.table("runs").to_pylist()
    assert (row["contiguous_seq"], row["skipped_events"]) == (4, 1)
    assert job.snapshots() == {"a": project("a", [log[0], log[2], log[3]])}


def test_the_lag_of_a_batch_is_measured(job: Job) -> None:
    now = datetime.now(UTC)
    events = as_stored([event("RunQueued", run="a"), event("RunApproved", run="a")])
    stored = [
        StoredEvent(
            run_id="a",
            event_id=str(each.run_seq),
            event_type=each.event_type,
            idempotency_key=str(each.run_seq),
            emitted_at=at(0),
            run_seq=each.run_seq,
            persisted_at=now,
        )
        for each in events
    ]
    job.append("a", stored)
    job.run()
    measured = [(lag, each) for each in job.progress if (lag := lag_of(each)) is not None]
    assert [lag.events for lag, _ in measured] == [2]
    ((lag, progress),) = measured
    ended = datetime.fromisoformat(progress.timestamp) + timedelta(
        milliseconds=progress.batchDuration
    )
    assert now < ended <= datetime.now(UTC) + timedelta(seconds=1)
    assert lag.seconds == pytest.approx((ended - now).total_seconds(), abs=0.01)
    assert lag.emitted_seconds == pytest.approx(
        lag.seconds + (now - at(0)).total_seconds(), abs=0.01
    )
    (row,) = job.table("runs").to_pylist()
    assert row["persisted_at"] == now
    assert row["projected_at"] > now


def test_what_is_no_event_fails_or_is_put_aside(job: Job) -> None:
    job.append("a", story("a"))
    stream = job.client.stream(f"{job.room}/log/bad", content_type="application/json")
    event = {"runId": "a", "eventType": "RunQueued"}
    numbered = event | {"runSeq": 99, "emittedAt": "2026-02-11T10:00:00Z"}
    unfit = [
        numbered | {"runSeq": 2**63},
        numbered | {"logicalAttemptId": "1000000000"},
        numbered | {"engineAttemptId": "1000000000"},
        numbered | {"emittedAt": "0001-01-01T00:00:00+14:00"},
        numbered | {"persistedAt": "9999-12-31T23:59:59-14:00"},
    ]
    stream.create(data=json.dumps([5, event, *unfit]).encode())
    with pytest.raises(StreamingQueryException, match=r"log/bad"):
        job.run(publish=False)
    job.run("other", publish=False, source={"onCorrupt": "column"})
    assert job.snapshots() == {"a": project("a", story("a"))}
    aside = job.table("_quarantine").to_pylist()
    assert sorted(row["reason"] for row in aside) == [
        *["it can't be read"] * 6,
        "it has no runSeq: only what a store has taken has one",
    ]
    assert {row["stream"] for row in aside} == {f"{job.room}/log/bad"}
    assert any('"event_type":"RunQueued"' in row["message"] for row in aside)


def test_the_runs_of_a_store_are_projected(job: Job) -> None:
    async def fill() -> dict[str, list[StoredEvent]]:
        store = StreamRunStore(job.url, job.room)
        await store.open()
        try:
            for run in ("x/1", "y 2"):
                await store.append_events([started(run), step_started("a", run=run)])
                await store.append_event(step_completed("a", run=run, artifacts=["s3://a"]))
            return {run: await all_events(store, run) for run in ("x/1", "y 2")}
        finally:
            await store.close()

    told = asyncio.run(fill())
    job.run(publish=False)
    assert job.snapshots() == projected(told)


def test_what_cannot_be_projected_is_said_at_once(job: Job) -> None:
    for more, message in (
        ({"source": {"mode": "state"}}, "mode 'runs'"),
        ({"grace_seconds": -1.0}, "seconds from 0"),
        ({"source": {"streams": "x"}}, "none of that name"),
    ):
        with pytest.raises(BadOption, match=message):
            job.run(**more)
    with pytest.raises(BadOption, match="name the one stream"):
        start_project(
            job.spark, {"url": job.url, "stream": "a"}, tables="t", checkpoint="c", publish="x/*"
        )
    for source in ("a/b", "x,a/*", "**"):
        with pytest.raises(BadOption, match="can't be one that is projected"):
            start_project(
                job.spark,
                {"url": job.url, "stream": source},
                tables="t",
                checkpoint="c",
                publish="/a/b",
            )


def test_bodies_are_always_cut_in_the_same_way() -> None:
    messages = [f'"{number:03}"' for number in range(10)]
    assert list(bodies_of(messages, 12)) == [
        f"[{messages[at]},{messages[at + 1]}]".encode() for at in range(0, 10, 2)
    ]
    assert list(bodies_of([], 12)) == []
    assert list(bodies_of(messages[:1], 1)) == [b'["000"]']
