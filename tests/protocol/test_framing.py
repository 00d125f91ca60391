"""JSON messages are stored one on each line, and bytes are split only at boundaries."""

import json
from itertools import pairwise
from typing import Any, NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.protocol.byte_requests import serve
from headwater.protocol.framing import (
    _MAX_WINDOW,
    EmptyArray,
    InvalidJson,
    check_json,
    complete_prefix,
    find_split,
    frame,
    frame_json,
    is_boundary,
    render,
    skip_messages,
)

JSON = "application/json"
TEXT = "text/plain"
BINARY = "application/octet-stream"

characters = st.characters(exclude_categories=["Cs"])
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(characters)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(characters), inner),
    max_leaves=12,
)
layouts = st.sampled_from(
    [
        {},
        {"indent": 1},
        {"indent": "\t"},
        {"separators": (",", ":")},
        {"separators": (" ,\r\n", "\n:\r")},
        {"ensure_ascii": False},
    ]
)
pads = st.text(" \t\r\n", max_size=4)


def rendered(stored: bytes) -> Any:
    return json.loads(b"".join(render([stored] if stored else [], JSON)))


def reject(constant: str) -> NoReturn:
    raise ValueError(constant)


@given(values, layouts, pads, pads)
def test_appended_messages_are_rendered(
    value: Any, layout: dict[str, Any], before: str, after: str
) -> None:
    body = (before + json.dumps(value, **layout) + after).encode()
    stored = frame_json(body)
    if value == []:
        assert stored == EmptyArray()
        return
    assert isinstance(stored, bytes)
    assert rendered(stored) == (value if isinstance(value, list) else [value])


@given(st.lists(values, min_size=1, max_size=5), layouts)
def test_a_newline_byte_is_always_the_end_of_a_message(
    messages: list[Any], layout: dict[str, Any]
) -> None:
    stored = frame_json(json.dumps(messages, **layout).encode())
    assert isinstance(stored, bytes)
    lines = stored.split(b"\n")
    assert lines.pop() == b""
    assert all(line.endswith(b",") for line in lines)
    assert [json.loads(line[:-1]) for line in lines] == messages


@given(st.lists(values, min_size=1, max_size=5))
def test_exactly_one_level_is_flattened(messages: list[Any]) -> None:
    once = frame_json(json.dumps(messages).encode())
    wrapped = frame_json(json.dumps([messages]).encode())
    assert isinstance(once, bytes)
    assert isinstance(wrapped, bytes)
    assert rendered(once) == messages
    assert rendered(wrapped) == [messages]


@given(st.lists(st.lists(values, min_size=1, max_size=3), min_size=1, max_size=4))
def test_successive_appends_are_rendered_as_one_array(batches: list[list[Any]]) -> None:
    stored = [frame_json(json.dumps(batch).encode()) for batch in batches]
    joined = b"".join(piece for piece in stored if isinstance(piece, bytes))
    assert rendered(joined) == [message for batch in batches for message in batch]


@given(st.lists(values, min_size=1, max_size=4), st.lists(st.integers(0, 200), max_size=5))
def test_an_array_is_rendered_from_buffers_split_anywhere(
    messages: list[Any], places: list[int]
) -> None:
    stored = frame_json(json.dumps(messages).encode())
    assert isinstance(stored, bytes)
    marks = sorted({0, len(stored), *(place % len(stored) for place in places)})
    buffers = [memoryview(stored)[a:b] for a, b in pairwise(marks)]
    assert json.loads(b"".join(render(buffers, JSON))) == messages


def agrees_with_json(body: bytes) -> None:
    try:
        expected = json.loads(body.decode("utf-8"), parse_constant=reject)
    except (ValueError, RecursionError):
        assert isinstance(frame_json(body), InvalidJson)
        return
    stored = frame_json(body)
    if expected == []:
        assert stored == EmptyArray()
        return
    assert isinstance(stored, bytes), stored
    assert rendered(stored) == (expected if isinstance(expected, list) else [expected])


@given(st.text('{}[]",:01-+.eE\\untfalsr \t\r\n\x00\x7fé', max_size=12).map(str.encode))
@example(b'"a\nb"')
@example(b'{"a\rb": 1}')
@example(b'["x", "\n"]')
@example(b"1e999")
@example(b"-0")
@example(b"\xef\xbb\xbf1")
@example(b'{"a": 1, "a": 2}')
@example(b"[1]\n[2]")
@example(b"1\n2")
def test_valid_json_is_accepted(body: bytes) -> None:
    agrees_with_json(body)


@given(values, st.integers(0, 200), st.binary(max_size=3))
def test_a_mutated_body_is_valid_only_if_json_accepts_it(value: Any, at: int, piece: bytes) -> None:
    whole = json.dumps(value, indent=1, ensure_ascii=False).encode()
    place = at % (len(whole) + 1)
    body = whole[:place] + piece + whole[place + 1 :]
    if b"\\ud" not in body.lower():  # a lone surrogate has a rule of its own, below
        agrees_with_json(body)


