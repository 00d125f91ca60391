"""When to send a request again, and after how long."""

from typing import Final

from msgspec import Struct

from headwater.errors import (
    ClientError,
    ConnectionLost,
    Overloaded,
    ServerFailed,
    Unreachable,
)


class Retry(Struct, frozen=True):
    """Exponential delays with full jitter; `Retry-After` of the server takes precedence."""

    attempts: int = 7
    """The maximum number of times that a request is sent."""
    first_delay: float = 0.1
    max_delay: float = 5.0
    multiplier: float = 2.0
    max_retry_after: float = 60.0
    """If the server asks for a longer delay, the request fails."""

    def __post_init__(self) -> None:
        _check("attempts", self.attempts, "at least 1", holds=self.attempts >= 1)
        _check("first_delay", self.first_delay, "more than 0", holds=self.first_delay > 0)
        _check(
            "max_delay",
            self.max_delay,
            "at least first_delay",
            holds=self.max_delay >= self.first_delay,
        )
        _check("multiplier", self.multiplier, "at least 1", holds=self.multiplier >= 1)
        _check(
            "max_retry_after", self.max_retry_after, "0 or more", holds=self.max_retry_after >= 0
        )

    def delay(
        self, error: ClientError, attempt: int, jitter: float, *, repeatable: bool = True
    ) -> float | None:
        """Return the seconds to wait after attempt number `attempt` (from 0), or None to give up.

        `jitter` is a random number in [0, 1). A request that is not `repeatable` is sent again
        only if the error proves that it was not executed.
        """
        if attempt + 1 >= self.attempts:
            return None
        if not (is_transient(error) if repeatable else was_not_executed(error)):
            return None
        backoff = jitter * self._ceiling(attempt)
        if isinstance(error, Overloaded | ServerFailed) and error.retry_after is not None:
            if error.retry_after > self.max_retry_after:
                return None
            # All clients get the same number of seconds: the jitter spreads them out.
            return error.retry_after + backoff
        return backoff

    def _ceiling(self, attempt: int) -> float:
        # The power would overflow after some hundred attempts.
        return min(self.max_delay, self.first_delay * self.multiplier ** min(attempt, 64))


def is_transient(error: ClientError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, ServerFailed):
        return error.status not in _PERMANENT
    return isinstance(error, Overloaded | Unreachable | ConnectionLost)


def was_not_executed(error: ClientError) -> bool:
    """Return whether the error proves that the request changed nothing.

    A 503 is no proof: gateways also return it when the server fails while it executes the request.
    """
    return isinstance(error, Unreachable) or error.status == 429


def _check(name: str, value: float, wanted: str, *, holds: bool) -> None:
    if not holds:
        raise ValueError(f"Retry({name}={value!r}) is not allowed: it must be {wanted}")


_PERMANENT: Final = frozenset({501, 505})
"""The server does not support the request, now or later."""

NO_RETRY: Final = Retry(attempts=1)
