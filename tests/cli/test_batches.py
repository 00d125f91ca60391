"""Cutting input into batches: nothing is lost, nothing waits long, nothing grows without bound."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.batches import (
    MAX_BYTES,
    MAX_MESSAGES,
    BadInput,
    Batch,
    Bytes,
    Cutter,
    JsonLines,
    batches,
)


@contextmanager
def pipe(*pieces: bytes, pause: float = 0.0) -> Iterator[int]:
    """A pipe that another thread writes to, and closes."""
    ours, theirs = os.pipe()

    def write() -> None:
        with os.fdopen(theirs, "wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
                time.sleep(pause)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield ours
    finally:
        thread.join()
        os.close(ours)


def cut(
    cutter: Cutter, *pieces: bytes, pause: float = 0.0, first: int | None = None
) -> list[Batch]:
    with pipe(*pieces, pause=pause) as number:
        return list(batches(number, cutter, first))


def messages(batch: Batch) -> list[object]:
    decoded = msgspec.json.decode(batch.body)
    assert isinstance(decoded, list)
    assert len(decoded) == batch.size
    return decoded


def test_lines_that_come_together_are_one_batch_and_the_last_is_marked() -> None:
    (batch,) = cut(JsonLines(), b"1\n[2]\n\n  \n", b"3")
    assert messages(batch) == [1, [2], 3]
    assert batch.last


def test_lines_that_come_one_by_one_are_sent_as_they_come() -> None:
    found = cut(JsonLines(), b"1\n", b"2\n", b"3\n", pause=0.2)
    assert [messages(batch) for batch in found] == [[1], [2], [3]]
    # The end of the input comes later than the last line, so no batch can know that it is the last.
    assert not any(batch.last for batch in found)


def test_a_line_that_comes_in_parts_is_one_message() -> None:
    found = cut(JsonLines(), b'{"a":', b"1}", b"\n2\n", pause=0.1)
    assert [message for batch in found for message in messages(batch)] == [{"a": 1}, 2]


def test_batches_are_bounded_in_number_and_in_bytes() -> None:
    found = cut(JsonLines(), b"1\n" * (2 * MAX_MESSAGES + 5))
    assert max(batch.size for batch in found) <= MAX_MESSAGES
    assert sum(batch.size for batch in found) == 2 * MAX_MESSAGES + 5
    long_line = b'"%s"\n' % (b"x" * 100_000)
    found = cut(JsonLines(), long_line * 30)
    assert sum(batch.size for batch in found) == 30
    assert max(len(batch.body) for batch in found) < 2 * MAX_BYTES


def test_skipped_messages_are_left_out_and_not_even_checked() -> None:
    (batch,) = cut(JsonLines(skip=2), b"nonsense\n\n2\n3\n4\n")
    assert messages(batch) == [3, 4]


def test_what_came_before_a_bad_line_is_sent_and_the_line_is_named() -> None:
    with pipe(b"1\n\n2\n{oops\n4\n") as number:
        found = batches(number, JsonLines())
        good = next(found)
        assert messages(good) == [1, 2]
        assert not good.last
        with pytest.raises(BadInput, match="Line 4 of the"):
            next(found)


def test_the_first_batch_can_be_made_to_hold_exactly_what_it_held_before() -> None:
    found = cut(JsonLines(skip=1), *(b"%d\n" % n for n in range(6)), pause=0.05, first=3)
    assert messages(found[0]) == [1, 2, 3]
    assert [message for batch in found[1:] for message in messages(batch)] == [4, 5]
    with pytest.raises(BadInput, match="2 messages before the end of the unconfirmed batch"):
        cut(JsonLines(), b"1\n", first=3)


def test_bytes_are_cut_behind_lines_and_sent_without_one_after_a_moment() -> None:
    found = cut(Bytes(), b"one\ntw", b"o\nprompt> ", b"yes\n", pause=0.2)
    assert [batch.body for batch in found] == [b"one\n", b"tw", b"o\n", b"prompt> ", b"yes\n"]


def test_bytes_are_counted_for_skipping_and_for_the_first_batch() -> None:
    found = cut(Bytes(skip=3), b"abcdefgh", first=2)
    assert [batch.body for batch in found] == [b"de", b"fgh"]
    assert [batch.size for batch in found] == [2, 3]


def test_an_empty_input_is_no_batch() -> None:
    assert cut(JsonLines()) == []
    assert cut(Bytes()) == []


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5), st.integers(0, 20))
def test_bytes_come_out_as_they_went_in(data: bytes, cuts: list[int], skip: int) -> None:
    cutter = Bytes(skip)
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        cutter.feed(data[start:end])
    cutter.end()
    found = b""
    while cutter.waiting:
        found += cutter.cut()[0]
    assert found == data[skip:]


@given(
    st.lists(st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)),
    st.integers(1, 7),
)
def test_messages_come_out_as_they_went_in(values: list[object], step: int) -> None:
    data = b"".join(msgspec.json.encode(value) + b"\r\n" for value in values)
    cutter = JsonLines()
    for start in range(0, len(data), step):
        cutter.feed(data[start : start + step])
    cutter.end()
    found: list[object] = []
    while cutter.waiting:
        found += msgspec.json.decode(cutter.cut()[0])
    assert found == values
