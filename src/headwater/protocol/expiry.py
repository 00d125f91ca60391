"""Expiry: when a stream ends by itself (PROTOCOL 5.1)."""

from msgspec import Struct


class Expiry(Struct, frozen=True):
    """When a stream ends: a sliding window in seconds, or an absolute time, or never."""

    ttl: int | None = None
    expires_at: str | None = None
    """As the client wrote it; `instant` is the same in seconds since the epoch."""
    instant: float | None = None

    def deadline(self, last_access: float) -> float | None:
        """Tell when the stream expires if nobody touches it after `last_access`."""
        return self.instant if self.ttl is None else last_access + self.ttl

    def __bool__(self) -> bool:
        return self.ttl is not None or self.instant is not None


NEVER = Expiry()


def inherited_expiry(source: Expiry, requested: Expiry) -> Expiry:
    """A fork gets what it asks for, and its source's expiry where it asks for none."""
    return requested or source
