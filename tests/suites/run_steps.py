"""The steps that behaviours of runs are told in: events of a run that might have happened."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headwater.runs import AppendResult, NewEvent, RunStore, StoredEvent, new_event

T0: Final = datetime(2026, 2, 11, 10, 0, 0, tzinfo=UTC)
PLAN: Final = "1.2.0"
TEMPORAL: Final = {
    "provider": "temporal",
    "namespace": "default",
    "workflowId": "orders-nightly",
    "runId": "0b2c",
}


def at(seconds: float) -> datetime:
    """Give a moment some seconds after the beginning."""
    return T0 + timedelta(seconds=seconds)


def text(moment: datetime) -> str:
    """Write a moment as it stands in `eventData`."""
    return moment.isoformat().replace("+00:00", "Z")


def event(
    event_type: str,
    data: Any = None,
    *,
    run: str = "run-001",
    step: str | None = None,
    attempt: int | None = None,
    signal: str | None = None,
    plan: str = PLAN,
    seconds: float = 0,
    **more: Any,
) -> NewEvent:
    """Make an event that was emitted some seconds after the beginning."""
    return new_event(
        run,
        event_type,
        data,
        plan_version=plan,
        step_id=step,
        logical_attempt_id=attempt,
        caused_by_signal_id=signal,
        emitted_at=at(seconds),
        **more,
    )


def started(run: str = "run-001", seconds: float = 0, **more: Any) -> NewEvent:
    """`RunStarted`."""
    data = {
        "engineRunRef": TEMPORAL,
        "engineType": "temporal",
        "planRef": {
            "uri": "s3://plans/orders.json",
            "sha256": "ab" * 32,
            "schemaVersion": "1",
            "planId": "orders",
            "planVersion": PLAN,
        },
        "context": {"tenantId": "t", "projectId": "p", "environmentId": "prod"},
        "startedAt": text(at(seconds)),
    }
    return event("RunStarted", data, run=run, seconds=seconds, **more)


def step_started(step: str, attempt: int = 1, seconds: float = 0, **more: Any) -> NewEvent:
    """`StepStarted`."""
    data = {"startedAt": text(at(seconds))}
    return event("StepStarted", data, step=step, attempt=attempt, seconds=seconds, **more)


def step_completed(
    step: str,
    attempt: int = 1,
    seconds: float = 0,
    artifacts: Sequence[str] = (),
    **more: Any,
) -> NewEvent:
    """`StepCompleted`."""
    refs = [{"uri": uri, "kind": "table"} for uri in artifacts]
    data = {"completedAt": text(at(seconds)), "artifactRefs": refs}
    return event("StepCompleted", data, step=step, attempt=attempt, seconds=seconds, **more)


def step_failed(step: str, attempt: int = 1, seconds: float = 0, **more: Any) -> NewEvent:
    """`StepFailed`."""
    error = {"code": "TIMEOUT", "message": "too slow", "retryable": True}
    data = {"failedAt": text(at(seconds)), "error": error}
    return event("StepFailed", data, step=step, attempt=attempt, seconds=seconds, **more)


def numbered(count: int, run: str = "run-001", first: int = 1) -> list[NewEvent]:
    """Make events of a type of no meaning, each with a key of its own."""
    return [
        event("Ticked", {"n": number}, run=run, step=f"tick-{number}")
        for number in range(first, first + count)
    ]


def as_stored(events: Sequence[NewEvent], first: int = 1, gap: int = 0) -> list[StoredEvent]:
    """Number events as a store would, for what needs no store."""
    fields = NewEvent.__struct_fields__
    return [
        StoredEvent(
            **{name: getattr(each, name) for name in fields},
            run_seq=first + place * (gap + 1),
            persisted_at=each.emitted_at,
        )
        for place, each in enumerate(events)
    ]


async def append(store: RunStore, *events: NewEvent) -> list[int]:
    """Append one batch that must be new; gives its numbers."""
    results = await store.append_events(events)
    assert all(result.persisted and not result.idempotent for result in results)
    return [result.run_seq for result in results]


async def append_each(store: RunStore, *events: NewEvent) -> list[AppendResult]:
    """Append events one by one."""
    return [await store.append_event(each) for each in events]


async def all_events(store: RunStore, run_id: str = "run-001") -> list[StoredEvent]:
    """Give the whole log of a run."""
    return [each async for each in store.events(run_id)]


async def all_changes(store: RunStore, mark: str = "", limit: int = 100) -> tuple[list[str], str]:
    """Name every run that has changed behind a mark, and give the mark behind them all."""
    names: list[str] = []
    while True:
        changes = await store.changes(mark, limit)
        if not changes.runs:
            return names, changes.mark
        names += [info.run_id for info in changes.runs]
        mark = changes.mark
