"""Checkpoints in pieces: what changed is written, and all of it comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import RunLogDamaged
from headwater.runs.checkpoint_pages import PAGE_STEPS, join, split
from headwater.runs.reducer import Fold, project
from headwater.runs.store import Checkpoint, checkpoint_to_json
from headwater.runs.values import RunSnapshot
from tests.suites.run_steps import as_stored, step_completed, step_started


def of(steps: int) -> Checkpoint:
    """A checkpoint of a run with so many steps."""
    events = as_stored([step_started(f"step-{number}") for number in range(steps)])
    return Checkpoint(project("run-001", events), steps)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 3)), min_size=1), st.data())
def test_pieces_written_one_upon_another_are_the_last_checkpoint(
    told: list[tuple[int, int]], data: st.DataObject
) -> None:
    fold = Fold("run-001")
    before: RunSnapshot | None = None
    pages: dict[int, bytes] = {}
    events = as_stored([step_started(f"step-{step}", attempt) for step, attempt in told])
    for event in events:
        fold.apply(event)
        if event is not events[-1] and not data.draw(st.booleans()):
            continue
        checkpoint = Checkpoint(fold.snapshot(), fold.last_event_seq)
        pieces = split(checkpoint, before)
        pages |= pieces.pages
        before = checkpoint.snapshot
        ordered = [pages[number] for number in sorted(pages)]
        assert join("run-001", pieces.head, pieces.steps, ordered) == checkpoint


def test_only_the_pages_that_changed_are_written() -> None:
    started = [step_started(f"step-{number}") for number in range(5 * PAGE_STEPS)]
    fold = Fold("run-001")
    *most, last = as_stored([*started, step_completed(f"step-{PAGE_STEPS}")])
    for event in most:
        fold.apply(event)
    before = fold.snapshot()
    assert set(split(Checkpoint(before, 1)).pages) == {0, 1, 2, 3, 4}
    fold.apply(last)
    assert set(split(Checkpoint(fold.snapshot(), 1), before).pages) == {1}


def test_a_document_that_was_written_whole_is_read() -> None:
    assert join("run-001", checkpoint_to_json(of(3)), 0, []) == of(3)


@pytest.mark.parametrize("pages", [[], [b"nothing"]])
def test_pages_that_are_gone_or_broken_are_told(pages: list[bytes]) -> None:
    pieces = split(of(3))
    with pytest.raises(RunLogDamaged):
        join("run-001", pieces.head, pieces.steps, pages)
