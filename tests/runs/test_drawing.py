"""A run as text."""

from headwater.runs import project
from headwater.runs.drawing import draw, spelled
from tests.suites.run_steps import (
    as_stored,
    at,
    event,
    started,
    step_completed,
    step_failed,
    step_started,
)


def test_steps_are_drawn_as_a_tree() -> None:
    story = [
        started(),
        step_started("extract/orders", seconds=1),
        step_completed("extract/orders", seconds=3.5, artifacts=["s3://orders"]),
        step_started("extract/users", seconds=1),
        step_failed("extract/users", seconds=2),
        step_started("extract/users", attempt=2, seconds=4),
        event("StepSkipped", {"reasonCode": "DEPENDENCY_FAILED"}, step="load"),
    ]
    assert draw(project("run-001", as_stored(story)), at(70)) == [
        "run-001  RUNNING  1 min 10 s so far  3 steps, 1 failed",
        "├─ extract",
        "│  ├─ ✓ orders  SUCCESS  10:00:01  2.5 s",
        "│  │  └─ table s3://orders",
        "│  └─ ▶ users  RUNNING  10:00:04  1 min 6 s so far  attempt 2",
        "└─ - load  SKIPPED",
        "   └─ skipped: DEPENDENCY_FAILED",
    ]


def test_a_failure_says_why() -> None:
    error = {"code": "BOOM", "message": "no", "retryable": False}
    story = [
        started(),
        step_started("a"),
        step_failed("a", seconds=1),
        event("RunFailed", {"failedAt": "2026-02-11T10:00:02Z", "error": error}),
    ]
    assert draw(project("run-001", as_stored(story)), at(99)) == [
        "run-001  FAILED  2.0 s  1 steps, 1 failed",
        "  BOOM: no",
        "└─ ✗ a  FAILED  10:00:00  1.0 s",
        "   └─ TIMEOUT: too slow, may be retried",
    ]


def test_times_are_spelled_for_people() -> None:
    assert [spelled(seconds) for seconds in (0.04, 59.9, 61, 3600, 7384)] == [
        *("0.0 s", "59.9 s", "1 min 1 s", "1 h 0 min", "2 h 3 min")
    ]
