"""The reducer: one table from event type to change, used by whatever projects a run.

A rule looks at the run and at the step that an event is about, and says what changes, or that the
event asks for a transition that does not exist. It touches nothing and reads no clock. `Fold` holds
a run while events are applied, so that a run of many steps costs its events and not their product;
`apply` and `project` are the same over frozen snapshots.

    run    ∅ → PENDING → APPROVED → RUNNING ⇄ PAUSED,  PENDING → RUNNING,
           RUNNING → COMPLETED | FAILED | CANCELLED,  PAUSED → CANCELLED
    step   PENDING → RUNNING → SUCCESS | FAILED,  PENDING → SKIPPED        for each attempt
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, structs

from headwater.runs.event_data import (
    FailedData,
    RunEndedData,
    RunStartedData,
    SignalData,
    StepCompletedData,
    StepCorrectedData,
    StepSkippedData,
    StepStartedData,
    read_data,
)
from headwater.runs.events import Event, StoredEvent
from headwater.runs.values import (
    ArtifactRef,
    Decision,
    Failure,
    RunSnapshot,
    RunStatus,
    Skipping,
    StepSnapshot,
    StepStatus,
)


class InvalidTransition(Struct, frozen=True):
    """An event that asks for a transition that does not exist: it changes nothing."""

    run_id: str
    run_seq: int
    event_type: str
    reason: str

    code = "INVALID_TRANSITION"


class Change(NamedTuple):
    """What an event does: fields of the run that are replaced, and the step as it is then."""

    run: dict[str, Any]
    step: StepSnapshot | None = None


NO_CHANGE: Final = Change({})

_FROM: Final[dict[str, tuple[frozenset[RunStatus], RunStatus]]] = {
    "RunApproved": (frozenset({RunStatus.PENDING}), RunStatus.APPROVED),
    "RunStarted": (frozenset({RunStatus.PENDING, RunStatus.APPROVED}), RunStatus.RUNNING),
    "RunPaused": (frozenset({RunStatus.RUNNING}), RunStatus.PAUSED),
    "RunResumed": (frozenset({RunStatus.PAUSED}), RunStatus.RUNNING),
    "RunCompleted": (frozenset({RunStatus.RUNNING}), RunStatus.COMPLETED),
    "RunFailed": (frozenset({RunStatus.RUNNING}), RunStatus.FAILED),
    "RunCancelled": (frozenset({RunStatus.RUNNING, RunStatus.PAUSED}), RunStatus.CANCELLED),
}
"""From which status an event leads to which."""


def status_after(status: RunStatus, event_type: str) -> RunStatus:
    """Say which status a run has after an event: for stores that keep it beside the head."""
    transition = _FROM.get(event_type)
    return transition[1] if transition is not None and status in transition[0] else status


class Fold:
    """A run while events are applied to it; it is nobody else's, so it may change in place."""

    __slots__ = ("_snapshot", "_steps", "run")

    def __init__(self, run_id: str, snapshot: RunSnapshot | None = None) -> None:
        self.run = snapshot or RunSnapshot(run_id, RunStatus.PENDING, 0, (), ())
        """The run without its steps, which are as they were at the beginning."""
        self._steps = {step.step_id: step for step in self.run.steps}
        self._snapshot: RunSnapshot | None = self.run

    @property
    def last_event_seq(self) -> int:
        return self.run.last_event_seq

    @property
    def steps(self) -> Iterable[StepSnapshot]:
        return self._steps.values()

    def step(self, step_id: str | None) -> StepSnapshot | None:
        return None if step_id is None else self._steps.get(step_id)

    def apply(self, event: StoredEvent) -> InvalidTransition | None:
        """Apply the next event; one that was applied before changes nothing.

        Events come in the order of `run_seq`. Whatever an event says, it is counted: neither an
        unknown type nor an invalid transition stops a projection.
        """
        if event.run_seq <= self.run.last_event_seq:
            return None
        rule = RULES.get(event.event_type)
        outcome = NO_CHANGE if rule is None else _decide(rule, self, event)
        change, invalid = (
            (NO_CHANGE, InvalidTransition(event.run_id, event.run_seq, event.event_type, outcome))
            if isinstance(outcome, str)
            else (outcome, None)
        )
        self.run = structs.replace(self.run, last_event_seq=event.run_seq, **change.run)
        if change.step is not None:
            self._steps[change.step.step_id] = change.step
        self._snapshot = None
        return invalid

    def snapshot(self) -> RunSnapshot:
        """Give the run as it is now."""
        if self._snapshot is None:
            self._snapshot = structs.replace(self.run, steps=tuple(self._steps.values()))
        return self._snapshot


