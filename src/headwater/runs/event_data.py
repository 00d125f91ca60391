"""What the known event types must say in `eventData`: one table, checked before anything is stored.

Unknown types pass as they are, and so do unknown fields: they belong to a later minor version.
"""

from typing import Any, Final, Literal, NamedTuple

import msgspec

from headwater.runs.values import ArtifactRef, Failure, Instant, Value


class PlanRef(Value, frozen=True):
    """The plan that a run carries out."""

    uri: str
    sha256: str
    schema_version: str
    plan_id: str
    plan_version: str


class RunContext(Value, frozen=True):
    """Whose run it is, and what set it off."""

    tenant_id: str
    project_id: str
    environment_id: str
    triggered_by: str | None = None
    trigger_source: str | None = None


class TemporalRun(Value, frozen=True):
    """A run that Temporal carries out."""

    provider: Literal["temporal"]
    namespace: str
    workflow_id: str
    run_id: str
    task_queue: str | None = None


class ConductorRun(Value, frozen=True):
    """A run that Conductor carries out."""

    provider: Literal["conductor"]
    workflow_id: str
    run_id: str
    conductor_url: str


class OtherRun(Value, frozen=True):
    """A run that an engine of the user's own carries out: what else it says is kept as it is."""

    provider: str


_ENGINES: Final[dict[str, type[Value]]] = {"temporal": TemporalRun, "conductor": ConductorRun}


class RunStartedData(Value, frozen=True):
    """`RunStarted`."""

    engine_run_ref: dict[str, Any]
    engine_type: str
    plan_ref: PlanRef
    context: RunContext
    started_at: Instant


class StepStartedData(Value, frozen=True):
    """`StepStarted`."""

    started_at: Instant


class StepCompletedData(Value, frozen=True):
    """`StepCompleted`."""

    completed_at: Instant
    artifact_refs: tuple[ArtifactRef, ...]
    duration_ms: float | None = None


class FailedData(Value, frozen=True):
    """`StepFailed` and `RunFailed`."""

    failed_at: Instant
    error: Failure
    artifact_refs: tuple[ArtifactRef, ...] = ()
    duration_ms: float | None = None


class StepSkippedData(Value, frozen=True):
    """`StepSkipped`."""

    reason: str | None = None
    reason_code: Literal["DEPENDENCY_FAILED", "CONDITION_FALSE", "OPERATOR_SKIP"] | None = None


class StepCorrectedData(Value, frozen=True):
    """`StepCorrected`: the outcome that takes the place of the recorded one."""

    status: Literal["SUCCESS", "FAILED", "SKIPPED"]
    completed_at: Instant | None = None
    artifact_refs: tuple[ArtifactRef, ...] = ()
    error: Failure | None = None
    reason: str | None = None


class SignalData(Value, frozen=True):
    """`RunPaused`, `RunResumed`, `SignalAccepted` and `SignalRejected`."""

    signal_id: str | None = None
    reason: str | None = None


class RunEndedData(Value, frozen=True):
    """`RunCompleted` and `RunCancelled`."""

    completed_at: Instant | None = None
    artifact_refs: tuple[ArtifactRef, ...] = ()
    reason: str | None = None


class NothingMore(Value, frozen=True):
    """`RunQueued` and `RunApproved` say all by their type."""


class Kind(NamedTuple):
    """What an event type must say, and whom it is about."""

    data: type[Value]
    of_step: bool | None
    """True for a step, False for the whole run, None for either."""


KINDS: Final[dict[str, Kind]] = {
    "RunQueued": Kind(NothingMore, of_step=False),
    "RunApproved": Kind(NothingMore, of_step=False),
    "RunStarted": Kind(RunStartedData, of_step=False),
    "RunPaused": Kind(SignalData, of_step=False),
    "RunResumed": Kind(SignalData, of_step=False),
    "RunCompleted": Kind(RunEndedData, of_step=False),
    "RunFailed": Kind(FailedData, of_step=False),
    "RunCancelled": Kind(RunEndedData, of_step=False),
    "StepStarted": Kind(StepStartedData, of_step=True),
    "StepCompleted": Kind(StepCompletedData, of_step=True),
    "StepFailed": Kind(FailedData, of_step=True),
    "StepSkipped": Kind(StepSkippedData, of_step=True),
    "StepCorrected": Kind(StepCorrectedData, of_step=True),
    "SignalAccepted": Kind(SignalData, of_step=None),
    "SignalRejected": Kind(SignalData, of_step=None),
}


def read_data(event_type: str, event_data: Any) -> Value:
    """Read the data of a known event type; raises `msgspec.ValidationError` where it is wrong."""
    return msgspec.convert({} if event_data is None else event_data, KINDS[event_type].data)


def complaint(event_type: str, step_id: str | None, event_data: Any) -> str | None:
    """Say what is wrong with an event, or None; an unknown type is never wrong."""
    kind = KINDS.get(event_type)
    if kind is None:
        return None
    if kind.of_step and not step_id:
        return "it is about a step and has no stepId"
    if kind.of_step is False and step_id:
        return f"it is about the whole run, and stepId is {step_id!r}"
    try:
        data = read_data(event_type, event_data)
    except msgspec.ValidationError as error:
        return f"eventData does not fit: {error}"
    if isinstance(data, RunStartedData):
        return engine_complaint(data.engine_run_ref)
    if isinstance(data, StepCorrectedData) and (data.status == "FAILED") != bool(data.error):
        return "eventData.error belongs to the status FAILED, and to no other"
    return None


def engine_complaint(engine_run_ref: Any) -> str | None:
    """Say what is wrong with an `engineRunRef`, or None."""
    provider = engine_run_ref.get("provider") if isinstance(engine_run_ref, dict) else None
    known = _ENGINES.get(provider, OtherRun) if isinstance(provider, str) else OtherRun
    try:
        msgspec.convert(engine_run_ref, known)
    except msgspec.ValidationError as error:
        return f"engineRunRef does not fit: {error}"
    return None
