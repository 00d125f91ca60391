"""Any events, in any batching, with restarts at any point, give the state of the model."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.state import MaterializedState
from headwater.state.backend import Backend
from headwater.state.engine import Engine, Hooks
from headwater.state.fold import Incoming
from headwater.state.memory import MemoryBackend
from headwater.state.sqlite import SqliteBackend
from tests.state.model import EVENTS, encoded, model


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[dict[str, Any]], bool, str]]:
    """Cut events anywhere; say whether a cut is the end for now, and what happens there."""
    events = draw(EVENTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=8)))
    parts = [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    return [
        (part, draw(st.booleans()), draw(st.sampled_from(["go on", "go on", "restart", "repeat"])))
        for part in parts
    ]


def follow(
    steps: list[tuple[list[dict[str, Any]], bool, str]], reopen: Callable[[Backend | None], Backend]
) -> Engine:
    """Read a stream whose offsets count events, with the crashes and repeats that are wanted."""
    stream = [event for part, _, _ in steps for event in part]
    ends = [0]
    for part, _, _ in steps:
        ends.append(ends[-1] + len(part))
    backend = reopen(None)
    engine = Engine(None, backend, Hooks(), "stop")
    at = 0
    number = 0
    while number < len(steps):
        _, up_to_date, then = steps[number]
        last = number == len(steps) - 1
        end = ends[number + 1]
        batch = Incoming(encoded(stream[at:end]), offset(at), offset(end), up_to_date or last)
        engine.take(batch)
        at = end
        if then == "repeat":
            engine.take(batch)
        if then == "restart" and not last:
            # What was not committed is lost with the process, and read again.
            backend = reopen(backend)
            engine = Engine(None, backend, Hooks(), "stop")
            at = position(engine.fold.offset)
        number += 1
    return engine


def offset(number: int) -> str:
    return f"{number:08d}" if number else "-1"


def position(text: str) -> int:
    return 0 if text == "-1" else int(text)


def rows(backend: Backend) -> dict[tuple[str, str], Any]:
    return {
        (name, key): json.loads(data)
        for name in backend.types()
        for key, data in backend.rows(name)
    }


@given(batches())
@settings(max_examples=300, deadline=None)
def test_in_memory(steps: list[tuple[list[dict[str, Any]], bool, str]]) -> None:
    engine = follow(steps, lambda _: MemoryBackend())
    assert rows(engine.backend) == model([event for part, _, _ in steps for event in part])


@given(batches())
@settings(max_examples=150, deadline=None)
def test_in_memory_kept_across_restarts(
    steps: list[tuple[list[dict[str, Any]], bool, str]],
) -> None:
    engine = follow(steps, lambda backend: backend or MemoryBackend())
    assert rows(engine.backend) == model([event for part, _, _ in steps for event in part])


@given(batches())
@settings(max_examples=120, deadline=None)
def test_in_sqlite(steps: list[tuple[list[dict[str, Any]], bool, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:

        def reopen(backend: Backend | None) -> Backend:
            if backend is not None:
                backend.close()
            return SqliteBackend(Path(folder) / "state.db")

        engine = follow(steps, reopen)
        assert rows(engine.backend) == model([event for part, _, _ in steps for event in part])
        engine.backend.close()


@given(EVENTS)
def test_materialized_state_agrees_where_there_are_only_changes(
    events: list[dict[str, Any]],
) -> None:
    changes = [event for event in events if "type" in event]
    state = MaterializedState()
    assert state.apply_json(encoded(events)) == []
    expected = model(changes)
    assert {(t, k): v for t in state.types for k, v in state.get_type(t).items()} == expected


@pytest.mark.parametrize("separator", [b",", b",\n", b" ,\n "])
def test_a_large_batch_is_read_the_same_wherever_its_lines_end(separator: bytes) -> None:
    events = [
        {
            "type": "t",
            "key": str(n % 900),
            "value": {"n": n, "pad": "x" * 90},
            "headers": {"operation": "insert"},
        }
        for n in range(6000)
    ]
    for indent in (None, 1):
        data = (
            b"["
            + separator.join(json.dumps(each, indent=indent).encode() for each in events)
            + b"]"
        )
        state = MaterializedState()
        assert state.apply_json(data) == []
        assert len(state) == 900
        assert state.get("t", "5")["n"] == 5405
        broken = data.replace(b'"key": "7",', b'"key": "",')
        assert [index for index, _ in MaterializedState().apply_json(broken)] == [
            n for n in range(6000) if n % 900 == 7
        ]
