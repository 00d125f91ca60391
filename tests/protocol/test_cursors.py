"""Cursors increase with time, and never decrease."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.caching import (
    EPOCH,
    INTERVAL_SECONDS,
    MAX_JITTER_SECONDS,
    interval_at,
    next_cursor,
    parse_cursor,
)

times = st.floats(EPOCH, EPOCH + 10**10)
jitters = st.floats(0, 1, exclude_max=True)


def test_intervals_are_twenty_seconds_from_the_epoch() -> None:
    assert interval_at(EPOCH) == 0
    assert interval_at(EPOCH + 19.9) == 0
    assert interval_at(EPOCH + 20) == 1
    assert interval_at(EPOCH + 86400) == 4320


@given(times, jitters)
def test_without_a_cursor_the_current_interval_is_returned(now: float, jitter: float) -> None:
    assert next_cursor(None, now, jitter) == interval_at(now)


@given(st.integers(0, 10**15), times, jitters)
def test_a_cursor_never_goes_back_and_never_repeats(echoed: int, now: float, jitter: float) -> None:
    following = next_cursor(echoed, now, jitter)
    assert following > echoed
    assert following >= interval_at(now)
    if echoed >= interval_at(now):
        assert 1 <= following - echoed <= MAX_JITTER_SECONDS // INTERVAL_SECONDS


@given(st.lists(st.tuples(st.floats(0, 100), jitters), min_size=1, max_size=30))
def test_a_client_that_echoes_its_cursor_gets_greater_ones(
    steps: list[tuple[float, float]],
) -> None:
    now, cursor = float(EPOCH), -1
    for seconds, jitter in steps:
        now += seconds
        following = next_cursor(None if cursor < 0 else cursor, now, jitter)
        assert following > cursor
        cursor = following


@given(st.integers(0, 10**15 - 1))
def test_a_cursor_is_parsed(cursor: int) -> None:
    assert parse_cursor(str(cursor)) == cursor


@given(st.none() | st.text() | st.sampled_from(["-1", "1.5", "", "\u0663", "9" * 16, "9" * 5000]))
def test_a_malformed_cursor_counts_as_absent(text: str | None) -> None:
    cursor = parse_cursor(text)
    assert cursor is None or (text is not None and int(text) == cursor)


@pytest.mark.parametrize(("jitter", "intervals"), [(0.0, 1), (0.5, 91), (0.9999, 180)])
def test_the_jitter_spreads_cursors_over_an_hour(jitter: float, intervals: int) -> None:
    assert next_cursor(1000, EPOCH, jitter) == 1000 + intervals


def test_the_epoch_is_that_of_the_protocol() -> None:
    assert datetime.fromtimestamp(EPOCH, UTC) == datetime(2024, 10, 9, tzinfo=UTC)


def test_a_cursor_that_is_too_long_counts_as_absent() -> None:
    assert parse_cursor("9" * 15) == 10**15 - 1
    assert parse_cursor("1" + "0" * 15) is None
