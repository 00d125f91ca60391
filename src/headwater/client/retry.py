"""When to send a request again, and after how long."""

from typing import Final

from msgspec import Struct

from headwater.errors import (
    ClientError,
    ConnectionLost,
    Overloaded,
    RequestRefused,
    Unreachable,
)

_GATEWAY_STATUSES: Final = frozenset({502, 504})
"""A proxy lost the server: as good as a lost connection."""


class Retry(Struct, frozen=True):
    """Exponential delays with full jitter; what the server asks for comes first."""

    attempts: int = 7
    """How often a request is sent at most."""
    first_delay: float = 0.1
    max_delay: float = 5.0
    max_retry_after: float = 60.0
    """A server that asks for a longer pause than this is not waited for."""

    def delay(self, error: ClientError, attempt: int, jitter: float) -> float | None:
        """Say how long to wait after attempt number `attempt` (from 0), or None to give up.

        `jitter` is a random number in [0, 1).
        """
        if attempt + 1 >= self.attempts or not is_passing(error):
            return None
        backoff = jitter * min(self.max_delay, self.first_delay * 2.0**attempt)
        if isinstance(error, Overloaded) and error.retry_after is not None:
            if error.retry_after > self.max_retry_after:
                return None
            # Everyone was told the same number of seconds: the jitter spreads them out.
            return error.retry_after + backoff
        return backoff


def is_passing(error: ClientError) -> bool:
    """Tell whether the same request may succeed a little later."""
    if isinstance(error, RequestRefused):
        return isinstance(error, Overloaded) or error.status in _GATEWAY_STATUSES
    return isinstance(error, Unreachable | ConnectionLost)


NO_RETRY: Final = Retry(attempts=1)
