"""The cache of snapshots: bounded in age and size, and passed by where it can't be used."""

import asyncio

import msgspec
import pytest

from headwater.errors import CacheUnavailable, RunQueryRefused
from headwater.runs import RunSnapshot
from headwater.runs.caching import CachedSnapshots, MemoryCache, SnapshotCache
from headwater.runs.stores.memory import MemoryRunStore
from tests.suites.run_steps import append, numbered, started
from tests.suites.snapshot_cache_suite import SnapshotCacheSuite


class TestMemoryCache(SnapshotCacheSuite):
    """Every promise."""

    @pytest.fixture
    def cache(self) -> SnapshotCache:
        return MemoryCache()


class Forgetful(MemoryCache):
    """A cache that never lets go: the time to live is lost on it."""

    async def set(self, run_id: str, document: bytes, seconds: float) -> None:
        await super().set(run_id, document, seconds + 10**6)


class Broken(MemoryCache):
    """A cache that can't be reached."""

    async def get(self, run_id: str) -> bytes | None:
        raise CacheUnavailable("here", f"no answer for {run_id}")

    async def set(self, run_id: str, document: bytes, seconds: float) -> None:
        raise CacheUnavailable("here", f"no room for {run_id}: {len(document)} {seconds}")


class SlowStore(MemoryRunStore):
    """A store that takes its time, during which the clock goes on."""

    def __init__(self, moment: list[float]) -> None:
        super().__init__()
        self.moment = moment
        self.questions = 0

    async def get_snapshot(self, run_id: str) -> RunSnapshot | None:
        snapshot = await super().get_snapshot(run_id)
        self.questions += 1
        self.moment[0] += 0.8
        return snapshot


def test_the_age_counts_from_the_question_even_where_the_cache_keeps_entries_for_ever() -> None:
    async def scenario() -> None:
        moment = [1000.0]
        async with SlowStore(moment) as store:
            snapshots = CachedSnapshots(store, Forgetful(), 1.0, clock=lambda: moment[0])
            await append(store, started())
            await snapshots.get_snapshot("run-001")
            await append(store, *numbered(1))
            moment[0] += 0.1
            stale = await snapshots.get_snapshot("run-001")
            assert stale is not None
            assert (stale.last_event_seq, store.questions) == (1, 1)
            moment[0] += 0.11
            fresh = await snapshots.get_snapshot("run-001")
            assert fresh is not None
            assert (fresh.last_event_seq, store.questions) == (2, 2)

    asyncio.run(scenario())


@pytest.mark.parametrize("document", [b"", b"{}", b'{"asked":"x","snapshot":{}}', b"[1]"])
def test_an_entry_that_is_not_ours_is_passed_by(document: bytes) -> None:
    async def scenario() -> None:
        cache = MemoryCache()
        async with MemoryRunStore() as store:
            await append(store, started())
            await cache.set("run-001", document, 60)
            assert await CachedSnapshots(store, cache).get_snapshot("run-001") is not None

    asyncio.run(scenario())


def test_an_entry_from_the_future_is_passed_by() -> None:
    async def scenario() -> None:
        cache = MemoryCache()
        async with MemoryRunStore() as store:
            await append(store, started())
            snapshots = CachedSnapshots(store, cache, clock=lambda: 1000.0)
            await snapshots.get_snapshot("run-001")
            entry = msgspec.json.decode(await cache.get("run-001") or b"")
            entry["asked"] = 2000.0
            await cache.set("run-001", msgspec.json.encode(entry), 60)
            await append(store, *numbered(1))
            fresh = await snapshots.get_snapshot("run-001")
            assert fresh is not None
            assert fresh.last_event_seq == 2

    asyncio.run(scenario())


def test_a_cache_that_can_not_be_used_is_passed_by() -> None:
    async def scenario() -> None:
        async with MemoryRunStore() as store:
            await append(store, started())
            assert await CachedSnapshots(store, Broken()).get_snapshot("run-001") is not None

    asyncio.run(scenario())


def test_the_least_used_entries_give_way() -> None:
    async def scenario() -> None:
        cache = MemoryCache(entries=2)
        for name in ("a", "b"):
            await cache.set(name, b"x", 60)
        await cache.get("a")
        await cache.set("c", b"x", 60)
        assert len(cache) == 2
        assert await cache.get("b") is None
        assert await cache.get("a") == b"x"

    asyncio.run(scenario())


def test_a_bound_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(RunQueryRefused):
        CachedSnapshots(MemoryRunStore(), MemoryCache(), max_age=0)
