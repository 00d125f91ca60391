"""The projection of one run: two marks, a grace period, and late events put in their place."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from headwater.runs import NewEvent, StoredEvent, project
from headwater.runs.projection import Health, Projection
from headwater.runs.store import Checkpoint, checkpoint_from_json, checkpoint_to_json
from tests.suites.run_steps import (
    as_stored,
    at,
    event,
    numbered,
    started,
    step_completed,
    step_failed,
    step_started,
)

GRACE = timedelta(seconds=5)
STORY: list[NewEvent] = [
    started(),
    step_started("a"),
    step_failed("a"),
    step_started("a", 2),
    step_completed("a", 2),
    step_started("b"),
    step_completed("b"),
    event("RunCompleted"),
]
LOG = as_stored(STORY)


def projection(*, gaps_are_final: bool = False) -> Projection:
    return Projection("run-001", gaps_are_final=gaps_are_final, grace=GRACE)


def seen(log: list[StoredEvent], missing: set[int], behind: int) -> list[StoredEvent]:
    """Give what a store would show while some events are not committed yet."""
    return [each for each in log if each.run_seq not in missing and each.run_seq > behind]


def test_a_plain_watermark_loses_the_late_event_and_two_marks_find_it() -> None:
    plain = project("run-001", seen(LOG, {4}, 0))
    plain = project("run-001", seen(LOG, set(), plain.last_event_seq), plain)
    assert plain != project("run-001", LOG)

    ours = projection()
    first = ours.take(seen(LOG, {4}, 0), at(0))
    assert [(gap.first, gap.last) for gap in first.opened] == [(4, 4)]
    assert (ours.contiguous_seq, ours.applied_seq, ours.health) == (3, 8, Health.STALE)
    second = ours.take(seen(LOG, set(), ours.read_from), at(1))
    assert second.late == (4,)
    assert (ours.contiguous_seq, ours.applied_seq, ours.health) == (8, 8, Health.LIVE)
    assert ours.snapshot() == project("run-001", LOG)


def test_a_gap_that_outlives_the_grace_period_is_stepped_over() -> None:
    ours = projection()
    ours.take(seen(LOG, {4}, 0), at(0))
    assert not ours.take(seen(LOG, {4}, ours.read_from), at(4.9)).given_up
    assert ours.health is Health.STALE
    done = ours.take(seen(LOG, {4}, ours.read_from), at(5))
    assert [gap.first for gap in done.given_up] == [4]
    assert (ours.contiguous_seq, ours.health) == (8, Health.LIVE)


def test_final_gaps_are_not_waited_for() -> None:
    ours = projection(gaps_are_final=True)
    done = ours.take(seen(LOG, {4, 5}, 0), at(0))
    assert [(gap.first, gap.last) for gap in done.opened] == [(4, 5)]
    assert (ours.contiguous_seq, ours.health) == (8, Health.LIVE)


def test_a_gap_before_the_first_event_is_one() -> None:
    ours = projection()
    ours.take(seen(LOG, {1}, 0), at(0))
    assert (ours.contiguous_seq, ours.health) == (0, Health.STALE)
    ours.take(seen(LOG, set(), 0), at(1))
    assert ours.snapshot() == project("run-001", LOG)


def test_part_of_a_gap_keeps_the_age_of_the_whole() -> None:
    log = as_stored(numbered(9))
    ours = projection()
    ours.take(seen(log, {3, 4, 5}, 0), at(0))
    ours.take(seen(log, {3, 5}, ours.read_from), at(3))
    done = ours.take(seen(log, {3, 5}, ours.read_from), at(5))
    assert [gap.first for gap in done.given_up] == [3, 5]


def test_an_invalid_transition_is_reported_once() -> None:
    log = as_stored([started(), step_completed("a"), *numbered(3), started(seconds=1)])
    ours = projection()
    first = ours.take(seen(log, {4}, 0), at(0))
    again = ours.take(seen(log, set(), ours.read_from), at(1))
    assert [each.run_seq for each in first.invalid] == [2, 6]
    assert again.invalid == ()
    restored = Projection("run-001", ours.checkpoint(), gaps_are_final=False, grace=GRACE)
    assert restored.take(log, at(2)).invalid == ()


def test_a_checkpoint_within_a_gap_goes_on_after_a_restart() -> None:
    for missing in ({1}, {4}, {2, 6}, {7}):
        ours = projection()
        ours.take(seen(LOG, missing, 0), at(0))
        kept = checkpoint_from_json("run-001", checkpoint_to_json(ours.checkpoint()))
        assert kept.stale
        restored = Projection("run-001", kept, gaps_are_final=False, grace=GRACE)
        assert restored.snapshot() == ours.snapshot()
        assert restored.health is Health.STALE
        restored.take(seen(LOG, set(), restored.read_from), at(1))
        assert restored.snapshot() == project("run-001", LOG)


@given(st.lists(st.sets(st.integers(1, 8), max_size=6), max_size=6), st.data())
def test_whatever_order_events_are_committed_in_the_end_is_the_same(
    looks: list[set[int]], data: st.DataObject
) -> None:
    """Each look hides some events that no earlier look has shown."""
    ours = projection()
    shown: set[int] = set()
    for number, hidden in enumerate(looks):
        missing = hidden - shown
        visible = seen(LOG, missing, ours.read_from)
        ours.take(visible, at(number * 0.1))
        shown |= {each.run_seq for each in LOG} - missing
        assert ours.contiguous_seq <= ours.applied_seq
        assert ours.snapshot() == project("run-001", seen(LOG, missing, 0))
        if data.draw(st.booleans()):
            kept = checkpoint_from_json("run-001", checkpoint_to_json(ours.checkpoint()))
            ours = Projection("run-001", kept, gaps_are_final=False, grace=GRACE)
    ours.take(seen(LOG, set(), ours.read_from), at(1))
    assert ours.snapshot() == project("run-001", LOG)
    assert ours.health is Health.LIVE


def test_a_new_projection_is_live_and_without_a_gap() -> None:
    ours = projection()
    assert (ours.run_id, ours.health, ours.has_gap) == ("run-001", Health.LIVE, False)


def test_what_was_applied_before_is_not_counted_again() -> None:
    ours = projection()
    assert ours.take(LOG, at(0)).applied == 8
    assert ours.take(LOG, at(1)).applied == 0


def test_a_checkpoint_without_a_gap_is_one_snapshot() -> None:
    ours = projection()
    ours.take(LOG, at(0))
    assert ours.checkpoint() == Checkpoint(project("run-001", LOG), 8)


def test_a_checkpoint_below_the_first_event_has_no_base() -> None:
    ours = projection()
    ours.take(seen(LOG, {1}, 0), at(0))
    assert ours.checkpoint() == Checkpoint(project("run-001", LOG[1:]), 0, stale=True)


def test_a_projection_goes_on_from_its_checkpoint_with_the_same_one() -> None:
    ours = projection()
    ours.take(LOG, at(0))
    restored = Projection("run-001", ours.checkpoint(), gaps_are_final=False, grace=GRACE)
    assert restored.checkpoint() == ours.checkpoint()


def test_an_invalid_first_event_is_reported() -> None:
    invalid = projection().take(as_stored([step_completed("a")]), at(0)).invalid
    assert [(each.run_id, each.run_seq) for each in invalid] == [("run-001", 1)]


def test_an_invalid_transition_above_a_gap_is_not_reported_again_after_a_restart() -> None:
    log = as_stored([started(), *numbered(2), step_completed("a")])
    ours = projection()
    assert [each.run_seq for each in ours.take(seen(log, {2}, 0), at(0)).invalid] == [4]
    restored = Projection("run-001", ours.checkpoint(), gaps_are_final=False, grace=GRACE)
    assert restored.take(seen(log, set(), restored.read_from), at(1)).invalid == ()


def test_a_gap_is_reported_as_opened_once() -> None:
    log = as_stored(numbered(9))
    ours = projection()
    assert len(ours.take(seen(log, {3, 4, 5}, 0), at(0)).opened) == 1
    assert ours.take(seen(log, {3, 4, 5}, ours.read_from), at(0)).opened == ()
    assert ours.take(seen(log, {3, 5}, ours.read_from), at(1)).opened == ()


def test_a_gap_has_its_own_age() -> None:
    log = as_stored(numbered(9))
    ours = projection()
    ours.take(seen(log[:5], {3}, 0), at(0))
    ours.take(seen(log, {3, 7}, ours.read_from), at(3))
    first = ours.take(seen(log, {3, 7}, ours.read_from), at(5))
    assert [gap.first for gap in first.given_up] == [3]
    second = ours.take(seen(log, {3, 7}, ours.read_from), at(8))
    assert [gap.first for gap in second.given_up] == [7]


def test_after_a_restart_within_a_gap_there_is_one_before_events_are_read() -> None:
    ours = projection()
    ours.take(seen(LOG, {4}, 0), at(0))
    restored = Projection("run-001", ours.checkpoint(), gaps_are_final=False, grace=GRACE)
    assert (restored.gaps, restored.has_gap) == ((), True)


def test_health_has_the_names_of_the_contract() -> None:
    assert [str(health) for health in Health] == ["LIVE", "STALE", "RESYNCING"]
