"""When a request is sent again, and after how long."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.client import NO_RETRY, Retry
from headwater.errors import (
    ClientError,
    ConnectionLost,
    Overloaded,
    RequestRefused,
    ServerFailed,
    Unreachable,
)

URL = "http://host/v1/stream/x"
LOST = ConnectionLost(URL, "http://host", "reset")
UNREACHABLE = Unreachable(URL, "http://host", "refused")


def refused(kind: type[RequestRefused], status: int) -> RequestRefused:
    return kind("no", url=URL, status=status, code="")


@given(st.integers(0, 30), st.floats(0, 1, exclude_max=True))
def test_delays_increase_up_to_a_limit_with_jitter(attempt: int, jitter: float) -> None:
    retry = Retry(attempts=100, first_delay=0.1, max_delay=5)
    delay = retry.delay(LOST, attempt, jitter)
    assert delay is not None
    assert delay == jitter * min(5, 0.1 * 2**attempt)


def test_no_delay_follows_the_last_attempt() -> None:
    retry = Retry(attempts=3)
    assert [retry.delay(UNREACHABLE, n, 0.5) is None for n in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert NO_RETRY.delay(UNREACHABLE, 0, 0.5) is None


def test_only_transient_errors_are_retried() -> None:
    retry = Retry()
    passing: list[ClientError] = [
        LOST,
        UNREACHABLE,
        refused(Overloaded, 429),
        refused(Overloaded, 503),
        refused(ServerFailed, 502),
        refused(ServerFailed, 504),
        refused(ServerFailed, 500),
    ]
    assert all(retry.delay(error, 0, 0.5) is not None for error in passing)
    lasting = [refused(RequestRefused, 400), refused(ServerFailed, 501)]
    assert all(retry.delay(error, 0, 0.5) is None for error in lasting)


def test_retry_after_is_respected_unless_it_is_too_long() -> None:
    retry = Retry(first_delay=0.2, max_retry_after=60)
    busy = Overloaded("busy", url=URL, status=429, code="")
    busy.retry_after = 3
    assert retry.delay(busy, 0, 0.5) == 3.1
    busy.retry_after = 61
    assert retry.delay(busy, 0, 0.5) is None
