"""Where a fork diverges, and which expiry it gets."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.byte_requests import serve
from headwater.protocol.expiry import NEVER, Expiry, inherited_expiry
from headwater.protocol.forks import ForkOrigin, ForkRequest, resolve_fork
from headwater.protocol.framing import frame_json
from headwater.protocol.offsets import (
    START,
    Lineage,
    Offset,
    OffsetBeyondTail,
    OffsetInsideMessage,
    StaleIncarnation,
    UnknownPosition,
)
from headwater.protocol.refusals import SubOffsetOvershoot

JSON = "application/json"
BINARY = "application/octet-stream"
LINEAGE = Lineage(4)


def point(request: ForkRequest, stored: bytes, media: str, lineage: Lineage = LINEAGE) -> Any:
    requests = resolve_fork(request, lineage, len(stored), media)
    return serve(requests, lambda start, end: memoryview(stored)[start:end])


def stored_json(messages: list[Any]) -> bytes:
    stored = frame_json(json.dumps(messages).encode())
    assert isinstance(stored, bytes)
    return stored


lists = st.lists(st.integers() | st.text("ab\n,é") | st.lists(st.integers()), min_size=1)


@given(lists, st.data())
def test_a_fork_of_a_json_stream_skips_whole_messages(
    messages: list[Any], data: st.DataObject
) -> None:
    before = data.draw(st.integers(0, len(messages)))
    sub = data.draw(st.integers(0, len(messages) + 2))
    stored = stored_json(messages)
    anchor = len(stored_json(messages[:before])) if before else 0
    outcome = point(ForkRequest("s", Offset(4, anchor), sub), stored, JSON)
    if before + sub > len(messages):
        assert outcome == SubOffsetOvershoot(sub, len(messages) - before, "messages")
    else:
        taken = messages[: before + sub]
        assert outcome == ForkOrigin(
            "s", Offset(4, anchor), sub, len(stored_json(taken)) if taken else 0
        )


@given(st.binary(), st.data())
def test_a_fork_of_any_other_stream_skips_bytes(stored: bytes, data: st.DataObject) -> None:
    anchor = data.draw(st.integers(0, len(stored)))
    sub = data.draw(st.integers(0, len(stored) + 3))
    outcome = point(ForkRequest("s", Offset(4, anchor), sub), stored, BINARY)
    if anchor + sub > len(stored):
        assert outcome == SubOffsetOvershoot(sub, len(stored) - anchor, "bytes")
    else:
        assert outcome == ForkOrigin("s", Offset(4, anchor), sub, anchor + sub)


@given(lists)
def test_a_fork_without_an_offset_diverges_at_the_tail(messages: list[Any]) -> None:
    stored = stored_json(messages)
    tail = Offset(4, len(stored))
    assert point(ForkRequest("s"), stored, JSON) == ForkOrigin("s", tail, 0, len(stored))


@given(lists)
def test_a_fork_does_not_start_inside_a_message(messages: list[Any]) -> None:
    stored = stored_json(messages)
    for byte in range(1, len(stored)):
        outcome = point(ForkRequest("s", Offset(4, byte)), stored, JSON)
        inside = stored[byte - 1 : byte] != b"\n"
        assert isinstance(outcome, OffsetInsideMessage if inside else ForkOrigin)


@pytest.mark.parametrize(
    ("offset", "refusal"),
    [
        (Offset(4, 6), OffsetBeyondTail(Offset(4, 6), Offset(4, 5))),
        (Offset(3, 5), StaleIncarnation(Offset(3, 5), 4)),
        (Offset(5, 5), UnknownPosition(Offset(5, 5))),
    ],
)
def test_an_offset_that_the_source_does_not_have_is_refused(
    offset: Offset, refusal: object
) -> None:
    assert point(ForkRequest("s", offset), b"12345", BINARY) == refusal


def test_an_inherited_offset_of_the_source_can_be_forked_from() -> None:
    lineage = Lineage(2).fork(3, 4)
    outcome = point(ForkRequest("s", Offset(2, 2), 2), b"12345", BINARY, lineage)
    assert outcome == ForkOrigin("s", Offset(2, 2), 2, 4)


def test_both_spellings_of_the_start_are_equivalent() -> None:
    origin = ForkOrigin("s", Offset(4, 0), 0, 0)
    assert ForkRequest("s", START).matches(origin)
    assert ForkRequest("s", Offset(4, 0)).matches(origin)
    assert not ForkRequest("s", Offset(4, 1)).matches(origin)
    assert not ForkRequest("s", START, 1).matches(origin)


@pytest.mark.parametrize("source", [NEVER, Expiry(ttl=10), Expiry(expires_at="a", instant=1.0)])
def test_a_fork_has_the_requested_expiry_or_that_of_its_source(source: Expiry) -> None:
    assert inherited_expiry(source, NEVER) == source
    for asked in (Expiry(ttl=0), Expiry(ttl=30), Expiry(expires_at="b", instant=2.0)):
        assert inherited_expiry(source, asked) == asked


def test_a_fork_and_its_request_are_described_by_the_fork_point() -> None:
    assert ForkRequest("s").describe() == "the tail+0"
    assert ForkRequest("s", Offset(4, 7), 2).describe() == f"{Offset(4, 7)}+2"
    assert ForkOrigin("s", Offset(4, 7), 2, 9).describe() == f"{Offset(4, 7)}+2"
