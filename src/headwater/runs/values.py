"""What a run looks like at one moment: frozen values, in the contract's camelCase on the wire.

A snapshot is derived from the log and never the truth itself: every projection makes a new one.
Fields behind the contract's own are additions of a minor version; readers of 1.0 skip them.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

Instant = Annotated[datetime, Meta(tz=True)]
"""A moment with its offset from UTC: without one it would mean something else on each machine."""


class RunStatus(StrEnum):
    """Where a run is in its life."""

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StepStatus(StrEnum):
    """Where an attempt of a step is."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


TERMINAL: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


class Value(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A value of the wire: unknown fields are skipped, absent ones are left out."""


class ArtifactRef(Value, frozen=True):
    """A pointer to what a step has made, never the thing itself."""

    uri: str
    kind: str
    sha256: str | None = None
    size_bytes: int | None = None
    expires_at: Instant | None = None


class Failure(Value, frozen=True):
    """Why a step or a run has failed."""

    code: str
    message: str
    retryable: bool


class Skipping(Value, frozen=True):
    """Why a step was left out."""

    reason: str | None = None
    reason_code: str | None = None


class Decision(Value, frozen=True):
    """What became of a signal."""

    accepted: bool
    decided_at: Instant
    signal_id: str | None = None
    reason: str | None = None


class StepSnapshot(Value, frozen=True):
    """A step in its highest attempt so far."""

    step_id: str
    status: StepStatus
    logical_attempt_id: int
    artifacts: tuple[ArtifactRef, ...]
    engine_attempt_id: int | None = None
    started_at: Instant | None = None
    completed_at: Instant | None = None
    error: Failure | None = None
    skipped: Skipping | None = None


class RunSnapshot(Value, frozen=True):
    """A run as its events up to `last_event_seq` tell it."""

    run_id: str
    status: RunStatus
    last_event_seq: int
    """The highest `run_seq` applied."""
    steps: tuple[StepSnapshot, ...]
    """In the order in which the steps were first heard of."""
    artifacts: tuple[ArtifactRef, ...]
    started_at: Instant | None = None
    completed_at: Instant | None = None
    total_duration_ms: int | None = None
    engine_run_ref: dict[str, Any] | None = None
    failed_steps: int = 0
    error: Failure | None = None
    signals: tuple[Decision, ...] = ()


_STEP_ATTEMPTS: Final = ("logicalAttemptId", "engineAttemptId")


def snapshot_to_wire(snapshot: RunSnapshot) -> dict[str, Any]:
    """Spell a snapshot as the contract does, its attempts as strings."""
    wire: dict[str, Any] = msgspec.to_builtins(snapshot)
    for step in wire["steps"]:
        for name in _STEP_ATTEMPTS:
            if name in step:
                step[name] = str(step[name])
    return wire


def snapshot_from_wire(wire: Any) -> RunSnapshot:
    """Read a snapshot; raises `msgspec.ValidationError` where it is none."""
    # Lax for the attempts' sake: they are strings on the wire and integers here.
    return msgspec.convert(wire, RunSnapshot, strict=False)
