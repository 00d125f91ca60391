"""Whole batches of state events from their bytes, at the speed of the decoder.

The rules of `headwater.state.checking` hold here too, but are not explained here: only where a
batch breaks one is it taken apart, message by message, to say which and why. Values stay the bytes
that they are.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, NoReturn

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headwater.errors import NotStateEvents
from headwater.state.checking import Violation, check
from headwater.state.events import Control, ControlEvent, NonEmpty, Operation, StateEvent
from headwater.state.timestamps import is_timestamp

# A piece of this size and what is decoded from it stay in a core's cache.
_PIECE_BYTES: Final = 128 * 1024


_Never = Annotated[str, Meta(min_length=1, max_length=0)]


class WireHeaders(Struct, gc=False):
    """The headers that state depends on, or that have a rule."""

    operation: Operation | UnsetType = UNSET
    control: Control | UnsetType = UNSET
    txid: NonEmpty | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET
    offset: str | UnsetType = UNSET


class WireEvent(Struct, gc=False):
    """A change or a control as it is applied; with neither, a message that breaks a rule."""

    headers: WireHeaders
    type: NonEmpty = ""
    key: NonEmpty = ""
    value: Raw | UnsetType = UNSET


class _SetHeaders(WireHeaders, kw_only=True, gc=False):
    operation: Literal["insert", "update", "upsert"]
    control: _Never | UnsetType = UNSET  # type: ignore[assignment] # none at all


class _Set(WireEvent, kw_only=True, gc=False):
    """What most messages are: a change that sets a value, and says all that it has to."""

    headers: _SetHeaders
    type: NonEmpty
    key: NonEmpty
    value: Raw


class _Value(Struct):
    value: Raw | UnsetType = UNSET


class Decoded(Struct):
    """The messages of a batch, in order."""

    events: list[WireEvent]
    violations: dict[int, tuple[Violation, bytes]]
    """What is wrong with the message at an index, and the message; its event says nothing."""


_SETS: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(list[_Set])
_EVENTS: Final = msgspec.json.Decoder(list[WireEvent])
_MESSAGES: Final = msgspec.json.Decoder(list[Raw])
_VALUE: Final = msgspec.json.Decoder(_Value)
_UNFIT: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What a decoder raises on what is not of its types."""
_NOTHING: Final = WireEvent(WireHeaders())


def decode_batch(data: bytes) -> Decoded:
    """Read a JSON array of messages; what is no array of JSON raises `NotStateEvents`."""
    parts = list(decode_pieces(data))
    if len(parts) == 1:
        return parts[0]
    events: list[WireEvent] = []
    violations: dict[int, tuple[Violation, bytes]] = {}
    for part in parts:
        for index, violation in part.violations.items():
            violations[len(events) + index] = violation
        events += part.events
    return Decoded(events, violations)


def decode_pieces(data: bytes) -> Iterator[Decoded]:
    """Read a JSON array piece by piece, so that what is at hand stays in the core's cache.

    Pieces end at line ends behind a comma, where Headwater ends each message. Another server's
    line end may lie within a message. Then a bracket is left open before the cut, so that the
    piece is no JSON: it is noticed, never misread, and the rest is read as a whole.
    """
    try:
        if not data.isascii():
            data.decode()
    except UnicodeDecodeError as error:
        _refuse(f"it is not UTF-8: {error}")
    start = 0
    while len(data) - start > 2 * _PIECE_BYTES:
        cut = data.find(b",\n", start + _PIECE_BYTES)
        if cut < 0:
            break
        try:
            part = _decode((b"[" if start else b"") + data[start:cut] + b"]")
        except NotStateEvents:
            break
        yield part
        start = cut + 2
    if start < len(data):
        yield _decode(b"[" + data[start:] if start else data)


def _decode(data: bytes) -> Decoded:
    try:
        # Of sets alone, the types say nearly all; another event ends this soon after it began.
        sets: list[WireEvent] = _SETS.decode(data)
        if _have_timestamps(sets):
            return Decoded(sets, {})
    except _UNFIT:
        pass
    try:
        events = _EVENTS.decode(data)
    except _UNFIT:
        return _decode_each(data)
    return Decoded(events, {}) if _keep_rules(events) else _decode_each(data)


def _have_timestamps(events: list[WireEvent]) -> bool:
    told = [event.headers.timestamp for event in events]
    return told.count(UNSET) == len(told) or all(
        text is UNSET or is_timestamp(text) for text in told
    )


def _keep_rules(events: list[WireEvent]) -> bool:
    """Check what the types don't say."""
    for event in events:
        headers = event.headers
        operation = headers.operation
        if operation is UNSET:
            if headers.control is UNSET or headers.offset == "":
                return False
        elif (
            (event.value is UNSET and operation != "delete")
            or not event.type
            or not event.key
            or headers.control is not UNSET
            or (headers.timestamp is not UNSET and not is_timestamp(headers.timestamp))
        ):
            return False
    return True


def _decode_each(data: bytes) -> Decoded:
    try:
        messages = _MESSAGES.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _refuse(str(error))
    except RecursionError:
        _refuse("it is nested too deeply")
    events: list[WireEvent] = []
    violations: dict[int, tuple[Violation, bytes]] = {}
    for index, raw in enumerate(messages):
        message = bytes(raw)
        outcome = check(message)
        if isinstance(outcome, Violation):
            violations[index] = (outcome, message)
            events.append(_NOTHING)
        else:
            events.append(_wire_event(outcome, message))
    return Decoded(events, violations)


def _wire_event(event: StateEvent, message: bytes) -> WireEvent:
    # Not decoded anew: what has no rule, such as a change's `offset`, may be of any kind.
    if isinstance(event, ControlEvent):
        told = event.headers
        return WireEvent(WireHeaders(control=told.control, offset=told.offset))
    headers = event.headers
    return WireEvent(
        WireHeaders(operation=headers.operation, txid=headers.txid, timestamp=headers.timestamp),
        event.type,
        event.key,
        _VALUE.decode(message).value,
    )


def _refuse(reason: str) -> NoReturn:
    raise NotStateEvents(reason)
