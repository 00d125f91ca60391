"""Events: one type for what is to be written, one for what is stored, and their form on the wire.

Only the store numbers events and says when they were persisted, so an event to be written has
neither `run_seq` nor `persisted_at`. Attempts are integers here and strings on the wire. Fields
that this version does not know are kept in `extra` and written back: a log outlives its readers.
"""

import re
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from headwater.errors import EventRefused, RunLogDamaged, UnknownContract
from headwater.runs.event_data import complaint, engine_complaint
from headwater.runs.keys import idempotency_key
from headwater.runs.values import Instant, Value

CONTRACT_VERSION: Final = "1.0"
MAX_ID_CHARACTERS: Final = 256

_ATTEMPTS: Final = ("engineAttemptId", "logicalAttemptId")
_ATTEMPT: Final = re.compile(r"[0-9]{1,9}")
_MAX_ATTEMPT: Final = 999_999_999
_VERSION: Final = re.compile(r"(\d{1,6})\.\d{1,6}(\.\d{1,6})?")
_KNOWN_MAJOR: Final = CONTRACT_VERSION.partition(".")[0]


class Event(Value, frozen=True, kw_only=True):
    """What both kinds of event say."""

    run_id: str
    event_id: str
    event_type: str
    idempotency_key: str
    emitted_at: Instant
    event_data: Any = None
    step_id: str | None = None
    engine_attempt_id: int | None = None
    """How often the platform has tried."""
    logical_attempt_id: int | None = None
    """How often the business has: a retry that shows in the snapshot."""
    adapter_version: str | None = None
    engine_run_ref: dict[str, Any] | None = None
    caused_by_signal_id: str | None = None
    parent_event_id: str | None = None
    contract_version: str = ""
    """Empty where the writer did not say: then it is 1.0."""
    extra: dict[str, Any] = {}  # noqa: RUF012 - msgspec gives each event its own
    """Fields of a later minor version, as they were read."""


class NewEvent(Event, frozen=True, kw_only=True):
    """An event to be written."""


class StoredEvent(Event, frozen=True, kw_only=True):
    """An event as a store gives it."""

    run_seq: int
    persisted_at: Instant


def new_event(
    run_id: str,
    event_type: str,
    event_data: Any = None,
    *,
    plan_version: str,
    step_id: str | None = None,
    logical_attempt_id: int | None = None,
    engine_attempt_id: int | None = None,
    caused_by_signal_id: str | None = None,
    parent_event_id: str | None = None,
    adapter_version: str | None = None,
    engine_run_ref: dict[str, Any] | None = None,
    event_id: str | None = None,
    emitted_at: datetime | None = None,
) -> NewEvent:
    """Make an event with the key that its fields give, at this moment unless told otherwise."""
    return NewEvent(
        run_id=run_id,
        event_id=event_id or str(uuid4()),
        event_type=event_type,
        idempotency_key=idempotency_key(
            run_id,
            event_type,
            plan_version,
            step_id=step_id,
            logical_attempt_id=logical_attempt_id,
            caused_by_signal_id=caused_by_signal_id,
        ),
        emitted_at=emitted_at or datetime.now(UTC),
        event_data=event_data,
        step_id=step_id,
        engine_attempt_id=engine_attempt_id,
        logical_attempt_id=logical_attempt_id,
        adapter_version=adapter_version,
        engine_run_ref=engine_run_ref,
        caused_by_signal_id=caused_by_signal_id,
        parent_event_id=parent_event_id,
        contract_version=CONTRACT_VERSION,
    )


# From and to the wire

AnyEvent = TypeVar("AnyEvent", NewEvent, StoredEvent)


def event_to_wire(event: Event) -> dict[str, Any]:
    """Spell an event as the contract does."""
    wire: dict[str, Any] = msgspec.to_builtins(event)
    for name in _ATTEMPTS:
        if name in wire:
            wire[name] = str(wire[name])
    extra = wire.pop("extra", None)
    return {**extra, **wire} if extra else wire


def _from_wire(wire: Any, kind: type[AnyEvent]) -> AnyEvent:
    """Read an event; raises `msgspec.ValidationError` where it is none."""
    if not isinstance(wire, dict):
        raise msgspec.ValidationError("Expected `object`")
    fields = kind.__struct_encode_fields__
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in wire.items():
        (known if name in fields and name != "extra" else extra)[name] = value
    for name in _ATTEMPTS:
        attempt = known.get(name)
        if isinstance(attempt, str) and _ATTEMPT.fullmatch(attempt):
            known[name] = int(attempt)
    if extra:
        known["extra"] = extra
    return msgspec.convert(known, kind)


