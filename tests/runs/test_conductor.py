"""Execution records in the form of Conductor's public API become runs."""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from conductor.client.configuration.configuration import Configuration
from conductor.client.http.models import Task, Workflow
from conductor.client.orkes.orkes_workflow_client import OrkesWorkflowClient

from headwater.errors import EventRefused
from headwater.runs import NewEvent, RunSnapshot, RunStatus, StepStatus, idempotency_key
from headwater.runs.conductor import execution_events, record_execution
from headwater.runs.event_data import RunContext
from headwater.runs.stores.memory import MemoryRunStore

RECORDS = Path(__file__).parent / "conductor_records"
CONTEXT = RunContext("t", "p", "prod")
URL = "http://conductor:8080/"


def record(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text())


def events(name: str, **more: Any) -> list[NewEvent]:
    return execution_events(record(name), conductor_url=URL, context=CONTEXT, **more)


def told(made: list[NewEvent]) -> list[tuple[str, str | None, int | None]]:
    return [(each.event_type, each.step_id, each.logical_attempt_id) for each in made]


def snapshot_of(*names: str) -> RunSnapshot:
    """Record some records one after another, as a poller does."""

    async def scenario() -> RunSnapshot:
        async with MemoryRunStore() as store:
            before = None
            for name in names:
                await record_execution(
                    store, record(name), conductor_url=URL, context=CONTEXT, previous=before
                )
                before = record(name)
            return await store.project_snapshot(record(names[0])["workflowId"])

    return asyncio.run(scenario())


class Records(BaseHTTPRequestHandler):
    """Answers as Conductor's API does: `GET /api/workflow/<id>`."""

    def do_GET(self) -> None:
        wanted = urlsplit(self.path).path.rpartition("/")[2]
        for path in RECORDS.glob("*.json"):
            if path.stem == wanted:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(path.read_bytes())
                return
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDS.glob("*.json")))
def test_conductors_own_client_reads_the_records(name: str) -> None:
    document = record(name)
    assert set(document) <= set(Workflow.attribute_map.values())
    for task in document["tasks"]:
        assert set(task) <= set(Task.attribute_map.values())
    with ThreadingHTTPServer(("127.0.0.1", 0), Records) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/api"
        read = OrkesWorkflowClient(Configuration(server_api_url=url)).get_workflow(name)
        server.shutdown()
    assert (read.workflow_id, read.status) == (document["workflowId"], document["status"])
    assert [(task.status, task.retry_count, task.reference_task_name) for task in read.tasks] == [
        (task["status"], task["retryCount"], task["referenceTaskName"])
        for task in document["tasks"]
    ]


def test_a_completed_workflow_tells_its_tasks_and_their_retries_in_order() -> None:
    made = events("completed")
    assert told(made) == [
        ("RunStarted", None, None),
        ("StepStarted", "extract_ref", 1),
        ("StepCompleted", "extract_ref", 1),
        ("StepStarted", "load_ref", 1),
        ("StepFailed", "load_ref", 1),
        ("StepStarted", "load_ref", 2),
        ("StepCompleted", "load_ref", 2),
        ("StepSkipped", "notify_ref", 1),
        ("RunCompleted", None, None),
    ]
    snapshot = snapshot_of("completed")
    assert snapshot.status is RunStatus.COMPLETED
    assert {step.step_id: step.status for step in snapshot.steps} == {
        "extract_ref": StepStatus.SUCCESS,
        "load_ref": StepStatus.SUCCESS,
        "notify_ref": StepStatus.SKIPPED,
    }
    assert snapshot.total_duration_ms == 900
    assert snapshot.failed_steps == 1


