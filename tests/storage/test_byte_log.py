"""A byte log returns the bytes that were appended, whatever was dropped meanwhile."""

import hypothesis.strategies as st
from hypothesis import given, settings

from headwater.storage.byte_log import SEAL_AT, ByteLog
from tests.support.effort import examples

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, SEAL_AT + 10)),
        st.tuples(st.just("append"), st.integers(0, 100)),
        st.tuples(st.just("drop"), st.integers(0, 2 * SEAL_AT)),
        st.tuples(st.just("freeze"), st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=examples(50, 500), deadline=None)
@given(st.integers(0, 10**15), STEPS, st.data())
def test_a_log_returns_the_bytes_that_were_appended(
    start: int, steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    log = ByteLog(start)
    whole = b""
    first = start
    for number, (step, size) in enumerate(steps):
        if step == "append":
            piece = bytes([number]) * size
            log.append(piece)
            whole += piece
        elif step == "freeze":
            assert b"".join(log.freeze()) == whole[first - start :]
        else:
            log.drop_before(first + size)
            first = min(first + size, start + len(whole))
        assert (log.start, log.end) == (first, start + len(whole))
        begin = data.draw(st.integers(first, log.end))
        end = data.draw(st.integers(begin, log.end))
        assert b"".join(log.slice(begin, end)) == whole[begin - start : end - start]
        assert b"".join(log.slice(log.start, log.end)) == whole[first - start :]


def test_returned_buffers_do_not_change() -> None:
    """A reader may still hold buffers when the log grows or drops them."""
    log = ByteLog(0)
    log.append(b"a" * (SEAL_AT - 1))
    log.append(b"b" * 10)
    log.append(b"c" * 10)
    buffers = log.slice(5, log.end)
    expected = b"a" * (SEAL_AT - 6) + b"b" * 10 + b"c" * 10
    log.append(b"d" * SEAL_AT)
    log.drop_before(SEAL_AT)
    assert b"".join(buffers) == expected


def test_frozen_bytes_are_not_copied_and_stay_as_they_were() -> None:
    log = ByteLog(0)
    log.append(b"a" * 100)
    (frozen,) = log.freeze()
    log.append(b"b" * 100)
    assert frozen == b"a" * 100
    (_, again) = log.freeze()
    assert again == b"b" * 100
    log.drop_before(100)
    assert log.freeze()[0] is again


def test_dropping_frees_whole_blocks() -> None:
    log = ByteLog(0)
    for _ in range(8):
        log.append(bytes(SEAL_AT))
    log.drop_before(7 * SEAL_AT)
    assert sum(map(len, log.slice(log.start, log.end))) == SEAL_AT
