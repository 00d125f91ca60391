"""State streams for tests, and what `headwater.state` makes of them, event by event."""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from headwater.state import StreamState
from headwater.state.backend import Quarantined
from headwater.state.fold import Fold, Incoming
from headwater.state.memory import MemoryBackend

Event = dict[str, Any]
Rows = dict[tuple[str, str], Any]

TYPES = ("user", "order")
VALUES = st.one_of(
    st.fixed_dictionaries({"n": st.integers(0, 9)}),
    st.fixed_dictionaries({"n": st.integers(0, 9), "s": st.text(max_size=3)}),
)
BAD_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, 7, {"n": "x"}, {}, {"n": 1, "s": 2}, []]
)
MALFORMED: list[Any] = [
    7,
    {"type": "user", "key": "a"},
    {"type": "user", "key": "", "value": 1, "headers": {"operation": "insert"}},
    {"type": "user", "key": "a", "headers": {"operation": "insert"}},
    {"type": "user", "key": "a", "value": 1, "headers": {"operation": "merge"}},
    {"type": "user", "key": "a", "value": 1, "headers": {"operation": "insert", "txid": None}},
    {"headers": {"control": "stop"}},
    {"headers": {"control": "reset", "operation": "insert"}},
    {
        "type": "user",
        "key": "a",
        "value": 1,
        "headers": {"operation": "insert", "timestamp": "2025-02-30T00:00:00Z"},
    },
]
TIMES = st.integers(0, 59).map(lambda second: f"2025-01-15T10:30:{second:02}Z")


def changes(values: st.SearchStrategy[Any] = VALUES) -> st.SearchStrategy[Event]:
    def made(type_: str, key: str, operation: str, value: Any, time: str | None) -> Event:
        headers = {"operation": operation} | ({"timestamp": time} if time else {})
        event = {"type": type_, "key": key, "headers": headers}
        return event if operation == "delete" else event | {"value": value}

    return st.builds(
        made,
        st.sampled_from(TYPES),
        st.sampled_from(["a", "b", "c", "é"]),
        st.sampled_from(["insert", "update", "upsert", "delete"]),
        values,
        st.none() | TIMES,
    )


CONTROLS = st.builds(
    lambda control, time: {"headers": {"control": control} | ({"timestamp": time} if time else {})},
    st.sampled_from(
        ["reset", "snapshot-start", "snapshot-start", "snapshot-end", "snapshot-end", "up-to-date"]
    ),
    st.none() | TIMES,
)
CHANGES = changes()
EVENTS = st.lists(st.one_of(CHANGES, CHANGES, CHANGES, CONTROLS), max_size=30)
WILD_EVENTS = st.lists(
    st.one_of(CHANGES, CHANGES, CONTROLS, changes(BAD_VALUES), st.sampled_from(MALFORMED)),
    max_size=30,
)


class Oracle:
    """The state of one stream after each of its events, by `headwater.state`."""

    def __init__(self, state: StreamState | None = None) -> None:
        self._backend = MemoryBackend()
        self._fold = Fold(self._backend.load(), state)
        self._count = 0

    def take(self, event: Any) -> None:
        self._count += 1
        data = json.dumps([event]).encode()
        taken = self._fold.take(Incoming(data, self._fold.offset, f"{self._count:016}"))
        assert not taken.duplicate
        work = self._fold.work()
        self._backend.commit(work)
        self._fold.committed(work)

    @property
    def rows(self) -> Rows:
        found: Rows = {}
        for type_ in self._backend.types():
            for key, data in self._backend.rows(type_):
                found[type_, key] = json.loads(data)
        return found

    @property
    def quarantined(self) -> list[Quarantined]:
        return list(self._backend.quarantined())


def final(streams: Mapping[str, list[Any]], state: StreamState | None = None) -> dict[str, Oracle]:
    """Fold whole streams."""
    oracles = {stream: Oracle(state) for stream in streams}
    for stream, events in streams.items():
        for event in events:
            oracles[stream].take(event)
    return oracles