@pytest.mark.parametrize(
    "body", [b"", b" \n", b"\xff", b'"\xed\xa0\x80"', b"NaN", b"[Infinity]", b"{'a': 1}"]
)
def test_a_body_that_is_not_json_is_refused_with_a_reason(body: bytes) -> None:
    outcome = frame_json(body)
    assert isinstance(outcome, InvalidJson)
    assert outcome.reason


def test_a_lone_surrogate_is_refused() -> None:
    assert isinstance(frame_json(b'"\\ud800"'), InvalidJson)
    assert isinstance(frame_json(b'"\\ud83d\\ude00"'), bytes)


@pytest.mark.parametrize("body", [b"[" * 100_000, b"[" * 50_000 + b"]" * 50_000])
def test_a_deeply_nested_body_is_refused(body: bytes) -> None:
    assert isinstance(frame_json(body), InvalidJson)


@given(st.binary())
def test_other_types_are_stored_and_rendered_byte_for_byte(body: bytes) -> None:
    assert frame(body, BINARY) == body
    assert frame(body, TEXT) == body
    assert b"".join(render([body], BINARY)) == body


def test_no_bytes_are_rendered_as_an_empty_array() -> None:
    assert b"".join(render([], JSON)) == b"[]"
    assert b"".join(render([], TEXT)) == b""


@given(st.lists(values, min_size=1, max_size=5), st.integers(1, 100))
def test_a_window_of_json_is_cut_after_a_message_or_not_at_all(
    messages: list[Any], size: int
) -> None:
    stored = frame_json(json.dumps(messages).encode())
    assert isinstance(stored, bytes)
    window = memoryview(stored)[:size]
    length = complete_prefix(window, JSON)
    if length is None:
        assert b"\n" not in bytes(window)
    else:
        assert 0 < length <= len(window)
        assert stored[length - 1 : length] == b"\n"
        assert b"\n" not in bytes(window[length:])


@given(st.text(characters, min_size=1), st.integers(1, 40))
def test_a_window_of_text_is_cut_between_characters_or_not_at_all(text: str, size: int) -> None:
    window = text.encode()[:size]
    length = complete_prefix(window, TEXT)
    if length is None:
        assert len(window) < 4
    else:
        assert 0 < length <= len(window)
        assert text.startswith(window[:length].decode())
        assert len(window) - length < 4


@given(st.binary(min_size=1))
def test_any_window_can_be_cut(window: bytes) -> None:
    assert complete_prefix(window, BINARY) == len(window)
    length = complete_prefix(window, TEXT)
    assert length is None or 0 < length <= len(window)
    assert length is not None or len(window) < 4


