"""State events: what a message of a state stream may say (STATE 4, 5).

A change sets or removes the value of one entity, named by its type and key. A control tells how the
changes around it belong together. The wire's shape is kept: what is metadata stands in `headers`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeGuard

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

Operation: TypeAlias = Literal["insert", "update", "delete", "upsert"]
"""`upsert` is in neither document, but the reference package writes it."""

Control: TypeAlias = Literal["snapshot-start", "snapshot-end", "reset", "up-to-date"]
"""`up-to-date` is of version 0.1 alone."""

NonEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]
Timestamp: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"format": "date-time"}, description="RFC 3339, advisory")
]


class ChangeHeaders(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is told about a change; nothing here but the operation affects the state."""

    operation: Operation
    txid: NonEmpty | UnsetType = UNSET
    timestamp: Timestamp | UnsetType = UNSET
    others: Mapping[str, Any] = {}
    """Headers that the protocol does not name, as they came."""


class ChangeEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=False):
    """One entity has a new value, or none any more."""

    type: NonEmpty
    key: NonEmpty
    value: Any | UnsetType = UNSET
    old_value: Any | UnsetType = UNSET
    """What the producer believes was there before: advisory, never relied on."""
    headers: ChangeHeaders

    def encode(self) -> bytes:
        """Write the event as a message of a stream."""
        return _encode(self, self.headers.others)


class ControlHeaders(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which control this is."""

    control: Control
    offset: NonEmpty | UnsetType = UNSET
    """Where the producer was when it wrote this: informative."""
    others: Mapping[str, Any] = {}


class ControlEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the changes around it belong together."""

    headers: ControlHeaders

    def encode(self) -> bytes:
        """Write the event as a message of a stream."""
        return _encode(self, self.headers.others)


StateEvent: TypeAlias = ChangeEvent | ControlEvent

JSON: Final = msgspec.json.Encoder()


def is_change_event(event: object) -> TypeGuard[ChangeEvent]:
    """Tell a change from everything else."""
    return isinstance(event, ChangeEvent)


def is_control_event(event: object) -> TypeGuard[ControlEvent]:
    """Tell a control from everything else."""
    return isinstance(event, ControlEvent)


def change(
    operation: Operation,
    type: str,
    key: str,
    value: Any = UNSET,
    *,
    old_value: Any = UNSET,
    txid: str | UnsetType = UNSET,
    timestamp: str | UnsetType = UNSET,
    headers: Mapping[str, Any] | None = None,
) -> ChangeEvent:
    """Build a change, without checking it: `headwater.state.check` does."""
    return ChangeEvent(
        type=type,
        key=key,
        value=value,
        old_value=old_value,
        headers=ChangeHeaders(
            operation=operation, txid=txid, timestamp=timestamp, others=dict(headers or {})
        ),
    )


def control(kind: Control, *, offset: str | UnsetType = UNSET) -> ControlEvent:
    """Build a control."""
    return ControlEvent(headers=ControlHeaders(control=kind, offset=offset))


def encode_events(events: Iterable[StateEvent]) -> bytes:
    """Write events as one JSON array, which a server takes as so many messages."""
    return b"[" + b",".join(event.encode() for event in events) + b"]"


def _encode(event: StateEvent, others: Mapping[str, Any]) -> bytes:
    if not others:
        return JSON.encode(event)
    parts = msgspec.to_builtins(event, builtin_types=(Raw,))
    headers = parts["headers"]
    headers.pop("others")
    # What the protocol names wins: a header named `operation` must not change what the event does.
    parts["headers"] = {**others, **headers}
    return JSON.encode(parts)
