"""Tables of state streams on a real Spark say what `headwater.state` says."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.spark.jobs.materializing import table_folder
from tests.docs.test_pages import blocks
from tests.spark.jobs.materializing import (
    Job,
    append,
    change,
    control,
    generated,
    state,
    told,
    value_of,
)
from tests.spark.patience import PATIENCE
from tests.spark.transforms.oracle import WILD_EVENTS, final
from tests.support.effort import examples
from tests.support.server import ServerProcess


@settings(
    max_examples=examples(2, 20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(drawn=st.lists(WILD_EVENTS, min_size=1, max_size=6))
def test_any_streams_give_the_tables_that_the_state_gives(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[list[Any]],
) -> None:
    folder = tmp_path_factory.mktemp("any")
    job = Job(spark, server.url, folder.name, folder)
    sure = [change("user", "sure", "insert", {"n": 1})]
    streams = {f"{job.room}/{number}": events + sure for number, events in enumerate(drawn)}
    for path, events in streams.items():
        client.stream(path).create(data=json.dumps(events).encode())
    job.run()
    oracles = final(streams, state())
    assert job.current() == {path: each.rows for path, each in oracles.items() if each.rows}
    kept = {path: [row[1:3] for row in job.quarantined() if row[0] == path] for path in streams}
    assert kept == {path: told(each) for path, each in oracles.items()}


def everything(job: Job) -> dict[str, list[str]]:
    names = sorted(path.name for path in (job.folder / "tables").iterdir())
    return {name: sorted(str(sorted(row.items())) for row in job.rows(name)) for name in names}


def test_a_batch_that_is_replayed_changes_nothing(job: Job, client: Client) -> None:
    path = f"{job.room}/a"
    events = [*generated(5, 40), control("reset"), *generated(6, 40)]
    client.stream(path).create(data=json.dumps(events).encode())
    batches = job.run(source={"maxBytesPerTrigger": "4000"})
    before = everything(job)
    # As if the driver had died before it could say that the last batch is done.
    last = max(
        (job.folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda each: int(each.name)
    )
    assert int(last.name) == batches - 1
    last.unlink()
    assert job.run() == 1
    assert everything(job) == before
    assert job.current() == {path: final({path: events}, state())[path].rows}


def test_a_batch_that_fails_between_two_tables_is_finished_later(job: Job, client: Client) -> None:
    path = f"{job.room}/a"
    events = [
        control("snapshot-start"),
        change("order", "a", "insert", 1),
        change("user", "a", "insert", {"n": 1}),
        control("snapshot-end"),
        change("user", "a", "update", {"n": 2}),
        change("user", "b", "update", {"n": "two"}),
    ]
    client.stream(path).create(data=json.dumps(events).encode())
    (job.folder / "tables").mkdir()
    obstacle = job.folder / "tables" / "user_history"
    obstacle.write_text("not a folder")
    with pytest.raises(StreamingQueryException):
        job.run()
    assert value_of(job.rows("user")[0]) == {"n": 2}
    assert job.quarantined() == []
    obstacle.unlink()
    assert job.run() == 1
    assert job.current() == {path: {("order", "a"): 1, ("user", "a"): {"n": 2}}}
    assert [(row["n"], row["valid_to"] is None) for row in by_offset(job.rows("user_history"))] == [
        (1, False),
        (2, True),
    ]
    assert [row[1:3] for row in job.quarantined()] == [("user", "b")]


@pytest.mark.parametrize("name", ["user", "user_history", "_history off"])
def test_a_table_that_is_gone_is_not_begun_anew(job: Job, client: Client, name: str) -> None:
    path = f"{job.room}/a"
    history = name != "_history off"
    client.stream(path).create(data=json.dumps([change("user", "a", "insert", {"n": 1})]).encode())
    job.run(history=history)
    append(client, path, [change("order", "b", "insert", 2)])  # a type that comes later
    job.run(history=history)
    before = everything(job)
    table, aside = job.folder / "tables" / (name if history else "order"), job.folder / "aside"
    table.rename(aside)
    append(client, path, [change("user", "c", "insert", {"n": 3})])
    with pytest.raises(StreamingQueryException, match=r"does not hold.*Restore the table"):
        job.run(history=history)
    assert not table.exists()
    aside.rename(table)
    assert everything(job) == before
    job.run(history=history)
    assert {key for _, key in job.current()[path]} == {"a", "b", "c"}


def test_tables_in_another_folder_or_format_are_not_begun_under_a_checkpoint(
    job: Job, client: Client
) -> None:
    path = f"{job.room}/a"
    client.stream(path).create(data=json.dumps([change("user", "a", "insert", {"n": 1})]).encode())
    job.run()
    append(client, path, [change("user", "b", "insert", {"n": 2})])
    with pytest.raises(StreamingQueryException, match=r"does not hold.*start over"):
        job.run(table_format="parquet")
    there, job.tables = job.tables, str(job.folder / "others")
    with pytest.raises(StreamingQueryException, match=r"does not hold.*start over"):
        job.run()
    job.tables = there
    job.run(history=False)  # from here on the histories lack something, and are not asked for
    (job.folder / "tables" / "user_history").rename(job.folder / "aside")
    append(client, path, [change("user", "c", "insert", {"n": 3})])
    job.run(history=False)
    assert {key for _, key in job.current()[path]} == {"a", "b", "c"}


def by_offset(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["offset"]))


def test_a_snapshot_that_is_open_ends_with_its_stream(job: Job, client: Client) -> None:
    def data(*events: Any) -> bytes:
        return json.dumps(events).encode()

    start, end = control("snapshot-start"), control("snapshot-end")
    begun = data(start, change("order", "old", "insert", 1))
    for name in ("a", "b"):
        client.stream(f"{job.room}/{name}").create(data=begun)
    # A fork has offsets of its source as well: its snapshot goes on.
    source = client.stream(f"source-of-{job.room}")
    source.create(data=begun)
    source.fork(f"{job.room}/c")
    careless = {"failOnDataLoss": "false"}
    job.run(source=careless)
    assert job.current() == {}
    for name in ("a", "b"):
        client.stream(f"{job.room}/{name}").delete()
    new = change("order", "new", "insert", 2)
    client.stream(f"{job.room}/a").create(data=data(new))
    client.stream(f"{job.room}/b").create(data=data(new, end))
    append(client, f"{job.room}/c", [new, end])
    job.run(source=careless)
    assert job.current() == {
        f"{job.room}/a": {("order", "new"): 2},
        f"{job.room}/b": {("order", "new"): 2},
        f"{job.room}/c": {("order", "old"): 1, ("order", "new"): 2},
    }


def test_rows_of_a_deleted_stream_stay_until_the_next_one_at_its_path_has_a_snapshot(
    job: Job, client: Client
) -> None:
    def data(*events: Any) -> bytes:
        return json.dumps(events).encode()

    source = client.stream(f"source-of-{job.room}")
    source.create(data=data(change("order", "k", "insert", "taken over")))
    old = data(change("order", "k", "insert", "old"), change("order", "gone", "insert", "old"))
    for name in ("anew", "fork"):
        client.stream(f"{job.room}/{name}").create(data=old)
    careless = {"failOnDataLoss": "false"}
    job.run(source=careless)
    for name in ("anew", "fork"):
        client.stream(f"{job.room}/{name}").delete()
    client.stream(f"{job.room}/anew").create(data=data(change("order", "k", "insert", "new")))
    source.fork(f"{job.room}/fork")
    append(client, f"{job.room}/fork", [change("order", "own", "insert", "new")])
    job.run(source=careless)
    # The offsets of what a fork took over are older than those of the stream before it.
    stays = {("order", "k"): "old", ("order", "gone"): "old"}
    assert job.current() == {
        f"{job.room}/anew": stays | {("order", "k"): "new"},
        f"{job.room}/fork": stays | {("order", "own"): "new"},
    }
    snapshot = [change("order", "k", "insert", "taken over"), change("order", "own", "insert", 1)]
    start, end = control("snapshot-start"), control("snapshot-end")
    for name in ("anew", "fork"):
        append(client, f"{job.room}/{name}", [start, *snapshot, end])
    job.run(source=careless)
    right = {("order", "k"): "taken over", ("order", "own"): 1}
    assert job.current() == {f"{job.room}/{name}": right for name in ("anew", "fork")}
    valid = [row for row in job.rows("order_history") if row["valid_to"] is None]
    assert sorted((row["stream"], row["key"]) for row in valid) == sorted(
        (f"{job.room}/{name}", key) for name in ("anew", "fork") for key in ("k", "own")
    )


def test_names_of_tables_are_safe_and_apart() -> None:
    names = ["user", "user_history", "_quarantine", "../x", "a b", "é", "a.b-c_d", "..", "~"]
    folders = [table_folder(name) for name in names]
    assert len(set(folders)) == len(names)
    assert folders[0] == "user"
    assert folders[6] == "a.b-c_d"
    assert all(name[0] not in "._" and "/" not in name for name in folders)
    assert not any(name.endswith("_history") for name in folders)
    long = [table_folder("é" * 200 + end) for end in "ab"]
    assert len(set(long)) == 2
    assert all(len(name) < 200 for name in long)


def test_the_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "page"}
    printed, shown = io.StringIO(), 0
    with ServerProcess() as server:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "HEADWATER_URL": server.url, "PATH": path}
        for language, text in blocks("docs/pipelines-materialize.md"):
            code = text.replace("http://localhost:4437", server.url)
            if language == "bash":
                subprocess.run(
                    ["bash", "-euc", code], env=environment, check=True, timeout=PATIENCE
                )
            elif language == "python":
                printed = io.StringIO()
                # Spark's JVM does not change its folder: it has to be told where this one is.
                code = code.replace('"checkpoints/shop"', repr(str(tmp_path / "checkpoint")))
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, "page.py", "exec"), scope)
            elif language == "output":
                assert text.strip() in printed.getvalue()
                shown += 1
    assert shown == 2