Rule = Callable[[Fold, Event, Any], Change | str]
"""Says what an event changes, or why it can't: it reads the fold and leaves it as it is."""


def _decide(rule: Rule, fold: Fold, event: StoredEvent) -> Change | str:
    try:
        data = read_data(event.event_type, event.event_data)
    except msgspec.ValidationError as error:
        # Only in a log that others wrote: stores check before they write.
        return f"its eventData does not fit: {error}"
    return rule(fold, event, data)


# Rules for the run


def _run_to(event_type: str, fold: Fold) -> RunStatus | str:
    before, after = _FROM[event_type]
    status = fold.run.status
    return after if status in before else f"a run that is {status} has no {event_type}"


def _queued(_fold: Fold, _event: Event, _data: object) -> Change | str:
    return NO_CHANGE


def _moved(fold: Fold, event: Event, _data: object) -> Change | str:
    status = _run_to(event.event_type, fold)
    return Change({"status": status}) if isinstance(status, RunStatus) else status


def _started(fold: Fold, event: Event, data: RunStartedData) -> Change | str:
    status = _run_to(event.event_type, fold)
    if not isinstance(status, RunStatus):
        return status
    return Change(
        {
            "status": status,
            "started_at": data.started_at,
            "engine_run_ref": data.engine_run_ref,
        }
    )


def _ended(fold: Fold, event: Event, data: RunEndedData) -> Change | str:
    return _end(fold, event, data.completed_at or event.emitted_at, data.artifact_refs, None)


def _run_failed(fold: Fold, event: Event, data: FailedData) -> Change | str:
    return _end(fold, event, data.failed_at, data.artifact_refs, data.error)


def _end(
    fold: Fold,
    event: Event,
    at: datetime,
    artifacts: tuple[ArtifactRef, ...],
    error: Failure | None,
) -> Change | str:
    status = _run_to(event.event_type, fold)
    if not isinstance(status, RunStatus):
        return status
    gathered = dict.fromkeys(artifact for step in fold.steps for artifact in step.artifacts)
    gathered.update(dict.fromkeys(artifacts))
    started = fold.run.started_at
    return Change(
        {
            "status": status,
            "completed_at": at,
            "total_duration_ms": None
            if started is None
            else round((at - started) / timedelta(milliseconds=1)),
            "artifacts": tuple(gathered),
            "error": error,
        }
    )


def _decided(fold: Fold, event: Event, data: SignalData) -> Change | str:
    decision = Decision(
        event.event_type == "SignalAccepted",
        event.emitted_at,
        data.signal_id or event.caused_by_signal_id,
        data.reason,
    )
    return Change({"signals": (*fold.run.signals, decision)})


# Rules for steps. The snapshot shows the highest attempt; what is told of an earlier one stays in
# the log and changes nothing.


def _attempt(event: Event) -> int:
    return event.logical_attempt_id or 1


def _is_superseded(fold: Fold, event: Event) -> bool:
    step = fold.step(event.step_id)
    return step is not None and _attempt(event) < step.logical_attempt_id


def _current(fold: Fold, event: Event) -> StepSnapshot:
    """Give the attempt that an event is about: a PENDING one where it is new."""
    step = fold.step(event.step_id)
    if step is None or step.logical_attempt_id < _attempt(event):
        return StepSnapshot(
            event.step_id or "",
            StepStatus.PENDING,
            _attempt(event),
            (),
            engine_attempt_id=event.engine_attempt_id,
        )
    if event.engine_attempt_id is not None:
        return structs.replace(step, engine_attempt_id=event.engine_attempt_id)
    return step


