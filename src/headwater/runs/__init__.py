"""The run store: append-only logs of workflow runs, and snapshots that are projected from them."""

from headwater.runs.events import (
    CONTRACT_VERSION,
    Event,
    NewEvent,
    StoredEvent,
    new_event,
)
from headwater.runs.keys import idempotency_key
from headwater.runs.reducer import InvalidTransition, apply, project
from headwater.runs.store import AppendResult, Checkpoint, RunInfo, RunPage, RunStore
from headwater.runs.stores import run_store
from headwater.runs.values import (
    ArtifactRef,
    Failure,
    RunSnapshot,
    RunStatus,
    StepSnapshot,
    StepStatus,
)

__all__ = [
    "CONTRACT_VERSION",
    "AppendResult",
    "ArtifactRef",
    "Checkpoint",
    "Event",
    "Failure",
    "InvalidTransition",
    "NewEvent",
    "RunInfo",
    "RunPage",
    "RunSnapshot",
    "RunStatus",
    "RunStore",
    "StepSnapshot",
    "StepStatus",
    "StoredEvent",
    "apply",
    "idempotency_key",
    "new_event",
    "project",
    "run_store",
]
