"""What a state must be, in ten lines, and sequences of events to try it with."""

import json
from typing import Any

from hypothesis import strategies as st


def model(events: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """Apply events one after the other, in the plainest way."""
    rows: dict[tuple[str, str], Any] = {}
    staged: dict[tuple[str, str], Any] | None = None
    for event in events:
        kind = event["headers"].get("control") or event["headers"]["operation"]
        if kind == "snapshot-end" and staged is not None:
            rows, staged = staged, None
        elif kind in {"reset", "snapshot-start"}:
            rows, staged = ({}, None) if kind == "reset" else (rows, {})
        elif "type" in event:
            target = rows if staged is None else staged
            target.pop((event["type"], event["key"]), None)
            if kind != "delete":
                target[event["type"], event["key"]] = event["value"]
    return rows


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
CHANGES = st.builds(
    lambda type_, key, operation, value: {
        "type": type_,
        "key": key,
        "value": value,
        "headers": {"operation": operation},
    },
    st.sampled_from("tu"),
    st.sampled_from(["a", "b", "é", "\0"]),
    st.sampled_from(["insert", "update", "upsert", "delete"]),
    VALUES,
)
CONTROLS = st.sampled_from(
    ["reset", "snapshot-start", "snapshot-start", "snapshot-end", "snapshot-end", "up-to-date"]
).map(lambda control: {"headers": {"control": control}})
EVENTS = st.lists(st.one_of(CHANGES, CHANGES, CHANGES, CONTROLS), max_size=40)


def encoded(events: list[dict[str, Any]]) -> bytes:
    return json.dumps(events).encode()
