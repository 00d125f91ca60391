"""A run as text: its steps as a tree, with status and times."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from headwater.runs.values import RunSnapshot, StepSnapshot, StepStatus

_SIGNS: Final = {
    StepStatus.PENDING: "·",
    StepStatus.RUNNING: "▶",
    StepStatus.SUCCESS: "✓",
    StepStatus.FAILED: "✗",
    StepStatus.SKIPPED: "-",
}


class _Node:
    """A step, or a part of step ids that several share."""

    def __init__(self) -> None:
        self.step: StepSnapshot | None = None
        self.below: dict[str, _Node] = {}


def draw(run: RunSnapshot, now: datetime) -> list[str]:
    """Draw a run: a line for itself, one for each step, below it what it made or why it failed.

    Steps whose ids share what stands before a slash are drawn below each other.
    """
    root = _Node()
    for step in run.steps:
        node = root
        for part in step.step_id.split("/"):
            node = node.below.setdefault(part, _Node())
        node.step = step
    took = _took(run.started_at, run.completed_at, now)
    lines = [f"{run.run_id}  {run.status}{took}  {len(run.steps)} steps, {run.failed_steps} failed"]
    if run.error is not None:
        lines.append(f"  {run.error.code}: {run.error.message}")
    lines += _below(root, "", now)
    return lines


def _below(node: _Node, indent: str, now: datetime) -> Iterator[str]:
    leaves = [] if node.step is None else _leaves(node.step)
    count = len(node.below) + len(leaves)
    for place, leaf in enumerate(leaves, 1):
        yield f"{indent}{'└─' if place == count else '├─'} {leaf}"
    for place, (name, child) in enumerate(node.below.items(), len(leaves) + 1):
        is_last = place == count
        label = name if child.step is None else f"{name}  {_described(child.step, now)}"
        sign = "" if child.step is None else f"{_SIGNS[child.step.status]} "
        yield f"{indent}{'└─' if is_last else '├─'} {sign}{label}"
        yield from _below(child, indent + ("   " if is_last else "│  "), now)


def _described(step: StepSnapshot, now: datetime) -> str:
    attempt = f"  attempt {step.logical_attempt_id}" if step.logical_attempt_id > 1 else ""
    began = "" if step.started_at is None else f"  {step.started_at:%H:%M:%S}"
    return f"{step.status}{began}{_took(step.started_at, step.completed_at, now)}{attempt}"


def _leaves(step: StepSnapshot) -> list[str]:
    found = [f"{each.kind} {each.uri}" for each in step.artifacts]
    if step.error is not None:
        again = ", may be retried" if step.error.retryable else ""
        found.append(f"{step.error.code}: {step.error.message}{again}")
    if step.skipped is not None and (step.skipped.reason or step.skipped.reason_code):
        found.append(f"skipped: {step.skipped.reason or step.skipped.reason_code}")
    return found


def _took(began: datetime | None, ended: datetime | None, now: datetime) -> str:
    if began is None:
        return ""
    seconds = ((ended or now) - began) / timedelta(seconds=1)
    return f"  {spelled(seconds)}{'' if ended is not None else ' so far'}"


def spelled(seconds: float) -> str:
    """Write how long something took."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
