"""What breaks the contract is found, and what only looks odd is noted."""

from headwater.runs import project
from headwater.runs.verifying import Verification
from tests.suites.run_steps import as_stored, event, numbered, started, step_completed

LOG = as_stored([started(), *numbered(3), event("RunCompleted")])


def test_a_good_run_has_nothing_to_say() -> None:
    found = Verification("run-001")
    found.take(LOG)
    found.compare(project("run-001", LOG))
    assert (found.count, found.broken, found.notes) == (5, [], [])


def test_numbers_and_keys_that_come_twice_are_found() -> None:
    found = Verification("run-001")
    found.take([LOG[0], LOG[1], LOG[1], *as_stored([numbered(1)[0]], first=9)])
    assert len(found.broken) == 2
    assert found.notes == ["a gap: 3 to 8 are not there"]


def test_a_snapshot_that_is_not_the_logs_is_found() -> None:
    found = Verification("run-001")
    found.take(LOG)
    found.compare(project("run-001", LOG[:-1]))
    assert len(found.broken) == 1
    found = Verification("run-001")
    found.take(LOG[:-1])
    found.compare(project("run-001", LOG))
    assert (found.broken, len(found.notes)) == ([], 1)


def test_transitions_that_do_not_exist_are_noted() -> None:
    found = Verification("run-001")
    found.take(as_stored([started(), step_completed("a")]))
    assert "INVALID_TRANSITION at 2" in found.notes[0]
