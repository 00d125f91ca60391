"""The parser returns the same events however the bytes are split."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client._reader import SseEvent, SseParser
from headwater.protocol.sse import data_event


def parse(*pieces: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_specification_ends_a_line(line_end: bytes) -> None:
    body = line_end.join([b"event: data", b"data: one", b"data: two", b"", b""])
    assert parse(body) == [SseEvent("data", b"one\ntwo")]


def test_only_one_space_after_the_colon_is_removed() -> None:
    assert parse(b"data:  two\ndata:none\n\n") == [SseEvent("message", b" two\nnone")]


def test_a_field_without_a_colon_has_an_empty_value() -> None:
    assert parse(b"data\n\n") == [SseEvent("message", b"")]


def test_comments_unknown_fields_and_events_without_data_are_ignored() -> None:
    assert parse(b": hi\nid: 7\nretry: 5\nevent: control\n\nevent: data\ndata: x\n\n") == [
        SseEvent("data", b"x")
    ]


def test_a_byte_order_mark_is_removed() -> None:
    assert parse(b"\xef\xbb\xbfdata: x\n\n") == [SseEvent("message", b"x")]


def test_an_incomplete_event_is_not_returned() -> None:
    assert parse(b"data: x\n") == []


def test_a_carriage_return_and_its_newline_in_two_pieces_end_one_line() -> None:
    assert parse(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [SseEvent("message", b"a\nb")]


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    st.sampled_from(["application/octet-stream", "text/plain"]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_events_of_the_server_are_parsed_however_they_are_split(
    payloads: list[bytes], media: str, cuts: list[int]
) -> None:
    body = b"".join(data_event(payload, media) for payload in payloads)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    events = parse(*(body[start:end] for start, end in pairwise(edges)))
    assert events == parse(body)
    assert len(events) == len(payloads)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_parsed_alike_however_they_are_split(body: bytes, cut: int) -> None:
    assert parse(body[:cut], body[cut:]) == parse(body)
