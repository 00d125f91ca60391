"""Conductor: its execution records become events of a run.

A record is what `GET /api/workflow/{workflowId}?includeTasks=true` answers: the workflow and all
its tasks so far. Reading the same record twice, or a later one, gives the same events with the same
keys, so it may be polled as often as one likes: the store keeps each event once.

    a task                       is a step, named by its reference name
    a retry, its retryCount      is the next attempt of that step
    its polls, its pollCount     are attempts of the engine

A record shows whether a workflow is paused, not how often it was. Give the record read before as
`previous`, and each change between the two becomes an event of its own.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import Struct

from headwater.errors import EventRefused
from headwater.runs.event_data import RunContext
from headwater.runs.events import NewEvent, new_event
from headwater.runs.store import AppendResult, RunStore

_ADAPTER: Final = "headwater.runs.conductor/1"
_NO_RETRY: Final = frozenset({"FAILED_WITH_TERMINAL_ERROR", "CANCELED"})
_FAILED: Final = _NO_RETRY | {"FAILED", "TIMED_OUT"}
_COMPLETED: Final = frozenset({"COMPLETED", "COMPLETED_WITH_ERRORS"})


class Task(Struct, rename="camel", frozen=True):
    """A task of a record: what we read of it."""

    status: str
    reference_task_name: str
    seq: int = 0
    retry_count: int = 0
    poll_count: int = 0
    scheduled_time: int = 0
    start_time: int = 0
    end_time: int = 0
    update_time: int = 0
    reason_for_incompletion: str | None = None


class Execution(Struct, rename="camel", frozen=True):
    """A record: what we read of it. Times are milliseconds since 1970; 0 is none."""

    workflow_id: str
    status: str
    tasks: tuple[Task, ...] = ()
    workflow_name: str | None = None
    workflow_version: int | None = None
    workflow_type: str | None = None
    """The name, in records of older servers."""
    version: int | None = None
    schema_version: int = 2
    workflow_definition: dict[str, Any] | None = None
    create_time: int = 0
    start_time: int = 0
    end_time: int = 0
    update_time: int = 0
    reason_for_incompletion: str | None = None
    failed_reference_task_names: tuple[str, ...] = ()
    created_by: str | None = None

    @property
    def name(self) -> str:
        definition = self.workflow_definition or {}
        return self.workflow_name or self.workflow_type or str(definition.get("name", ""))

    @property
    def plan_version(self) -> str:
        definition = self.workflow_definition or {}
        known = (self.workflow_version, self.version, definition.get("version"), 1)
        return str(next(number for number in known if number is not None))


def execution_events(
    record: Any,
    *,
    conductor_url: str,
    context: RunContext,
    run_id: str | None = None,
    previous: Any = None,
) -> list[NewEvent]:
    """Make the events that a record tells of, in their order; raises `EventRefused` for no record.

    The run is named by the workflow's id unless told otherwise. A run that has ended stays so:
    where a workflow is restarted or retried after its end, name a run of its own for what follows.
    """
    execution = _read(record)
    before = None if previous is None else _read(previous)
    teller = _Teller(execution, conductor_url.rstrip("/"), run_id or execution.workflow_id)
    events = [teller.started(context)]
    timed = [
        (at, task.seq, place, event)
        for task in execution.tasks
        for place, (at, event) in enumerate(teller.task_events(task))
    ]
    events += [event for *_, event in sorted(timed, key=lambda each: each[:3])]
    events += teller.pauses(before)
    events += teller.ended()
    return events


async def record_execution(
    store: RunStore,
    record: Any,
    *,
    conductor_url: str,
    context: RunContext,
    run_id: str | None = None,
    previous: Any = None,
) -> list[AppendResult]:
    """Append what a record tells of; what is known already is answered as a duplicate."""
    events = execution_events(
        record, conductor_url=conductor_url, context=context, run_id=run_id, previous=previous
    )
    results: list[AppendResult] = []
    for start in range(0, len(events), store.max_batch):
        results += await store.append_events(events[start : start + store.max_batch])
    return results


def _read(record: Any) -> Execution:
    try:
        if isinstance(record, bytes | str):
            record = msgspec.json.decode(record)
        return msgspec.convert(record, Execution)
    except msgspec.MsgspecError as error:
        raise EventRefused(f"this is no execution record of Conductor: {error}") from None


class _Teller:
    """Tells one record as events."""

    def __init__(self, execution: Execution, url: str, run_id: str) -> None:
        self._execution = execution
        self._url = url
        self._run_id = run_id
        self._ref = {
            "provider": "conductor",
            "workflowId": execution.workflow_id,
            "runId": execution.workflow_id,
            "conductorUrl": url,
        }

    def _event(self, event_type: str, at: int, data: dict[str, Any], **more: Any) -> NewEvent:
        event = new_event(
            self._run_id,
            event_type,
            data,
            plan_version=self._execution.plan_version,
            engine_run_ref=self._ref,
            adapter_version=_ADAPTER,
            emitted_at=_moment(at),
            event_id="-",
            **more,
        )
        # The same event of a later record has the same id.
        name = uuid5(NAMESPACE_URL, f"{self._url}#{event.run_id}#{event.idempotency_key}")
        return msgspec.structs.replace(event, event_id=str(name))

    def started(self, context: RunContext) -> NewEvent:
        """The workflow has begun."""
        execution = self._execution
        at = execution.start_time or execution.create_time
        definition = msgspec.json.encode(execution.workflow_definition, order="sorted")
        name, version = execution.name, execution.plan_version
        data = {
            "engineRunRef": self._ref,
            "engineType": "conductor",
            "planRef": {
                "uri": f"{self._url}/api/metadata/workflow/{name}?version={version}",
                "sha256": sha256(definition).hexdigest(),
                "schemaVersion": str(execution.schema_version),
                "planId": name,
                "planVersion": version,
            },
            "context": msgspec.to_builtins(context),
            "startedAt": _text(at),
        }
        return self._event("RunStarted", at, data)

    def task_events(self, task: Task) -> Iterator[tuple[int, NewEvent]]:
        """What became of a task so far, each with its time."""
        step: dict[str, Any] = {
            "step_id": task.reference_task_name,
            "logical_attempt_id": task.retry_count + 1,
            "engine_attempt_id": task.poll_count or None,
        }
        end = task.end_time or task.update_time
        if task.status == "SKIPPED":
            reason = {"reason": task.reason_for_incompletion or "skipped by an operator"}
            data: dict[str, Any] = {**reason, "reasonCode": "OPERATOR_SKIP"}
            yield end, self._event("StepSkipped", end, data, **step)
            return
        ended = task.status in _COMPLETED or task.status in _FAILED
        # What timed out in the queue was never begun: it counts from there.
        began = task.start_time or (task.scheduled_time if ended else 0)
        if not began:
            return
        started = self._event("StepStarted", began, {"startedAt": _text(began)}, **step)
        yield began, started
        if not ended:
            return
        # Conductor's own tasks, switches and forks, come with an end before their start.
        end = max(began, end)
        took = {"durationMs": end - began}
        if task.status in _COMPLETED:
            data = {"completedAt": _text(end), "artifactRefs": [], **took}
            yield end, self._event("StepCompleted", end, data, **step)
        else:
            error = _error(task.status, task.reason_for_incompletion)
            data = {"failedAt": _text(end), "error": error, **took}
            yield end, self._event("StepFailed", end, data, **step)

    def pauses(self, before: Execution | None) -> Iterator[NewEvent]:
        """Whether it was paused or resumed since the record before."""
        now = self._execution
        was_paused = before is not None and before.status == "PAUSED"
        if (now.status == "PAUSED") == was_paused:
            return
        event_type = "RunResumed" if was_paused else "RunPaused"
        # A record has no signals; the moment of the change tells one from another.
        signal = f"{event_type}@{now.update_time}"
        data = {"signalId": signal}
        yield self._event(event_type, now.update_time, data, caused_by_signal_id=signal)

    def ended(self) -> Iterator[NewEvent]:
        """How the workflow has ended, if it has."""
        execution = self._execution
        at = execution.end_time or execution.update_time
        reason = execution.reason_for_incompletion
        if execution.status == "COMPLETED":
            yield self._event("RunCompleted", at, {"completedAt": _text(at)})
        elif execution.status == "TERMINATED":
            data = {"completedAt": _text(at), "reason": reason or "terminated"}
            yield self._event("RunCancelled", at, data)
        elif execution.status in {"FAILED", "TIMED_OUT"}:
            error = _error(execution.status, reason)
            yield self._event("RunFailed", at, {"failedAt": _text(at), "error": error})


def _error(status: str, reason: str | None) -> dict[str, Any]:
    return {
        "code": status,
        "message": reason or f"Conductor says {status} and no reason",
        "retryable": status not in _NO_RETRY,
        "category": "timeout" if status == "TIMED_OUT" else "application",
    }


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _text(milliseconds: int) -> str:
    return _moment(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
