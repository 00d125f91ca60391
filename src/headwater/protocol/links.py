"""Links: which streams a subscription follows, and how far each was processed (PROTOCOL 6.1)."""

from typing import NamedTuple

from headwater.protocol.forks import ForkOrigin
from headwater.protocol.offsets import START, Offset


class Link(NamedTuple):
    """One stream of one subscription."""

    acked: Offset
    """The last processed position; what lies behind it is pending."""
    incarnation: int
    """Which stream at the path it belongs to; 0 while there is none."""
    explicit: bool
    glob: bool

    @property
    def type(self) -> str:
        return "explicit" if self.explicit else "glob"

    def has_pending(self, tail: Offset) -> bool:
        """Tell whether something lies behind what was processed; an empty stream has nothing."""
        return tail > self.acked and tail.byte > 0


def beginning(origin: ForkOrigin | None) -> Offset:
    """Give where a stream that has just appeared is linked: before all that it wrote itself.

    What a fork has inherited was written before it appeared.
    """
    return START if origin is None else origin.anchor
