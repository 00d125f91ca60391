"""The idempotency key: what makes two deliveries of an event one."""

from hashlib import sha256
from typing import Final

from headwater.errors import KeyFieldRefused

_SEPARATOR: Final = "|"
_WHOLE_RUN: Final = "RUN"
_FIRST_ATTEMPT: Final = "1"


def idempotency_key(
    run_id: str,
    event_type: str,
    plan_version: str,
    *,
    step_id: str | None = None,
    logical_attempt_id: int | None = None,
    caused_by_signal_id: str | None = None,
) -> str:
    """Make the key of an event from what it says; raises `KeyFieldRefused` for a field with `|`.

    A run may be paused many times in one attempt, by another signal each time. So where a signal
    caused the event, its id stands in the place of the attempt.
    """
    attempt = caused_by_signal_id or str(logical_attempt_id or _FIRST_ATTEMPT)
    fields = {
        "run_id": run_id,
        "step_id": step_id or _WHOLE_RUN,
        "caused_by_signal_id" if caused_by_signal_id else "logical_attempt_id": attempt,
        "event_type": event_type,
        "plan_version": plan_version,
    }
    for name, value in fields.items():
        if _SEPARATOR in value:
            raise KeyFieldRefused(name, value)
    return sha256(_SEPARATOR.join(fields.values()).encode()).hexdigest()
