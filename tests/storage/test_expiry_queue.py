"""Deadlines are returned in order once they have passed, except those of deleted streams."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.storage.expiry_queue import ExpiryQueue


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20))), st.integers(0, 50))
def test_deadlines_that_have_passed_are_returned_in_order(
    entries: list[tuple[int, int]], now: int
) -> None:
    queue: ExpiryQueue[int] = ExpiryQueue(lambda _: True)
    for deadline, stream in entries:
        queue.add(deadline, stream)
    due = []
    while (key := queue.pop(now)) is not None:
        due.append(key)
    passed = sorted(entry for entry in entries if entry[0] <= now)
    assert due == [stream for _, stream in passed]
    assert len(queue) == len(entries) - len(passed)


def test_entries_of_deleted_streams_do_not_accumulate() -> None:
    live: set[int] = set()
    queue: ExpiryQueue[int] = ExpiryQueue(live.__contains__)
    for number in range(100_000):
        live.add(number)
        queue.add(float(number), number)
        live.discard(number - 10)
    assert len(queue) < 3000
    found = set()
    while (key := queue.pop(1e9)) is not None:
        found.add(key)
    assert live <= found


def test_deadlines_of_one_stream_do_not_accumulate_and_the_earliest_remains() -> None:
    queue: ExpiryQueue[int] = ExpiryQueue(lambda _: True)
    for deadline in range(100_000):
        queue.add(float(deadline), 7)
    assert len(queue) < 3000
    assert queue.pop(0.0) == 7