def test_events_have_the_contracts_keys_and_point_to_conductor() -> None:
    workflow_id = record("completed")["workflowId"]
    for each in events("completed"):
        assert each.run_id == workflow_id
        assert each.engine_run_ref == {
            "provider": "conductor",
            "workflowId": workflow_id,
            "runId": workflow_id,
            "conductorUrl": "http://conductor:8080",
        }
        assert each.idempotency_key == idempotency_key(
            workflow_id,
            each.event_type,
            "3",
            step_id=each.step_id,
            logical_attempt_id=each.logical_attempt_id,
        )


@pytest.mark.parametrize(
    ("name", "status", "code", "retryable"),
    [
        ("failed", RunStatus.FAILED, "FAILED_WITH_TERMINAL_ERROR", False),
        ("timed_out", RunStatus.FAILED, "TIMED_OUT", True),
        ("terminated", RunStatus.CANCELLED, "CANCELED", False),
    ],
)
def test_a_workflow_that_did_not_complete_says_why(
    name: str, status: RunStatus, code: str, retryable: bool
) -> None:
    snapshot = snapshot_of(name)
    assert snapshot.status is status
    step = snapshot.steps[-1]
    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert (step.error.code, step.error.retryable) == (code, retryable)


def test_tasks_of_the_engine_itself_end_after_they_began_whatever_its_clocks_say() -> None:
    """Switches and forks come with an end before their start, or with no start at all."""
    tasks = {task["referenceTaskName"]: task for task in record("forked")["tasks"]}
    assert tasks["by_size_ref"]["endTime"] < tasks["by_size_ref"]["startTime"]
    assert tasks["regions_ref"]["endTime"] < tasks["regions_ref"]["scheduledTime"]
    snapshot = snapshot_of("forked")
    assert snapshot.status is RunStatus.CANCELLED
    assert {step.step_id: step.status for step in snapshot.steps} == {
        name: StepStatus.SUCCESS if task["status"] == "COMPLETED" else StepStatus.FAILED
        for name, task in tasks.items()
    }


def test_records_that_are_read_while_it_runs_add_up_to_the_last_one() -> None:
    assert told(events("running"))[-1] == ("StepStarted", "load_ref", 1)
    assert snapshot_of("running").status is RunStatus.RUNNING
    grown = snapshot_of("running", "running", "paused", "running", "completed", "completed")
    assert grown.status is RunStatus.COMPLETED
    assert {step.status for step in grown.steps} == {StepStatus.SUCCESS, StepStatus.SKIPPED}


def test_the_same_record_gives_the_same_events() -> None:
    assert events("completed") == events("completed")
    assert {each.event_id for each in events("running")} < {
        each.event_id for each in events("completed")
    }


def test_each_pause_and_resumption_between_two_records_is_an_event() -> None:
    paused, running = record("paused"), record("running")
    assert told(events("paused"))[-1][0] == "RunPaused"
    assert told(events("paused", previous=paused))[-1][0] == "StepCompleted"
    assert told(events("running", previous=paused))[-1][0] == "RunResumed"
    assert told(events("running", previous=running))[-1][0] == "StepStarted"
    later = {**paused, "updateTime": paused["updateTime"] + 5000}
    again = execution_events(later, conductor_url=URL, context=CONTEXT, previous=running)
    assert again[-1].idempotency_key != events("paused")[-1].idempotency_key
    assert snapshot_of("running", "paused").status is RunStatus.PAUSED
    assert snapshot_of("running", "paused", "running").status is RunStatus.RUNNING


def test_a_record_may_come_as_text_and_name_another_run() -> None:
    text = (RECORDS / "running.json").read_bytes()
    made = execution_events(text, conductor_url=URL, context=CONTEXT, run_id="mine")
    assert {each.run_id for each in made} == {"mine"}


@pytest.mark.parametrize("wrong", [b"not JSON", {}, [], {"workflowId": 1, "status": "RUNNING"}])
def test_what_is_no_record_is_refused(wrong: Any) -> None:
    with pytest.raises(EventRefused, match="Conductor"):
        execution_events(wrong, conductor_url=URL, context=CONTEXT)
