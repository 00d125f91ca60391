"""The reducer: what each event does, and that nothing but the order of events counts."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.runs import (
    ArtifactRef,
    Failure,
    NewEvent,
    RunSnapshot,
    RunStatus,
    StepStatus,
    StoredEvent,
    apply,
    project,
)
from headwater.runs.event_data import KINDS
from headwater.runs.reducer import RULES, Fold, InvalidTransition, status_after
from headwater.runs.values import Decision, Skipping, snapshot_from_wire, snapshot_to_wire
from tests.suites.run_steps import (
    TEMPORAL,
    as_stored,
    at,
    event,
    started,
    step_completed,
    step_failed,
    step_started,
    text,
)


def after(*events: NewEvent) -> RunSnapshot:
    """Project events that are numbered one after another."""
    return project("run-001", as_stored(events))


def complaints(*events: NewEvent) -> list[str]:
    """Name the events that asked for a transition that does not exist."""
    fold = Fold("run-001")
    found = [fold.apply(each) for each in as_stored(events)]
    return [invalid.event_type for invalid in found if invalid is not None]


def completed(seconds: float = 9) -> NewEvent:
    return event("RunCompleted", {"completedAt": text(at(seconds))})


def run_failed(seconds: float = 9) -> NewEvent:
    error = {"code": "BOOM", "message": "no", "retryable": False, "stackTrace": "long"}
    return event("RunFailed", {"failedAt": text(at(seconds)), "error": error})


def cancelled() -> NewEvent:
    return event("RunCancelled", seconds=9)


def paused(signal: str = "s1") -> NewEvent:
    return event("RunPaused", {"signalId": signal}, signal=signal)


def resumed(signal: str = "s2") -> NewEvent:
    return event("RunResumed", {"signalId": signal}, signal=signal)


def test_every_known_type_has_a_rule_and_every_rule_a_known_type() -> None:
    assert set(RULES) == set(KINDS)


def test_a_queued_run_is_pending() -> None:
    assert after(event("RunQueued")) == RunSnapshot("run-001", RunStatus.PENDING, 1, (), ())


def test_a_started_run_knows_its_engine() -> None:
    run = after(event("RunApproved"), started(seconds=3))
    assert (run.status, run.started_at) == (RunStatus.RUNNING, at(3))
    assert run.engine_run_ref == TEMPORAL


_TO: dict[RunStatus, list[NewEvent]] = {
    RunStatus.PENDING: [event("RunQueued")],
    RunStatus.APPROVED: [event("RunApproved")],
    RunStatus.RUNNING: [started()],
    RunStatus.PAUSED: [started(), paused()],
    RunStatus.COMPLETED: [started(), completed()],
    RunStatus.FAILED: [started(), run_failed()],
    RunStatus.CANCELLED: [started(), cancelled()],
}
_MOVES: dict[str, tuple[NewEvent, RunStatus, set[RunStatus]]] = {
    "approve": (event("RunApproved"), RunStatus.APPROVED, {RunStatus.PENDING}),
    "start": (started(), RunStatus.RUNNING, {RunStatus.PENDING, RunStatus.APPROVED}),
    "pause": (paused("s9"), RunStatus.PAUSED, {RunStatus.RUNNING}),
    "resume": (resumed(), RunStatus.RUNNING, {RunStatus.PAUSED}),
    "complete": (completed(), RunStatus.COMPLETED, {RunStatus.RUNNING}),
    "fail": (run_failed(), RunStatus.FAILED, {RunStatus.RUNNING}),
    "cancel": (cancelled(), RunStatus.CANCELLED, {RunStatus.RUNNING, RunStatus.PAUSED}),
}


@pytest.mark.parametrize("move", _MOVES)
@pytest.mark.parametrize("status", list(RunStatus))
def test_a_run_moves_only_along_its_transitions(status: RunStatus, move: str) -> None:
    told, target, allowed = _MOVES[move]
    log = as_stored([*_TO[status], told])
    before = project("run-001", log[:-1])
    assert before.status is status
    run, invalid = apply(before, log[-1])
    assert run.last_event_seq == log[-1].run_seq
    if status in allowed:
        assert (run.status, invalid) == (target, None)
    else:
        assert invalid is not None
        assert (invalid.code, invalid.run_seq) == ("INVALID_TRANSITION", log[-1].run_seq)
        assert before == snapshot_from_wire(
            {**snapshot_to_wire(run), "lastEventSeq": before.last_event_seq}
        )
    assert status_after(status, told.event_type) is run.status


def test_a_step_goes_its_way() -> None:
    run = after(
        started(),
        step_started("a", seconds=1, engine_attempt_id=4),
        step_completed("a", seconds=3, artifacts=["s3://x"]),
    )
    (step,) = run.steps
    assert (step.step_id, step.status) == ("a", StepStatus.SUCCESS)
    assert (step.logical_attempt_id, step.engine_attempt_id) == (1, 4)
    assert (step.started_at, step.completed_at) == (at(1), at(3))
    assert step.artifacts == (ArtifactRef("s3://x", "table"),)
    assert run.artifacts == ()


def test_a_failed_step_says_why_and_is_counted() -> None:
    run = after(started(), step_started("a"), step_failed("a", seconds=2))
    assert run.failed_steps == 1
    assert run.steps[0].error == Failure("TIMEOUT", "too slow", retryable=True)
    assert run.steps[0].completed_at == at(2)
    assert run.status is RunStatus.RUNNING


def test_a_retry_is_a_new_attempt_and_the_highest_is_shown() -> None:
    run = after(step_started("a"), step_failed("a"), step_started("a", 2), step_completed("a", 2))
    (step,) = run.steps
    assert (step.logical_attempt_id, step.status, step.error) == (2, StepStatus.SUCCESS, None)
    assert run.failed_steps == 1


def test_what_is_told_late_of_an_earlier_attempt_changes_nothing() -> None:
    story = [step_started("a"), step_started("a", 2)]
    late = [*story, step_failed("a", 1)]
    assert after(*late).steps == after(*story).steps
    assert after(*late).failed_steps == 0
    assert complaints(*late) == []


@pytest.mark.parametrize(
    ("before", "told", "is_valid"),
    [
        ([], step_started("a"), True),
        ([], step_completed("a"), False),
        ([], step_failed("a"), False),
        ([], event("StepSkipped", {}, step="a"), True),
        ([], event("StepCorrected", {"status": "SUCCESS"}, step="a"), False),
        ([step_started("a")], step_started("a", engine_attempt_id=2), False),
        ([step_started("a")], event("StepSkipped", {}, step="a"), False),
        ([step_started("a")], event("StepCorrected", {"status": "SUCCESS"}, step="a"), False),
        ([step_started("a"), step_completed("a")], step_failed("a"), False),
        ([step_started("a"), step_failed("a")], step_completed("a"), False),
        ([step_started("a"), step_failed("a")], step_started("a", 2), True),
        ([event("StepSkipped", {}, step="a")], step_started("a"), False),
    ],
)
def test_a_step_moves_only_along_its_transitions(
    before: list[NewEvent], told: NewEvent, is_valid: bool
) -> None:
    assert complaints(*before, told) == ([] if is_valid else [told.event_type])
    if not is_valid:
        assert after(*before, told).steps == after(*before).steps


def test_a_skipped_step_says_why() -> None:
    data = {"reason": "parent failed", "reasonCode": "DEPENDENCY_FAILED"}
    run = after(event("StepSkipped", data, step="a"))
    assert run.steps[0].status is StepStatus.SKIPPED
    assert run.steps[0].skipped == Skipping("parent failed", "DEPENDENCY_FAILED")


def test_a_correction_replaces_the_outcome() -> None:
    failed = [step_started("a"), step_failed("a", seconds=2)]
    refs = [{"uri": "s3://late", "kind": "table"}]
    data = {"status": "SUCCESS", "artifactRefs": refs}
    run = after(*failed, event("StepCorrected", data, step="a"))
    (step,) = run.steps
    assert (step.status, step.error, step.completed_at) == (StepStatus.SUCCESS, None, at(2))
    assert step.artifacts == (ArtifactRef("s3://late", "table"),)
    assert run.failed_steps == 0


def test_signals_are_recorded_and_change_no_status() -> None:
    run = after(
        started(),
        event("SignalAccepted", {"signalId": "s1"}, signal="s1", seconds=1),
        event("SignalRejected", {"reason": "late"}, signal="s2", seconds=2),
    )
    assert run.status is RunStatus.RUNNING
    assert run.signals == (Decision(True, at(1), "s1"), Decision(False, at(2), "s2", "late"))


def test_a_run_can_be_paused_again_and_again() -> None:
    run = after(started(), paused("1"), resumed("2"), paused("3"))
    assert run.status is RunStatus.PAUSED
    assert complaints(started(), paused("1"), resumed("2"), paused("3")) == []


def test_the_end_gathers_the_artifacts_once_each() -> None:
    run = after(
        started(seconds=1),
        *(step_started("a"), step_completed("a", artifacts=["s3://1", "s3://2"])),
        *(step_started("b"), step_completed("b", artifacts=["s3://2", "s3://3"])),
        completed(seconds=5.5),
    )
    assert [each.uri for each in run.artifacts] == ["s3://1", "s3://2", "s3://3"]
    assert (run.completed_at, run.total_duration_ms) == (at(5.5), 4500)


def test_a_failed_run_tells_the_root_cause() -> None:
    run = after(started(), run_failed(seconds=4))
    assert run.error == Failure("BOOM", "no", retryable=False)
    assert (run.completed_at, run.total_duration_ms) == (at(4), 4000)


def test_unknown_types_and_unreadable_data_advance_the_watermark_only() -> None:
    run = after(event("SomethingNew", {"status": "FAILED"}), event("StepStarted", 5, step="a"))
    assert run == RunSnapshot("run-001", RunStatus.PENDING, 2, (), ())
    assert complaints(event("SomethingNew"), event("StepStarted", 5, step="a")) == ["StepStarted"]


def test_gaps_in_the_numbers_do_no_harm() -> None:
    story = [started(), step_started("a"), step_completed("a"), completed()]
    gapless, gappy = (
        project("run-001", as_stored(story)),
        project("run-001", as_stored(story, 5, 3)),
    )
    assert gappy.last_event_seq == 17
    assert gappy.steps == gapless.steps


def test_snapshots_survive_the_wire() -> None:
    run = after(started(), step_started("a", 2), step_failed("a", 2), paused(), run_failed())
    wire = snapshot_to_wire(run)
    assert wire["steps"][0]["logicalAttemptId"] == "2"
    assert wire["lastEventSeq"] == 5
    assert snapshot_from_wire(wire) == run


# Any interleaving, duplication and batching of a run's events projects to the same snapshot.

_STEPS = st.sampled_from(["a", "b", "c"])
_ATTEMPTS = st.integers(1, 3)
_EVENTS = st.one_of(
    st.builds(lambda: event("RunQueued")),
    st.builds(lambda: event("RunApproved")),
    st.builds(started, seconds=st.integers(0, 9)),
    st.builds(paused, st.sampled_from("xyz")),
    st.builds(resumed, st.sampled_from("uvw")),
    st.builds(completed, st.integers(10, 20)),
    st.builds(run_failed, st.integers(10, 20)),
    st.builds(cancelled),
    st.builds(step_started, _STEPS, _ATTEMPTS),
    st.builds(step_completed, _STEPS, _ATTEMPTS, artifacts=st.lists(st.sampled_from("pq"))),
    st.builds(step_failed, _STEPS, _ATTEMPTS),
    st.builds(lambda step: event("StepSkipped", {"reason": "r"}, step=step), _STEPS),
    st.builds(lambda step: event("StepCorrected", {"status": "SUCCESS"}, step=step), _STEPS),
    st.builds(lambda s: event("SignalAccepted", {"signalId": s}, signal=s), st.sampled_from("mn")),
    st.builds(lambda n: event("Unknown", {"n": n}), st.integers()),
)
_LOGS = st.builds(as_stored, st.lists(_EVENTS, max_size=40), st.integers(1, 3), st.integers(0, 2))


@given(_LOGS, st.randoms(use_true_random=False))
def test_duplication_and_batching_change_nothing(
    log: list[StoredEvent], chance: random.Random
) -> None:
    whole = project("run-001", log)
    snapshot: RunSnapshot | None = None
    rest = list(log)
    done: list[StoredEvent] = []
    while rest:
        size = chance.randint(1, len(rest))
        # A page is delivered again, together with some that came before it.
        page = done[chance.randint(0, len(done)) :] + rest[:size]
        for _ in range(chance.randint(1, 2)):
            snapshot = project("run-001", page, snapshot)
        done, rest = done + rest[:size], rest[size:]
    assert snapshot == (whole if log else None)


@given(_LOGS, _LOGS, st.randoms(use_true_random=False))
def test_interleaving_with_other_runs_changes_nothing(
    one: list[StoredEvent], other: list[StoredEvent], chance: random.Random
) -> None:
    folds: dict[int, Fold] = {0: Fold("run-001"), 1: Fold("run-001")}
    queues: dict[int, list[StoredEvent]] = {0: list(one), 1: list(other)}
    while any(queues.values()):
        run = chance.choice([key for key, queue in queues.items() if queue])
        folds[run].apply(queues[run].pop(0))
    assert folds[0].snapshot() == project("run-001", one)
    assert folds[1].snapshot() == project("run-001", other)


@given(_LOGS)
def test_every_prefix_can_be_saved_and_gone_on_from(log: list[StoredEvent]) -> None:
    whole = project("run-001", log)
    for cut in range(len(log) + 1):
        half: Any = snapshot_to_wire(project("run-001", log[:cut]))
        assert project("run-001", log[cut:], snapshot_from_wire(half)) == whole


def test_the_last_event_again_changes_nothing() -> None:
    log = as_stored([started(), event("SignalAccepted", {"signalId": "s"}, signal="s")])
    run = project("run-001", log)
    assert apply(run, log[-1]) == (run, None)


def test_a_run_begins_with_its_first_event() -> None:
    (log,) = as_stored([event("RunApproved")])
    assert apply(None, log) == (RunSnapshot("run-001", RunStatus.APPROVED, 1, (), ()), None)


def test_an_invalid_transition_says_of_which_run_and_why() -> None:
    (log,) = as_stored([event("RunResumed")], first=3)
    _, invalid = apply(None, log)
    reason = "a run that is PENDING has no RunResumed"
    assert invalid == InvalidTransition("run-001", 3, "RunResumed", reason)


def test_a_step_shows_the_engines_last_attempt() -> None:
    run = after(step_started("a", engine_attempt_id=4), step_completed("a", engine_attempt_id=5))
    assert run.steps[0].engine_attempt_id == 5


def test_a_failed_step_keeps_what_it_made() -> None:
    data = {
        "failedAt": text(at(2)),
        "error": {"code": "TIMEOUT", "message": "too slow", "retryable": True},
        "artifactRefs": [{"uri": "s3://half", "kind": "table"}],
    }
    run = after(step_started("a"), event("StepFailed", data, step="a"))
    assert run.steps[0].artifacts == (ArtifactRef("s3://half", "table"),)


def test_a_correction_to_failed_says_why_and_is_counted() -> None:
    error = {"code": "BAD", "message": "wrong rows", "retryable": False}
    told = event("StepCorrected", {"status": "FAILED", "error": error}, step="a")
    run = after(step_started("a"), step_completed("a"), told)
    (step,) = run.steps
    assert (step.status, step.skipped) == (StepStatus.FAILED, None)
    assert step.error == Failure("BAD", "wrong rows", retryable=False)
    assert run.failed_steps == 1


def test_a_correction_of_a_failure_by_another_counts_it_once() -> None:
    error = {"code": "BAD", "message": "wrong rows", "retryable": False}
    told = event("StepCorrected", {"status": "FAILED", "error": error}, step="a")
    run = after(step_started("a"), step_failed("a"), told)
    assert run.failed_steps == 1


def test_a_correction_to_skipped_says_why() -> None:
    told = event("StepCorrected", {"status": "SKIPPED", "reason": "by hand"}, step="a")
    run = after(step_started("a"), step_completed("a"), told)
    (step,) = run.steps
    assert (step.status, step.skipped) == (StepStatus.SKIPPED, Skipping("by hand"))


def test_a_correction_may_move_the_end() -> None:
    data = {"status": "SUCCESS", "completedAt": text(at(7))}
    run = after(
        step_started("a"), step_failed("a", seconds=2), event("StepCorrected", data, step="a")
    )
    assert run.steps[0].completed_at == at(7)