def _refused(step: StepSnapshot, event: Event) -> str:
    return (
        f"attempt {step.logical_attempt_id} of step '{step.step_id}' is {step.status} "
        f"and has no {event.event_type}"
    )


def _step_started(fold: Fold, event: Event, data: StepStartedData) -> Change | str:
    if _is_superseded(fold, event):
        return NO_CHANGE
    step = _current(fold, event)
    if step.status is not StepStatus.PENDING:
        return _refused(step, event)
    return Change({}, structs.replace(step, status=StepStatus.RUNNING, started_at=data.started_at))


def _step_completed(fold: Fold, event: Event, data: StepCompletedData) -> Change | str:
    if _is_superseded(fold, event):
        return NO_CHANGE
    step = _current(fold, event)
    if step.status is not StepStatus.RUNNING:
        return _refused(step, event)
    done = structs.replace(
        step,
        status=StepStatus.SUCCESS,
        completed_at=data.completed_at,
        artifacts=data.artifact_refs,
    )
    return Change({}, done)


def _step_failed(fold: Fold, event: Event, data: FailedData) -> Change | str:
    if _is_superseded(fold, event):
        return NO_CHANGE
    step = _current(fold, event)
    if step.status is not StepStatus.RUNNING:
        return _refused(step, event)
    failed = structs.replace(
        step,
        status=StepStatus.FAILED,
        completed_at=data.failed_at,
        artifacts=data.artifact_refs,
        error=data.error,
    )
    return Change({"failed_steps": fold.run.failed_steps + 1}, failed)


def _step_skipped(fold: Fold, event: Event, data: StepSkippedData) -> Change | str:
    if _is_superseded(fold, event):
        return NO_CHANGE
    step = _current(fold, event)
    if step.status is not StepStatus.PENDING:
        return _refused(step, event)
    reason = Skipping(data.reason, data.reason_code)
    return Change({}, structs.replace(step, status=StepStatus.SKIPPED, skipped=reason))


def _step_corrected(fold: Fold, event: Event, data: StepCorrectedData) -> Change | str:
    if _is_superseded(fold, event):
        return NO_CHANGE
    step = _current(fold, event)
    if step.status in {StepStatus.PENDING, StepStatus.RUNNING}:
        return f"step '{event.step_id}' has no outcome yet that could be corrected"
    status = StepStatus(data.status)
    was, is_now = step.status is StepStatus.FAILED, status is StepStatus.FAILED
    corrected = structs.replace(
        step,
        status=status,
        completed_at=data.completed_at or step.completed_at,
        artifacts=data.artifact_refs,
        error=data.error,
        skipped=Skipping(data.reason) if status is StepStatus.SKIPPED else None,
    )
    return Change({"failed_steps": fold.run.failed_steps - was + is_now}, corrected)


RULES: Final[dict[str, Rule]] = {
    "RunQueued": _queued,
    "RunApproved": _moved,
    "RunStarted": _started,
    "RunPaused": _moved,
    "RunResumed": _moved,
    "RunCompleted": _ended,
    "RunFailed": _run_failed,
    "RunCancelled": _ended,
    "StepStarted": _step_started,
    "StepCompleted": _step_completed,
    "StepFailed": _step_failed,
    "StepSkipped": _step_skipped,
    "StepCorrected": _step_corrected,
    "SignalAccepted": _decided,
    "SignalRejected": _decided,
}


# The same over frozen snapshots


def apply(
    snapshot: RunSnapshot | None, event: StoredEvent
) -> tuple[RunSnapshot, InvalidTransition | None]:
    """Make the snapshot after one event."""
    fold = Fold(event.run_id, snapshot)
    invalid = fold.apply(event)
    return fold.snapshot(), invalid


def project(
    run_id: str, events: Iterable[StoredEvent], snapshot: RunSnapshot | None = None
) -> RunSnapshot:
    """Make the snapshot after events in the order of `run_seq`, from nothing or from another."""
    fold = Fold(run_id, snapshot)
    for event in events:
        fold.apply(event)
    return fold.snapshot()
