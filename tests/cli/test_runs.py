"""The commands over runs."""

import json
import signal
import uuid
from pathlib import Path

import pytest

from headwater.client import Client
from headwater.runs import calls
from headwater.runs.events import event_to_wire
from tests.cli.conftest import Headwater
from tests.suites.run_steps import event, numbered, started, step_completed, step_started
from tests.support.server import ServerProcess


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4()}"


def test_a_run_is_appended_to_listed_and_shown(headwater: Headwater, run: str) -> None:
    lines = "\n".join(
        json.dumps(event_to_wire(each))
        for each in (started(run), step_started("a", run=run), step_completed("a", run=run))
    )
    first = headwater.ok("runs", "append", run, "-", stdin=lines.encode())
    assert first == f"Appended 3 events to {run}; the last is number 3.\n"
    again = headwater.ok("runs", "append", run, "-", stdin=lines.encode())
    assert again == f"Appended 0 events to {run}, 3 existed already; the last is number 3.\n"
    data = '{"startedAt": "2026-02-11T10:00:00Z"}'
    headwater.ok("runs", "append", run, "StepStarted", data, "--step", "b", "--attempt", "2")
    shown = headwater.ok("runs", "show", run)
    assert shown.startswith(f"{run}  RUNNING")
    assert "✓ a  SUCCESS" in shown
    assert "▶ b  RUNNING" in shown
    snapshot = json.loads(headwater.ok("runs", "show", run, "--json", "--replay"))
    assert snapshot["steps"][1]["logicalAttemptId"] == "2"
    assert f"{run}  RUNNING  " in headwater.ok("runs", "list", "--status", "running")
    assert run not in headwater.ok("runs", "list", "--status", "FAILED")
    assert "conforms to the contract: 4 events" in headwater.ok("runs", "verify", run)


def test_many_runs_are_listed_over_several_pages(headwater: Headwater, client: Client) -> None:
    names = [f"list-{uuid.uuid4()}" for _ in range(5)]
    for name in names:
        client.run(calls.append(client.base_url, name, [started(name)]))
    listed = headwater.ok("runs", "list", "--limit", "3").splitlines()
    assert [line.split()[0] for line in listed] == names[:1:-1]


def test_following_prints_events_as_they_come_and_ends_with_the_run(
    headwater: Headwater, client: Client, run: str
) -> None:
    client.run(calls.append(client.base_url, run, [started(run)]))
    with headwater.start("runs", "follow", run) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"RunStarted\n")
        # The server ends each connection after 0.3 s here: following goes on all the same.
        for each in numbered(4, run=run):
            client.run(calls.append(client.base_url, run, [each]))
            assert b"Ticked" in process.stdout.readline()
        client.run(calls.append(client.base_url, run, [event("RunCompleted", run=run)]))
        assert process.stdout.readline().endswith(b"RunCompleted\n")
        assert process.stderr.read() == f"Run {run} is COMPLETED.\n".encode()
        assert process.wait(60) == 0


def test_an_interrupted_follow_says_how_to_go_on(
    headwater: Headwater, client: Client, run: str
) -> None:
    client.run(calls.append(client.base_url, run, [started(run)]))
    with headwater.start("runs", "follow", run, "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["runSeq"] == 1
        process.send_signal(signal.SIGINT)
        assert f"headwater runs follow {run} --after 1" in process.stderr.read().decode()


def test_a_deleted_run_is_gone(headwater: Headwater, client: Client, run: str) -> None:
    client.run(calls.append(client.base_url, run, [started(run)]))
    assert headwater.ok("runs", "delete", run, "--yes") == f"Deleted run {run}.\n"
    late = headwater.run("runs", "append", run, "RunQueued")
    assert late.returncode == 1
    assert b"was deleted" in late.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("show", "none"), 1, "There is no run 'none'"),
        (("follow", "none"), 1, "There is no run 'none'"),
        (("verify", "none"), 1, "There is no run 'none'"),
        (("append", "r", "StepStarted", "{}"), 1, "stepId"),
        (("append", "r", "Ticked", "{"), 2, "not JSON"),
        (("append", "r", "a|b"), 1, "separates"),
        (("list", "--status", "ILL"), 1, "PENDING"),
        (("show", "r", "--url", "nowhere"), 2, "not the URL of a server"),
    ],
)
def test_what_fails_says_why(
    headwater: Headwater, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    done = headwater.run("runs", *arguments)
    assert done.returncode == code
    assert sentence in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_line_that_is_no_event_is_named(headwater: Headwater, run: str) -> None:
    done = headwater.run("runs", "append", run, "-", stdin=b'{"a": 1}\n[2]\n')
    assert done.returncode == 1
    assert b"Line 2" in done.stderr


def test_a_backup_brings_the_runs_along(tmp_path: Path, run: str) -> None:
    server = ServerProcess(store=tmp_path / "data").start()
    try:
        url = f"http://127.0.0.1:{server.port}"
        with Client(url) as client:
            client.run(calls.append(url, run, [started(run), step_started("a", run=run)]))
        done = Headwater(url).ok("backup", str(tmp_path / "data"), str(tmp_path / "copy"))
        assert "of runs." in done
    finally:
        server.kill()
    server = ServerProcess(store=tmp_path / "copy").start()
    try:
        shown = Headwater(f"http://127.0.0.1:{server.port}").ok("runs", "show", run)
        assert "▶ a  RUNNING" in shown
    finally:
        server.kill()
