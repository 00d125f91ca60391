"""Runs over HTTP: the run contract as requests and responses."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headwater.runs import NewEvent
from headwater.runs.events import event_to_wire
from tests.server.conftest import Serve
from tests.suites.run_steps import event, numbered, started, step_completed, step_started
from tests.support.barrier import barrier
from tests.support.patience import wait_until
from tests.support.server import ServerProcess
from tests.support.wire import EventReader, Wire

JSON = {"Content-Type": "application/json"}
_number = itertools.count()


@pytest.fixture
def run() -> str:
    """A run id that no other test uses."""
    return f"run {next(_number)}/ü"


def url(run_id: str, rest: str = "") -> str:
    return f"/v1/runs/{quote(run_id, safe='')}{rest}"


def post(wire: Wire, run_id: str, *events: NewEvent) -> Any:
    """Append events, which must succeed."""
    body = json.dumps([event_to_wire(each) for each in events]).encode()
    answer = wire.ask("POST", url(run_id, "/events"), JSON, body)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def get(wire: Wire, path: str) -> Any:
    answer = wire.ask("GET", path)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def test_a_run_is_appended_fetched_and_projected(wire: Wire, run: str) -> None:
    results = post(wire, run, started(run), step_started("a", run=run))
    assert results == [
        {"runSeq": 1, "idempotent": False, "persisted": True},
        {"runSeq": 2, "idempotent": False, "persisted": True},
    ]
    page = get(wire, url(run, "/events?after=1"))
    assert page["lastEventSeq"] == 2
    assert page["upToDate"] is True
    (only,) = page["events"]
    assert (only["runSeq"], only["stepId"], only["logicalAttemptId"]) == (2, "a", "1")
    assert only["persistedAt"]
    snapshot = get(wire, url(run, "/snapshot"))
    assert (snapshot["status"], snapshot["lastEventSeq"]) == ("RUNNING", 2)
    assert snapshot == get(wire, url(run, "/snapshot?source=log"))
    info = get(wire, url(run))
    assert (info["runId"], info["lastEventSeq"]) == (run, 2)


def test_one_event_is_answered_by_one_result(wire: Wire, run: str) -> None:
    body = event_to_wire(started(run))
    del body["runId"]
    for expected in (False, True):
        answer = wire.ask("POST", url(run, "/events"), JSON, json.dumps(body).encode())
        assert json.loads(answer.body)["idempotent"] is expected


def test_a_page_continues_where_the_last_one_ended(wire: Wire, run: str) -> None:
    post(wire, run, *numbered(25, run=run))
    after, seen = 0, []
    while True:
        page = get(wire, url(run, f"/events?after={after}&limit=10"))
        seen += [each["runSeq"] for each in page["events"]]
        after = page["lastEventSeq"]
        if page["upToDate"]:
            break
    assert seen == list(range(1, 26))


@pytest.mark.parametrize(
    ("body", "because"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "empty"),
        (b"5", "object"),
        (b"{}", "eventId"),
        (b'{"runId": "other"}', "path names"),
        (json.dumps(event_to_wire(event("StepStarted", {}, run="bad"))).encode(), "stepId"),
        (b'{"runSeq": 1}', "runSeq"),
    ],
    ids=["nothing", "torn", "no-event", "a-number", "no-fields", "another-run", "no-step", "a-seq"],
)
def test_an_invalid_event_is_refused(wire: Wire, body: bytes, because: str) -> None:
    answer = wire.ask("POST", "/v1/runs/bad/events", JSON, body)
    problem = json.loads(answer.body)
    assert (answer.status, problem["code"]) == (400, "SCHEMA_VALIDATION_FAILED")
    assert because in problem["detail"]
    assert wire.ask("GET", "/v1/runs/bad").status == 404


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/runs/missing", 404, "RUN_NOT_FOUND"),
        ("/v1/runs/missing/events", 404, "RUN_NOT_FOUND"),
        ("/v1/runs/missing/events?live=sse", 404, "RUN_NOT_FOUND"),
        ("/v1/runs/missing/snapshot", 404, "RUN_NOT_FOUND"),
        ("/v1/runs/missing/snapshot?source=log", 404, "RUN_NOT_FOUND"),
        ("/v1/runs/missing/snapshot?source=x", 400, "BAD_QUERY"),
        ("/v1/runs/missing/events?after=x", 400, "BAD_QUERY"),
        ("/v1/runs/missing/events?after=-1", 400, "BAD_QUERY"),
        ("/v1/runs/missing/events?limit=0", 400, "BAD_QUERY"),
        ("/v1/runs/missing/events?limit=1&limit=2", 400, "BAD_QUERY"),
        ("/v1/runs/missing/events?live=maybe", 400, "BAD_QUERY"),
        ("/v1/runs?status=ILL", 400, "BAD_QUERY"),
        ("/v1/runs?createdFrom=yesterday", 400, "BAD_QUERY"),
        ("/v1/runs?createdFrom=2026-01-01T00:00:00", 400, "BAD_QUERY"),
        ("/v1/runs?after=x", 400, "BAD_QUERY"),
        ("/v1/runs/a/b/c", 404, "not-found"),
        ("/v1/runs/%ff", 404, "not-found"),
        ("/v1/runsandmore", 404, "not-found"),
    ],
)
def test_an_invalid_query_is_refused_with_its_reason(
    wire: Wire, path: str, status: int, code: str
) -> None:
    answer = wire.ask("GET", path)
    assert (answer.status, json.loads(answer.body)["code"]) == (status, code)


def test_a_405_lists_the_allowed_methods(wire: Wire) -> None:
    answer = wire.ask("PUT", "/v1/runs/a", JSON, b"{}")
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, DELETE, HEAD, OPTIONS"


def test_a_deleted_run_is_gone_for_good(wire: Wire, run: str) -> None:
    post(wire, run, started(run))
    assert wire.ask("DELETE", url(run)).status == 204
    assert wire.ask("GET", url(run, "/snapshot")).status == 404
    assert wire.ask("DELETE", url(run)).status == 404
    body = json.dumps(event_to_wire(started(run))).encode()
    answer = wire.ask("POST", url(run, "/events"), JSON, body)
    assert (answer.status, json.loads(answer.body)["code"]) == (410, "RUN_DELETED")


def test_runs_are_listed_by_status_and_page(serve: Serve) -> None:
    server = serve()
    with Wire(server.port) as wire:
        for number in range(5):
            post(wire, f"r{number}", started(f"r{number}"))
        post(wire, "done", started("done"), event("RunCompleted", run="done"))
        page = get(wire, "/v1/runs?status=COMPLETED")
        assert [each["runId"] for each in page["runs"]] == ["done"]
        names: list[str] = []
        path = "/v1/runs?limit=4"
        while True:
            page = get(wire, path)
            names += [each["runId"] for each in page["runs"]]
            if "next" not in page:
                break
            path = f"/v1/runs?limit=4&after={quote(page['next'], safe='')}"
        assert sorted(names) == ["done", "r0", "r1", "r2", "r3", "r4"]
        assert get(wire, "/v1/runs?createdBefore=2001-01-01T00:00:00Z")["runs"] == []


def test_a_run_is_followed_live_and_resumed_by_its_last_id(
    server: ServerProcess, wire: Wire, run: str
) -> None:
    with Wire(server.port) as writer:
        post(writer, run, started(run), step_started("a", run=run))
        reader = EventReader(wire, url(run, "/events?live=sse&after=1"))
        assert reader.headers["content-type"] == "text/event-stream"
        assert reader.need("run-event").json()["runSeq"] == 2
        for number in range(3, 8):
            post(writer, run, event("Ticked", {"n": number}, run=run, step=str(number)))
            received = reader.need("run-event").json()
            assert (received["runSeq"], received["eventData"]["n"]) == (number, number)


def test_following_ends_with_the_time_of_the_connection(serve: Serve) -> None:
    server = serve("--sse-duration", "0.1")
    with Wire(server.port) as writer, Wire(server.port) as wire:
        post(writer, "r", started("r"))
        assert EventReader(wire, "/v1/runs/r/events?live=sse&after=1").next() is None
        assert get(writer, "/v1/runs/r")["runId"] == "r"


def test_following_ends_with_the_run(serve: Serve) -> None:
    server = serve("--sse-duration", "3600")
    with Wire(server.port) as writer, Wire(server.port) as one, Wire(server.port) as two:
        post(writer, "r", started("r"))
        reader = EventReader(one, "/v1/runs/r/events?live=sse")
        reader.need("run-event")
        other = EventReader(two, "/v1/runs/r/events?live=sse&after=1")
        barrier(server.port)
        writer.ask("DELETE", "/v1/runs/r")
        assert other.next() is None
        assert reader.next() is None


def test_many_events_reach_a_slow_follower(serve: Serve) -> None:
    server = serve("--write-buffer-bytes", "2000")
    with Wire(server.port) as writer, Wire(server.port) as wire:
        post(writer, "r", *numbered(900, run="r"))
        reader = EventReader(wire, "/v1/runs/r/events?live=sse")
        barrier(server.port, rounds=20)
        seen = [reader.need("run-event").json()["runSeq"] for _ in range(900)]
        assert seen == list(range(1, 901))


def test_snapshots_are_projected_and_the_lag_is_reported(wire: Wire, run: str) -> None:
    post(wire, run, started(run), step_started("a", run=run), step_completed("a", run=run))
    wait_until(lambda: get(wire, url(run, "/lag"))["eventsBehind"] == 0, "projecting")
    lag = get(wire, url(run, "/lag"))
    assert (lag["health"], lag["lagSeconds"]) == ("LIVE", 0.0)


def test_runs_in_the_data_directory_survive_a_restart(serve: Serve, tmp_path: Path) -> None:
    options = ("--store", str(tmp_path / "data"))
    server = serve(*options)
    with Wire(server.port) as wire:
        post(wire, "r", started("r"))
    assert server.stop() == 0
    assert (tmp_path / "data" / "runs.db").exists()
    server = serve(*options)
    with Wire(server.port) as wire:
        assert get(wire, "/v1/runs/r/snapshot")["status"] == "RUNNING"
        assert post(wire, "r", started("r"))[0]["idempotent"] is True


def test_runs_can_be_stored_elsewhere(serve: Serve, tmp_path: Path) -> None:
    server = serve("--runs-store", f"sqlite:{tmp_path / 'elsewhere.db'}")
    with Wire(server.port) as wire:
        post(wire, "r", started("r"))
    assert (tmp_path / "elsewhere.db").exists()


def test_a_damaged_run_store_stops_the_start_with_advice(serve: Serve, tmp_path: Path) -> None:
    options = ("--store", str(tmp_path / "data"))
    server = serve(*options)
    with Wire(server.port) as wire:
        wire.ask("PUT", "/v1/stream/s", JSON)
        post(wire, "r", started("r"))
    assert server.stop() == 0
    file = tmp_path / "data" / "runs.db"
    file.write_bytes(b"x" * file.stat().st_size)
    command = (sys.executable, "-m", "headwater", "serve", "--port", "0", *options)
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert str(file) in refused.stderr
    assert "move it away" in refused.stderr
    assert "Traceback" not in refused.stderr
    file.rename(tmp_path / "runs.damaged")
    server = serve(*options)
    with Wire(server.port) as wire:
        assert wire.ask("HEAD", "/v1/stream/s").status == 200
        assert wire.ask("GET", "/v1/runs/r/snapshot").status == 404


def test_a_server_without_requests_for_runs_creates_no_file(serve: Serve, tmp_path: Path) -> None:
    server = serve("--store", str(tmp_path / "data"))
    with Wire(server.port) as wire:
        wire.ask("PUT", "/v1/stream/s", JSON)
    assert not (tmp_path / "data" / "runs.db").exists()