class Stored:
    """Stored bytes that remember what was read of them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ranges: list[tuple[int, int]] = []

    def read(self, start: int, end: int) -> memoryview:
        assert 0 <= start < end <= len(self.data)
        self.ranges.append((start, end))
        return memoryview(self.data)[start:end]

    @property
    def bytes_read(self) -> int:
        return sum(end - start for start, end in self.ranges)


def find(data: bytes, begin: int, limit: int, media: str) -> int:
    return serve(find_split(begin, limit, len(data), media), Stored(data).read)


@given(st.lists(values, min_size=1, max_size=5), st.integers(0, 4), st.integers(1, 100))
def test_json_is_cut_at_the_last_message_within_the_limit_or_the_first_after_it(
    messages: list[Any], skipped: int, limit: int
) -> None:
    stored = frame_json(json.dumps(messages).encode())
    assert isinstance(stored, bytes)
    ends = [at + 1 for at, byte in enumerate(stored) if byte == ord("\n")]
    begin = [0, *ends[:-1]][skipped % len(ends)]
    within = [end for end in ends if begin < end <= begin + limit]
    expected = within[-1] if within else next(end for end in ends if end > begin + limit)
    assert find(stored, begin, limit, JSON) == expected


@pytest.mark.parametrize("size", [1, 1000, 16_383, 16_384, 16_385, 40_000, 900_000, 3_000_000])
@pytest.mark.parametrize("limit", [1, 100, 50_000, 1 << 20])
def test_long_messages_are_cut_by_the_same_rule(size: int, limit: int) -> None:
    line = b"x" * (size - 1) + b"\n"
    count = 2 + limit // size
    stored = Stored(line * count)
    found = serve(find_split(size, limit, len(stored.data), JSON), stored.read)
    assert found == size + max(1, limit // size) * size
    assert stored.bytes_read <= 2 * max(size, 16 * 1024)


def test_only_bytes_near_the_split_are_read() -> None:
    stored = Stored(b"0123456789,\n" * 200_000)
    assert (
        serve(find_split(12, 1 << 20, len(stored.data), JSON), stored.read)
        == 12 + (1 << 20) // 12 * 12
    )
    assert stored.bytes_read <= 16 * 1024


@given(st.text(characters, min_size=1), st.integers(1, 40))
@example("\U0001d11e", 1)
@example("a\U0001d11e", 2)
def test_text_is_cut_between_characters(text: str, limit: int) -> None:
    stored = text.encode()
    found = find(stored, 0, limit, TEXT)
    assert text.startswith(stored[:found].decode())
    if limit >= len(stored):
        assert found == len(stored)
    elif found > limit:
        assert found == len(text[0].encode())
    else:
        assert limit - 4 < found <= limit


@given(st.binary(min_size=1), st.integers(1, 300))
@example(b"\xf0\x9f\xc3\x80", 1)
@example(b"\x80\x80\x80\x80\x80", 4)
@example(b"\xf0\x9f", 1)
def test_any_bytes_can_be_cut(data: bytes, limit: int) -> None:
    assert find(data, 0, limit, BINARY) == min(limit, len(data))
    assert 0 < find(data, 0, limit, TEXT) <= min(len(data), max(limit, 4))


@given(st.lists(values, min_size=1, max_size=5), st.integers(1, 8), st.sampled_from([0, 300_000]))
def test_messages_are_counted_by_their_line_ends(
    messages: list[Any], count: int, length: int
) -> None:
    messages = ["x" * length, *messages]  # longer than a window, or not
    stored = frame_json(json.dumps(messages).encode())
    assert isinstance(stored, bytes)
    end, passed = serve(skip_messages(0, len(stored), count), lambda a, b: stored[a:b])
    assert passed == min(count, len(messages))
    assert rendered(stored[:end]) == messages[:count]


def test_the_beginning_and_every_byte_of_other_types_are_boundaries() -> None:
    assert is_boundary(None, JSON)
    assert not is_boundary(ord(","), JSON)
    assert is_boundary(ord(","), TEXT)


@pytest.mark.parametrize(
    "character",
    ["\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"],
)
def test_text_is_cut_after_the_last_whole_character_within_the_limit(character: str) -> None:
    stored = f"a{character}{character}b".encode()
    size = len(character.encode())
    ends = (1, 1 + size, 1 + 2 * size)
    for limit in range(1, len(stored)):
        assert find(stored, 0, limit, TEXT) == max(end for end in ends if end <= limit)


@pytest.mark.parametrize("character", ["\x80", "\u07ff", "\u0800", "\uffff", "\U00010000"])
def test_a_first_character_longer_than_the_limit_is_returned_whole(character: str) -> None:
    size = len(character.encode())
    for limit in range(1, size):
        assert find(f"{character}b".encode(), 0, limit, TEXT) == size


@pytest.mark.parametrize("character", ["a", "\x80", "\u0800", "\uffff", "\U00010000", "\U0010ffff"])
def test_a_window_of_text_that_ends_with_a_character_is_returned_whole(character: str) -> None:
    window = f"ab{character}".encode()
    assert complete_prefix(window, TEXT) == len(window)
    assert complete_prefix(window[:-1], TEXT) == 2


@pytest.mark.parametrize(
    ("body", "stored"),
    [(b"{\r}", b"{ },\n"), (b"[1,\r2]", b"1,\n2,\n"), (b"[{\r\n}]", b"{  },\n")],
)
def test_a_carriage_return_is_not_stored(body: bytes, stored: bytes) -> None:
    assert frame_json(body) == stored


@pytest.mark.parametrize("body", [b"\x0c1", b"1\x0b", b"\xa01"])
def test_whitespace_that_json_does_not_allow_is_refused(body: bytes) -> None:
    assert isinstance(frame_json(body), InvalidJson)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'"\xff"', "byte 1 is not UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b"{", "truncated"),
        (b"1 2", "malformed"),
    ],
)
def test_a_refused_body_has_a_reason(body: bytes, reason: str) -> None:
    refusal = frame_json(body)
    assert isinstance(refusal, InvalidJson)
    assert reason in refusal.reason


@pytest.mark.parametrize("place", [-1, 0, 1])
def test_messages_that_end_with_a_window_are_skipped(place: int) -> None:
    end = _MAX_WINDOW + place  # the newline of the first message
    stored = Stored(b"1" * (end - 1) + b",\n2,\n")
    assert serve(skip_messages(0, len(stored.data), 1), stored.read) == (end + 1, 1)
    assert serve(skip_messages(0, len(stored.data), 2), stored.read) == (end + 4, 2)


def test_only_the_requested_number_of_messages_is_skipped() -> None:
    stored = Stored(b"1,\n" + b"2" * (2 * _MAX_WINDOW) + b",\n3,\n")
    assert serve(skip_messages(0, len(stored.data), 1), stored.read) == (3, 1)


def test_only_the_end_of_the_last_message_has_to_be_in_memory() -> None:
    elsewhere = object()
    assert render([elsewhere, b",\n"], JSON) == [b"[", elsewhere, b"", b"]"]


def test_json_is_checked_like_the_body_of_an_append() -> None:
    assert check_json(b' {"a": [1, "\xc3\xa4"]} ') is None
    for wrong in (b"", b"1,2", b"hello", b'"\xff"', b"[" * 100_000):
        assert check_json(wrong), wrong[:10]
