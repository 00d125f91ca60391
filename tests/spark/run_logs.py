"""Logs of runs that might have happened, as values, as rows of mode `runs`, and back again."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.runs import (
    ArtifactRef,
    Failure,
    NewEvent,
    RunSnapshot,
    RunStatus,
    StepSnapshot,
    StepStatus,
    StoredEvent,
)
from headwater.runs.events import event_to_wire
from headwater.runs.values import Decision, Skipping
from headwater.spark.columns import default_schema
from headwater.spark.options import source_options
from tests.suites.run_steps import (
    as_stored,
    at,
    event,
    started,
    step_completed,
    step_failed,
    step_started,
    text,
)

EVENTS_ARROW: Final = to_arrow_schema(
    default_schema(source_options({"url": "http://x", "stream": "x", "mode": "runs"})),
    timezone="UTC",
)

_STEPS = st.sampled_from(["a", "b", "c/d"])
_ATTEMPTS = st.integers(1, 3)
_SECONDS = st.integers(0, 20)


def completed(run: str, seconds: float) -> NewEvent:
    return event("RunCompleted", {"completedAt": text(at(seconds))}, run=run)


def run_failed(run: str, seconds: float) -> NewEvent:
    error = {"code": "BOOM", "message": "no", "retryable": False}
    return event("RunFailed", {"failedAt": text(at(seconds)), "error": error}, run=run)


def _events(run: str) -> st.SearchStrategy[NewEvent]:
    mine = st.just(run)
    return st.one_of(
        st.builds(event, st.sampled_from(["RunQueued", "RunApproved", "RunCancelled"]), run=mine),
        st.builds(started, run=mine, seconds=_SECONDS),
        st.builds(event, st.sampled_from(["RunPaused", "RunResumed"]), run=mine),
        st.builds(completed, mine, _SECONDS),
        st.builds(run_failed, mine, _SECONDS),
        st.builds(step_started, _STEPS, _ATTEMPTS, _SECONDS, run=mine, engine_attempt_id=_ATTEMPTS),
        st.builds(
            step_completed, _STEPS, _ATTEMPTS, artifacts=st.lists(st.sampled_from("pq")), run=mine
        ),
        st.builds(step_failed, _STEPS, _ATTEMPTS, _SECONDS, run=mine),
        st.builds(
            lambda step: event("StepSkipped", {"reason": "r"}, step=step, run=run),
            _STEPS,
        ),
        st.builds(
            lambda step: event("StepCorrected", {"status": "SUCCESS"}, step=step, run=run),
            _STEPS,
        ),
        st.builds(
            lambda signal: event("SignalAccepted", {"signalId": signal}, signal=signal, run=run),
            st.sampled_from("mn"),
        ),
        st.builds(lambda n: event("Unknown", {"n": [n]}, run=run), st.integers(0, 9)),
    )


def logs(most: int = 25) -> st.SearchStrategy[dict[str, list[StoredEvent]]]:
    """Generate logs of a few runs; some have numbers that nobody uses."""
    names = st.lists(st.sampled_from(["run-1", "run/2", "läuft 3"]), min_size=1, unique=True)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries(
            {
                name: st.builds(
                    as_stored,
                    st.lists(_events(name), min_size=1, max_size=most),
                    st.integers(1, 3),
                    st.sampled_from([0, 0, 1]),
                )
                for name in chosen
            }
        )
    )


def rows_of(events: Sequence[StoredEvent], stream: str = "runs/log") -> pa.Table:
    """Give events as the source would."""
    rows = []
    for place, each in enumerate(events):
        row = msgspec.structs.asdict(each)
        data = row["event_data"]
        row["event_data"] = None if data is None else msgspec.json.encode(data).decode()
        rows.append({"stream": stream, "offset": f"{place:08}", **row})
    return pa.Table.from_pylist(rows, EVENTS_ARROW)


def messages_of(events: Iterable[StoredEvent]) -> bytes:
    """Give events as a stream holds them."""
    return msgspec.json.encode([event_to_wire(each) for each in events])


def snapshots(runs: pa.Table, steps: pa.Table) -> dict[str, RunSnapshot]:
    """Read snapshots back from the columns of both tables."""
    by_run: dict[str, list[dict[str, Any]]] = {}
    for row in steps.to_pylist():
        by_run.setdefault(row["run_id"], []).append(row)
    found = {}
    for row in runs.to_pylist():
        mine = sorted(by_run.pop(row["run_id"], []), key=lambda step: step["position"])
        assert row["run_id"] not in found
        assert row["step_count"] == len(mine)
        engine = row["engine_run_ref"]
        found[row["run_id"]] = RunSnapshot(
            row["run_id"],
            RunStatus(row["status"]),
            row["last_event_seq"],
            tuple(_step(step) for step in mine),
            tuple(ArtifactRef(**each) for each in row["artifacts"]),
            row["started_at"],
            row["completed_at"],
            row["total_duration_ms"],
            None if engine is None else msgspec.json.decode(engine),
            row["failed_steps"],
            _one(Failure, row["error"]),
            tuple(Decision(**each) for each in row["signals"]),
        )
    assert not by_run
    return found


def _step(row: dict[str, Any]) -> StepSnapshot:
    return StepSnapshot(
        row["step_id"],
        StepStatus(row["status"]),
        row["logical_attempt_id"],
        tuple(ArtifactRef(**each) for each in row["artifacts"]),
        row["engine_attempt_id"],
        row["started_at"],
        row["completed_at"],
        _one(Failure, row["error"]),
        _one(Skipping, row["skipped"]),
    )


def _one(kind: type[Any], fields: dict[str, Any] | None) -> Any:
    return None if fields is None else kind(**fields)
