"""A cache of snapshots in front of any store: never older than its bound.

A snapshot's age counts from the moment at which the store was *asked*, so the time that the answer
took is part of it. The moment travels with the snapshot, and whoever takes it from the cache looks
at it: a cache that keeps an entry too long does no harm. A cache that can't be used is passed by.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from headwater.errors import CacheUnavailable, RunQueryRefused
from headwater.runs.store import RunStore
from headwater.runs.values import RunSnapshot, snapshot_from_wire, snapshot_to_wire

log: Final = logging.getLogger("headwater.runs")

_SKEW_SECONDS: Final = 0.05
"""How far in the future an entry may seem to be from: clocks of two machines never agree."""


class SnapshotCache(ABC):
    """Keeps documents by run id for a while. All methods may raise `CacheUnavailable`.

    Nothing is atomic and nothing is promised: an entry may be gone at any time, and every method
    may be repeated. `open` and `close` are called by whoever owns the cache.
    """

    async def open(self) -> None:  # noqa: B027 - not every cache has something to connect to
        """Connect."""

    async def close(self) -> None:  # noqa: B027 - likewise
        """Let go of everything; may be called twice."""

    @abstractmethod
    async def get(self, run_id: str) -> bytes | None:
        """Give what was kept; None where nothing is, or no more."""

    @abstractmethod
    async def set(self, run_id: str, document: bytes, seconds: float) -> None:
        """Keep a document for at most so many seconds."""

    @abstractmethod
    async def drop(self, run_id: str) -> None:
        """Forget a run."""


class MemoryCache(SnapshotCache):
    """A cache in the process: at most so many entries, the least used give way."""

    def __init__(self, entries: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries = entries
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, run_id: str) -> bytes | None:
        found = self._kept.get(run_id)
        if found is None:
            return None
        if found[0] <= self._clock():
            del self._kept[run_id]
            return None
        self._kept.move_to_end(run_id)
        return found[1]

    async def set(self, run_id: str, document: bytes, seconds: float) -> None:
        self._kept[run_id] = (self._clock() + seconds, document)
        self._kept.move_to_end(run_id)
        if len(self._kept) > self._entries:
            self._kept.popitem(last=False)

    async def drop(self, run_id: str) -> None:
        self._kept.pop(run_id, None)


class CachedSnapshots:
    """Snapshots of a store, at most `max_age` seconds old."""

    def __init__(
        self,
        store: RunStore,
        cache: SnapshotCache,
        max_age: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_age <= 0:
            raise RunQueryRefused("max_age", max_age, "more than 0 seconds")
        self._store = store
        self._cache = cache
        self._max_age = max_age
        self._clock = clock

    async def get_snapshot(self, run_id: str) -> RunSnapshot | None:
        """Give a snapshot that shows every append acknowledged `max_age` seconds ago.

        None where the run is unknown or deleted; that is never taken from the cache. A run that
        was deleted may be shown for `max_age` seconds more, unless it was deleted by `delete_run`.
        """
        asked = self._clock()
        kept = await self._kept(run_id, asked)
        if kept is not None:
            return kept
        snapshot = await self._store.get_snapshot(run_id)
        if snapshot is not None:
            await self._keep(snapshot, asked)
        return snapshot

    async def delete_run(self, run_id: str) -> bool:
        """Delete a run from the store and then from the cache."""
        deleted = await self._store.delete_run(run_id)
        await self._cache.drop(run_id)
        return deleted

    async def _kept(self, run_id: str, now: float) -> RunSnapshot | None:
        try:
            document = await self._cache.get(run_id)
        except CacheUnavailable as error:
            log.warning("%s", error)
            return None
        if document is None:
            return None
        try:
            wire = msgspec.json.decode(document)
            asked = float(wire["asked"])
            snapshot = snapshot_from_wire(wire["snapshot"])
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None  # of another version, or not ours
        if snapshot.run_id != run_id or not -_SKEW_SECONDS <= now - asked < self._max_age:
            return None
        return snapshot

    async def _keep(self, snapshot: RunSnapshot, asked: float) -> None:
        left = self._max_age - (self._clock() - asked)
        if left <= 0:
            return
        wire = {"asked": asked, "snapshot": snapshot_to_wire(snapshot)}
        try:
            await self._cache.set(snapshot.run_id, msgspec.json.encode(wire), left)
        except CacheUnavailable as error:
            log.warning("%s", error)
