"""Cutting input into batches: nothing is lost or delayed, and memory is bounded."""

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli._stdin import (
    MAX_BYTES,
    MAX_MESSAGES,
    BadInput,
    Bytes,
    Cutter,
    InputBatch,
    JsonLines,
    batches,
)
from tests.support.patience import wait_until


@contextmanager
def pipe(*pieces: bytes) -> Iterator[int]:
    """A pipe that another thread writes to, each piece once the one before was read, and closes."""
    ours, theirs = os.pipe()

    def write() -> None:
        with os.fdopen(theirs, "wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
                wait_until(lambda: not is_readable(ours), "reading", pause=0.001)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield ours
    finally:
        thread.join()
        os.close(ours)


def is_readable(number: int) -> bool:
    return bool(select.select([number], [], [], 0)[0])


@contextmanager
def open_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe, of which the test closes the one for writing."""
    ours, theirs = os.pipe()
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def cut(cutter: Cutter, *pieces: bytes, first: int | None = None) -> list[InputBatch]:
    with pipe(*pieces) as number:
        return list(batches(number, cutter, first))


def messages(batch: InputBatch) -> list[object]:
    decoded = msgspec.json.decode(batch.body)
    assert isinstance(decoded, list)
    assert len(decoded) == batch.size
    return decoded


def test_lines_that_arrive_together_are_one_batch_and_the_last_is_marked() -> None:
    (batch,) = cut(JsonLines(), b"1\n[2]\n\n  \n", b"3")
    assert messages(batch) == [1, [2], 3]
    assert batch.last


def test_lines_that_arrive_one_by_one_are_sent_as_they_arrive() -> None:
    with open_pipe() as (number, input_end):
        coming = batches(number, JsonLines())
        for value in (1, 2, 3):
            os.write(input_end, b"%d\n" % value)
            batch = next(coming)
            assert messages(batch) == [value]
            # The end of the input comes later, so no batch can know that it is the last.
            assert not batch.last
        os.close(input_end)
        assert list(coming) == []


def test_a_line_that_arrives_in_parts_is_one_message() -> None:
    found = cut(JsonLines(), b'{"a":', b"1}", b"\n2\n")
    assert [message for batch in found for message in messages(batch)] == [{"a": 1}, 2]


def test_batches_are_limited_in_messages_and_in_bytes() -> None:
    found = cut(JsonLines(), b"1\n" * (2 * MAX_MESSAGES + 5))
    assert max(batch.size for batch in found) <= MAX_MESSAGES
    assert sum(batch.size for batch in found) == 2 * MAX_MESSAGES + 5
    long_line = b'"%s"\n' % (b"x" * 100_000)
    found = cut(JsonLines(), long_line * 30)
    assert sum(batch.size for batch in found) == 30
    assert max(len(batch.body) for batch in found) < 2 * MAX_BYTES


def test_skipped_messages_are_not_checked() -> None:
    (batch,) = cut(JsonLines(skip=2), b"nonsense\n\n2\n3\n4\n")
    assert messages(batch) == [3, 4]


def test_messages_before_an_invalid_line_are_sent_and_the_line_is_named() -> None:
    with pipe(b"1\n\n2\n{oops\n4\n") as number:
        found = batches(number, JsonLines())
        good = next(found)
        assert messages(good) == [1, 2]
        assert not good.last
        with pytest.raises(BadInput, match="Line 4 of the"):
            next(found)


def test_the_first_batch_can_be_given_its_previous_size() -> None:
    found = cut(JsonLines(skip=1), *(b"%d\n" % n for n in range(6)), first=3)
    assert messages(found[0]) == [1, 2, 3]
    assert [message for batch in found[1:] for message in messages(batch)] == [4, 5]
    with pytest.raises(BadInput, match="2 messages before the position"):
        cut(JsonLines(), b"1\n", first=3)


def test_bytes_are_cut_after_lines_or_sent_after_a_moment() -> None:
    with open_pipe() as (number, input_end):
        coming = batches(number, Bytes())
        for piece, bodies in (
            (b"one\ntw", [b"one\n", b"tw"]),
            (b"o\nprompt> ", [b"o\n", b"prompt> "]),
            (b"yes\n", [b"yes\n"]),
        ):
            os.write(input_end, piece)
            assert [next(coming).body for _ in bodies] == bodies
        os.close(input_end)
        assert list(coming) == []


def test_bytes_are_counted_for_skipping_and_for_the_first_batch() -> None:
    found = cut(Bytes(skip=3), b"abcdefgh", first=2)
    assert [batch.body for batch in found] == [b"de", b"fgh"]
    assert [batch.size for batch in found] == [2, 3]


def test_an_empty_input_makes_no_batch() -> None:
    assert cut(JsonLines()) == []
    assert cut(Bytes()) == []


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5), st.integers(0, 20))
def test_bytes_are_batched_unchanged(data: bytes, cuts: list[int], skip: int) -> None:
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
def test_messages_are_batched_unchanged(values: list[object], step: int) -> None:
    data = b"".join(msgspec.json.encode(value) + b"\r\n" for value in values)
    cutter = JsonLines()
    for start in range(0, len(data), step):
        cutter.feed(data[start : start + step])
    cutter.end()
    found: list[object] = []
    while cutter.waiting:
        found += msgspec.json.decode(cutter.cut()[0])
    assert found == values
