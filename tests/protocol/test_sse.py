"""SSE events: a parser that follows the standard gets the payload back."""

import base64
import json
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headwater.protocol.framing import frame_json
from headwater.protocol.offsets import Offset
from headwater.protocol.sse import control_event, data_event

JSON = "application/json"
TEXT = "text/plain"

characters = st.characters(exclude_categories=["Cs"])
broken_text = st.text(st.sampled_from("\r\n: ab\t") | characters, min_size=1)


def parse(stream: bytes) -> list[tuple[str, str]]:
    """Parse as the standard says (WHATWG HTML, 9.2.6)."""
    events = []
    kind, data = "", ""
    for line in re.split("\r\n|\r|\n", stream.decode("utf-8"))[:-1]:
        if line == "":
            if data:
                events.append((kind or "message", data.removesuffix("\n")))
            kind, data = "", ""
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                kind = value
            elif field == "data":
                data += value + "\n"
    return events


@given(st.lists(st.recursive(st.integers() | st.text(characters), st.lists), min_size=1))
def test_json_is_decoded_from_its_event(messages: list[Any]) -> None:
    stored = frame_json(json.dumps(messages, ensure_ascii=False).encode())
    assert isinstance(stored, bytes)
    [(kind, data)] = parse(data_event(stored, JSON))
    assert kind == "data"
    assert json.loads(data) == messages


@given(broken_text)
@example(" leading space")
@example("one\n two\n  three")
@example("\n")
@example("a\r\n\r\nevent: control\rdata: forged\n\n")
def test_text_is_decoded_with_newlines_as_line_breaks(text: str) -> None:
    [(kind, data)] = parse(data_event(text.encode(), TEXT))
    assert kind == "data"
    assert data == text.replace("\r\n", "\n").replace("\r", "\n")


@given(st.binary(min_size=1))
def test_bytes_are_decoded_from_base64(stored: bytes) -> None:
    [(kind, data)] = parse(data_event(stored, "application/x-thing"))
    assert kind == "data"
    assert base64.b64decode(data, validate=True) == stored
    assert len(data) % 4 == 0


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_a_control_event_reports_the_position(
    byte: int, cursor: int, up_to_date: bool, closed: bool
) -> None:
    offset = Offset(3, byte)
    event = control_event(offset, cursor, up_to_date=up_to_date, closed=closed)
    [(kind, data)] = parse(event)
    control = json.loads(data)
    assert kind == "control"
    assert control["streamNextOffset"] == str(offset)
    assert control.get("streamClosed", False) is closed
    assert control.get("upToDate", False) is (up_to_date or closed)
    assert closed or control["streamCursor"] == str(cursor)


@given(st.lists(broken_text, min_size=1, max_size=5))
def test_successive_events_are_separate(texts: list[str]) -> None:
    control = control_event(Offset(1, 2), 3, up_to_date=True)
    stream = b"".join(data_event(text.encode(), TEXT) + control for text in texts)
    assert [kind for kind, _ in parse(stream)] == ["data", "control"] * len(texts)


def test_a_control_event_reports_closure_only_on_request() -> None:
    assert b"streamClosed" not in control_event(Offset(1, 2), 3, up_to_date=True)


def test_base64_is_one_line_and_the_event_ends_after_it() -> None:
    stored = bytes(100)
    assert data_event(stored, "image/png") == b"event: data\ndata:%b\n\n" % base64.b64encode(stored)
