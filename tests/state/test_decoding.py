"""Whole batches are read as each of their messages is, whatever stands beside it."""

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET

from headwater.state.checking import Violation, check
from headwater.state.decoding import WireEvent, decode_batch
from headwater.state.events import ControlEvent, StateEvent

ODD: list[Any] = [None, "", "x", "\0", 1, True, [], {}]


def some_of(**fields: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that have each of these fields or lack it."""
    optional = {name: st.sampled_from(values) for name, values in fields.items()}
    return st.fixed_dictionaries({}, optional=optional)


HEADERS = some_of(
    operation=["insert", "update", "upsert", "delete", *ODD],
    control=["reset", "snapshot-start", "up-to-date", *ODD],
    txid=["t", *ODD],
    timestamp=["2025-01-15T10:30:00Z", "2025-02-30T10:30:00Z", *ODD],
    offset=["0", *ODD],
)
ANYTHING = st.builds(
    lambda event, headers: {**event, "headers": headers},
    some_of(type=["user", *ODD], key=["1", *ODD], value=[{"a": 1}, None, *ODD]),
    HEADERS | st.sampled_from(ODD),
)
CHANGE = {"type": "user", "key": "1", "value": 1, "headers": {"operation": "insert"}}
MESSAGES = st.lists(ANYTHING | st.just(CHANGE) | st.sampled_from(ODD), max_size=6)


def assert_same(event: WireEvent, alone: StateEvent) -> None:
    headers = event.headers
    if isinstance(alone, ControlEvent):
        assert (headers.operation, headers.control) == (UNSET, alone.headers.control)
        return
    assert (event.type, event.key) == (alone.type, alone.key)
    assert (headers.operation, headers.control) == (alone.headers.operation, UNSET)
    assert (headers.txid, headers.timestamp) == (alone.headers.txid, alone.headers.timestamp)
    value = UNSET if event.value is UNSET else msgspec.json.decode(event.value)
    assert value == alone.value


@given(MESSAGES)
@example([CHANGE, {**CHANGE, "headers": {"operation": "insert", "control": "reset"}}])
@example([CHANGE, {**CHANGE, "headers": {"operation": "insert", "control": "\0"}}])
@example([CHANGE, {**CHANGE, "headers": {"operation": "delete"}}])
@example([CHANGE, {**CHANGE, "headers": {"operation": "insert", "timestamp": "yesterday"}}])
def test_a_batch_says_what_its_messages_say(messages: list[Any]) -> None:
    texts = [msgspec.json.encode(message) for message in messages]
    decoded = decode_batch(b"[" + b",\n".join(texts) + b"]")
    assert len(decoded.events) == len(texts)
    for at, text in enumerate(texts):
        alone = check(text)
        if isinstance(alone, Violation):
            assert str(decoded.violations[at][0]) == str(alone)
        else:
            assert at not in decoded.violations
            assert_same(decoded.events[at], alone)
