"""Events on the wire: what is kept, what is refused, and how attempts are spelled."""

from datetime import UTC, datetime

import msgspec
import pytest

from headwater.errors import EventRefused, RunLogDamaged
from headwater.runs import CONTRACT_VERSION, NewEvent
from headwater.runs.events import (
    check_event,
    event_to_wire,
    instant_of,
    instant_text,
    new_event_from_wire,
    stored_event,
    stored_event_from_wire,
)
from tests.suites.run_steps import T0, as_stored, event, step_started

WIRE = {
    "runId": "r",
    "eventId": "e",
    "eventType": "Ticked",
    "idempotencyKey": "k",
    "emittedAt": "2026-02-11T10:00:00Z",
}


def test_attempts_are_strings_on_the_wire_and_integers_inside() -> None:
    wire = event_to_wire(step_started("a", attempt=2, engine_attempt_id=3))
    assert (wire["logicalAttemptId"], wire["engineAttemptId"]) == ("2", "3")
    assert new_event_from_wire(wire).logical_attempt_id == 2
    assert new_event_from_wire({**wire, "logicalAttemptId": 4}).logical_attempt_id == 4


@pytest.mark.parametrize("attempt", ["one", "-1", "1.5", "", 1.5, [], "9" * 40])
def test_an_attempt_that_is_no_number_is_refused(attempt: object) -> None:
    with pytest.raises(EventRefused):
        check_event(new_event_from_wire({**WIRE, "logicalAttemptId": attempt}))


def test_absent_fields_are_left_out() -> None:
    assert event_to_wire(new_event_from_wire(WIRE)) == WIRE


def test_the_contract_version_travels_in_the_event() -> None:
    assert event_to_wire(event("Ticked"))["contractVersion"] == CONTRACT_VERSION


def test_fields_of_a_later_version_are_kept() -> None:
    wire = {**WIRE, "priority": 7, "extra": {"even": "this"}}
    read = new_event_from_wire(wire)
    assert read.extra == {"priority": 7, "extra": {"even": "this"}}
    assert event_to_wire(read) == wire


@pytest.mark.parametrize("name", ["runSeq", "persistedAt"])
def test_what_only_the_store_may_say_is_refused(name: str) -> None:
    with pytest.raises(EventRefused, match=name):
        new_event_from_wire({**WIRE, name: 1})


@pytest.mark.parametrize(
    "wire", [None, [], "x", {}, {**WIRE, "runId": 1}, {**WIRE, "emittedAt": 5}]
)
def test_what_is_no_event_is_refused(wire: object) -> None:
    with pytest.raises(EventRefused):
        new_event_from_wire(wire)


def test_a_document_becomes_the_stored_event() -> None:
    new = step_started("ü", attempt=2)
    document = check_event(new)
    read = stored_event("run-001", document.body, 7, instant_text(T0))
    assert read == as_stored([new], first=7)[0]
    assert (
        stored_event_from_wire(msgspec.json.decode(msgspec.json.encode(event_to_wire(read))))
        == read
    )


def test_a_document_that_can_not_be_read_is_damage() -> None:
    with pytest.raises(RunLogDamaged, match="event 3"):
        stored_event("r", b'{"runId": ', 3, instant_text(T0))


def test_the_two_types_can_not_be_mistaken_for_each_other() -> None:
    assert not hasattr(event("Ticked"), "run_seq")
    assert set(NewEvent.__struct_fields__) < set(as_stored([event("Ticked")])[0].__struct_fields__)


def test_moments_sort_as_their_texts_do() -> None:
    whole = datetime(2026, 2, 11, 10, 0, 0, tzinfo=UTC)
    later = whole.replace(microsecond=5)
    assert instant_text(whole) < instant_text(later)
    assert instant_of(instant_text(later)) == later
