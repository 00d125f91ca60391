"""Expiry: when a stream is deleted without a request (PROTOCOL 5.1)."""

from msgspec import Struct


class Expiry(Struct, frozen=True):
    """When a stream expires: after a sliding window in seconds, at an absolute time, or never."""

    ttl: int | None = None
    expires_at: str | None = None
    """The time as the client wrote it; `instant` is the same in seconds since the epoch."""
    instant: float | None = None

    def deadline(self, last_access: float) -> float | None:
        """Return when the stream expires if it is not accessed after `last_access`."""
        return self.instant if self.ttl is None else last_access + self.ttl

    def __bool__(self) -> bool:
        return self.ttl is not None or self.instant is not None


NEVER = Expiry()


def inherited_expiry(source: Expiry, requested: Expiry) -> Expiry:
    """Return the expiry of a fork: the requested one if there is one, otherwise its source's."""
    return requested or source


def is_expired(expiry: Expiry, last_access: float, now: float) -> bool:
    """Return whether a stream has expired; the caller counts watching a stream as an access."""
    deadline = expiry.deadline(last_access)
    return deadline is not None and deadline <= now
