"""The field rules of state events, with the reason of each violation (STATE 4, 5).

One message at a time, and thorough: this says what is wrong and where. Whole batches go through
`headwater.state.decoding`, which is quick as long as nothing is wrong.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, Raw, Struct

from headwater.state.events import (
    ChangeEvent,
    ChangeHeaders,
    Control,
    ControlEvent,
    ControlHeaders,
    Operation,
    StateEvent,
)
from headwater.state.timestamps import is_timestamp
from headwater.state.values import decode_value, encode_value

OPERATIONS: Final[tuple[str, ...]] = get_args(Operation)
CONTROLS: Final[tuple[str, ...]] = get_args(Control)

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])


class Violation(Struct, frozen=True):
    """Why a message is no state event."""

    field: str
    """Where: a path such as `headers.txid`, or nothing for the message as a whole."""
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


def check(message: bytes | StateEvent | Mapping[str, Any]) -> StateEvent | Violation:
    """Read one message by all the rules: an event, or the first rule that it breaks."""
    if isinstance(message, ChangeEvent | ControlEvent):
        message = message.encode()
    elif isinstance(message, Mapping):
        try:
            message = encode_value(message)
        except ValueError as error:
            return Violation("", str(error))
    fields = _object(message)
    if isinstance(fields, Violation):
        return fields
    if "headers" not in fields:
        return Violation("headers", "is missing")
    headers = _object(bytes(fields["headers"]))
    if isinstance(headers, Violation):
        return Violation("headers", "must be an object")
    if "operation" in headers and "control" in headers:
        return Violation("headers", "has both an operation and a control, so it is neither")
    if "operation" in headers:
        return _change(fields, headers)
    if "control" in headers:
        return _control(headers)
    return Violation("headers", "has neither an operation nor a control")


def _change(fields: dict[str, Raw], raw_headers: dict[str, Raw]) -> ChangeEvent | Violation:
    for name in ("type", "key"):
        if name not in fields:
            return Violation(name, "is missing")
        wrong = _text_violation(name, _value(fields[name]))
        if wrong is not None:
            return wrong
    headers = {name: _value(raw) for name, raw in raw_headers.items()}
    wrong = _headers_violation("operation", OPERATIONS, headers, _CHANGE_RULES)
    if wrong is not None:
        return wrong
    operation = headers.pop("operation")
    if operation != "delete" and "value" not in fields:
        return Violation("value", f"is missing, and {operation} sets it")
    return ChangeEvent(
        type=_value(fields["type"]),
        key=_value(fields["key"]),
        value=_value(fields["value"]) if "value" in fields else UNSET,
        old_value=_value(fields["old_value"]) if "old_value" in fields else UNSET,
        headers=ChangeHeaders(
            operation=operation,
            txid=headers.pop("txid", UNSET),
            timestamp=headers.pop("timestamp", UNSET),
            others=headers,
        ),
    )


def _control(raw_headers: dict[str, Raw]) -> ControlEvent | Violation:
    headers = {name: _value(raw) for name, raw in raw_headers.items()}
    wrong = _headers_violation("control", CONTROLS, headers, _CONTROL_RULES)
    if wrong is not None:
        return wrong
    return ControlEvent(
        headers=ControlHeaders(
            control=headers.pop("control"), offset=headers.pop("offset", UNSET), others=headers
        )
    )


def _headers_violation(
    discriminant: str,
    known: tuple[str, ...],
    headers: dict[str, Any],
    rules: dict[str, Callable[[str, Any], Violation | None]],
) -> Violation | None:
    if headers[discriminant] not in known:
        shown = msgspec.json.encode(headers[discriminant]).decode()
        return Violation(f"headers.{discriminant}", f"is {shown}, not one of {', '.join(known)}")
    for name, rule in rules.items():
        if name in headers:
            wrong = rule(f"headers.{name}", headers[name])
            if wrong is not None:
                return wrong
    return None


def _text_violation(field: str, value: Any) -> Violation | None:
    if not isinstance(value, str):
        return Violation(field, "must be a string")
    return Violation(field, "must not be empty") if not value else None


def _timestamp_violation(field: str, value: Any) -> Violation | None:
    if isinstance(value, str) and is_timestamp(value):
        return None
    return Violation(field, "must be an RFC 3339 timestamp, such as 2025-01-15T10:30:00Z")


_CHANGE_RULES: Final[dict[str, Callable[[str, Any], Violation | None]]] = {
    "txid": _text_violation,
    "timestamp": _timestamp_violation,
}
_CONTROL_RULES: Final[dict[str, Callable[[str, Any], Violation | None]]] = {
    "offset": _text_violation
}


def _object(data: bytes) -> dict[str, Raw] | Violation:
    try:
        text_violation = None if data.isascii() else _encoding_violation(data)
        return text_violation or _OBJECT.decode(data)
    except msgspec.ValidationError:
        return Violation("", "must be a JSON object")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Violation("", f"is not JSON: {error}")
    except RecursionError:
        return Violation("", "is nested too deeply")


def _encoding_violation(data: bytes) -> Violation | None:
    try:
        data.decode()
    except UnicodeDecodeError:
        return Violation("", "is not UTF-8")
    return None


def _value(raw: Raw) -> Any:
    return decode_value(bytes(raw))
