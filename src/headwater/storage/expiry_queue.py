"""A queue of deadlines: which streams may have expired.

Accessing or deleting a stream does not change its entry. The caller checks the stream of an entry
that is due, and adds it again if it has not expired.
"""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

_SPARE: Final = 1024

Key = TypeVar("Key", bound=Hashable)


class ExpiryQueue(Generic[Key]):
    """A heap of deadlines; its size is proportional to the number of live streams."""

    __slots__ = ("_compact_at", "_heap", "_is_live")

    def __init__(self, is_live: Callable[[Key], bool]) -> None:
        self._is_live = is_live
        self._heap: list[tuple[float, Key]] = []
        self._compact_at = _SPARE

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, key: Key) -> None:
        """Add a deadline of a stream."""
        heappush(self._heap, (deadline, key))
        if len(self._heap) > self._compact_at:
            self._compact()

    def pop(self, now: float) -> Key | None:
        """Remove and return the stream with the earliest deadline, if that has passed."""
        if self._heap and self._heap[0][0] <= now:
            return heappop(self._heap)[1]
        return None

    def _compact(self) -> None:
        """Drop the entries of streams that are gone, and all but the earliest of each stream."""
        earliest = {key: deadline for deadline, key in sorted(self._heap, reverse=True)}
        self._heap = [(deadline, key) for key, deadline in earliest.items() if self._is_live(key)]
        heapify(self._heap)
        self._compact_at = 2 * len(self._heap) + _SPARE