def new_event_from_wire(wire: Any) -> NewEvent:
    """Read an event to be written; raises `EventRefused` where it can't be one.

    What only a store may say (`runSeq`, `persistedAt`) is refused and not skipped: whoever sends it
    expects it to count.
    """
    for name in ("runSeq", "persistedAt"):
        if isinstance(wire, dict) and name in wire:
            raise EventRefused(f"{name} is given by the store; leave it out")
    try:
        return _from_wire(wire, NewEvent)
    except msgspec.ValidationError as error:
        raise EventRefused(str(error)) from None


def stored_event_from_wire(wire: Any) -> StoredEvent:
    """Read a stored event; raises `msgspec.ValidationError` where it is none."""
    return _from_wire(wire, StoredEvent)


# From and to the document that a store keeps


class Document(NamedTuple):
    """A checked event as a store keeps it: what it looks for by, and the rest as JSON."""

    run_id: str
    idempotency_key: str
    event_type: str
    body: bytes
    """The event of the wire, without `runSeq` and `persistedAt`."""


def check_event(event: NewEvent) -> Document:
    """Check an event against the contract and write its document; raises `EventRefused`."""
    for name, value in (
        ("runId", event.run_id),
        ("idempotencyKey", event.idempotency_key),
        ("eventType", event.event_type),
        ("eventId", event.event_id),
    ):
        if (wrong := id_complaint(name, value)) is not None:
            raise _refused(event, wrong)
    if event.step_id is not None and (wrong := id_complaint("stepId", event.step_id)) is not None:
        raise _refused(event, wrong)
    for attempt in (event.logical_attempt_id, event.engine_attempt_id):
        if attempt is not None and not 1 <= attempt <= _MAX_ATTEMPT:
            raise _refused(event, f"attempts count from 1, and one is {attempt}")
    if event.emitted_at.tzinfo is None:
        raise _refused(event, "emittedAt has no offset from UTC; end it with Z")
    if event.contract_version:
        version = _VERSION.fullmatch(event.contract_version)
        if version is None or version[1] != _KNOWN_MAJOR:
            raise UnknownContract(event.contract_version, f"{_KNOWN_MAJOR}.x")
    wrong = complaint(event.event_type, event.step_id, event.event_data)
    if wrong is None and event.engine_run_ref is not None:
        wrong = engine_complaint(event.engine_run_ref)
    if wrong is not None:
        raise _refused(event, wrong)
    try:
        body = msgspec.json.encode(event_to_wire(event))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _refused(event, f"it can't be written as JSON ({error})") from None
    return Document(event.run_id, event.idempotency_key, event.event_type, body)


def id_complaint(name: str, value: str) -> str | None:
    """Say why a text can't be an id in every backend, or None."""
    if not 0 < len(value) <= MAX_ID_CHARACTERS:
        return f"{name} must have 1 to {MAX_ID_CHARACTERS} characters"
    if not value.isprintable():  # also keeps out NUL and lone surrogates, which databases refuse
        return f"{name}={value!r} holds characters that can't be printed"
    return None


def _refused(event: NewEvent, reason: str) -> EventRefused:
    return EventRefused(reason, run_id=event.run_id[:80], event_type=event.event_type[:80])


def stored_body(body: bytes, run_seq: int, persisted_at: str) -> bytes:
    """Add what the store says to a document, without reading it: both are the first fields."""
    return b'{"runSeq":%d,"persistedAt":"%b",%b' % (run_seq, persisted_at.encode(), body[1:])


def stored_event(run_id: str, body: bytes, run_seq: int, persisted_at: str) -> StoredEvent:
    """Read a document that a store kept; raises `RunLogDamaged` where it can't be read."""
    try:
        return stored_event_from_wire(msgspec.json.decode(stored_body(body, run_seq, persisted_at)))
    except msgspec.MsgspecError as error:
        raise RunLogDamaged(run_id, f"event {run_seq}", str(error)) from error


def instant_text(moment: datetime) -> str:
    """Write a moment so that texts sort as moments do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def instant_of(text: str) -> datetime:
    """Read what `instant_text` has written."""
    return datetime.fromisoformat(text)
