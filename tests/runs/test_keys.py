"""The idempotency key is the contract's, byte for byte."""

import pytest

from headwater.errors import KeyFieldRefused
from headwater.runs import idempotency_key


@pytest.mark.parametrize(
    ("event_type", "step_id", "attempt", "known"),
    [
        (
            "StepStarted",
            "model.orders",
            1,
            "6c99484df8a52a1dc3f2533b796f7257c11f57149d3fe3277d4c7ab98433d033",
        ),
        (
            "RunStarted",
            None,
            None,
            "d219f09c191299aed8f136206aac54aba08233611a71d86470eb60174fb086b4",
        ),
    ],
)
def test_known_answers(
    event_type: str, step_id: str | None, attempt: int | None, known: str
) -> None:
    key = idempotency_key(
        "run-001", event_type, "1.2.0", step_id=step_id, logical_attempt_id=attempt
    )
    assert key == known


def test_without_an_attempt_it_is_the_first() -> None:
    assert idempotency_key("r", "RunStarted", "1") == idempotency_key(
        "r", "RunStarted", "1", logical_attempt_id=1
    )


def test_the_signal_stands_in_the_place_of_the_attempt() -> None:
    first = idempotency_key("r", "RunPaused", "1", caused_by_signal_id="s1")
    second = idempotency_key("r", "RunPaused", "1", caused_by_signal_id="s2")
    plain = idempotency_key("r", "RunPaused", "1", logical_attempt_id=1)
    assert len({first, second, plain}) == 3
    assert first == idempotency_key(
        "r", "RunPaused", "1", caused_by_signal_id="s1", logical_attempt_id=9
    )


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"run_id": "a|b"}, "run_id"),
        ({"event_type": "a|b"}, "event_type"),
        ({"plan_version": "|"}, "plan_version"),
        ({"step_id": "a|b"}, "step_id"),
        ({"caused_by_signal_id": "a|b"}, "caused_by_signal_id"),
    ],
)
def test_a_field_with_the_separator_is_refused(fields: dict[str, str], name: str) -> None:
    given = {"run_id": "r", "event_type": "t", "plan_version": "1", **fields}
    with pytest.raises(KeyFieldRefused) as caught:
        idempotency_key(**given)  # type: ignore[arg-type] # all of these are texts
    assert caught.value.name == name
