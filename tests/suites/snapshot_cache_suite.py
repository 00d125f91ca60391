"""What any cache of snapshots must do: give a fixture named `cache` that is empty and not open."""

import asyncio
import time

from headwater.runs.caching import CachedSnapshots, SnapshotCache
from headwater.runs.stores.memory import MemoryRunStore
from tests.suites.run_steps import append, numbered, started


class SnapshotCacheSuite:
    """Over a real cache."""

    def test_what_is_kept_comes_back_until_it_is_dropped(self, cache: SnapshotCache) -> None:
        async def scenario() -> None:
            await cache.open()
            try:
                assert await cache.get("run ü/1") is None
                await cache.set("run ü/1", b"\x00document\xff", 60)
                await cache.set("other", b"x", 60)
                assert await cache.get("run ü/1") == b"\x00document\xff"
                await cache.set("run ü/1", b"newer", 60)
                assert await cache.get("run ü/1") == b"newer"
                await cache.drop("run ü/1")
                await cache.drop("run ü/1")
                assert await cache.get("run ü/1") is None
                assert await cache.get("other") == b"x"
            finally:
                await cache.close()
                await cache.close()

        asyncio.run(scenario())

    def test_a_snapshot_is_never_older_than_its_bound(self, cache: SnapshotCache) -> None:
        async def scenario() -> None:
            await cache.open()
            try:
                async with MemoryRunStore() as store:
                    now = [time.time()]
                    snapshots = CachedSnapshots(store, cache, max_age=60, clock=lambda: now[0])
                    assert await snapshots.get_snapshot("run-001") is None
                    await append(store, started())
                    first = await snapshots.get_snapshot("run-001")
                    assert first is not None
                    await append(store, *numbered(1))
                    assert await snapshots.get_snapshot("run-001") == first
                    now[0] += 60
                    later = await snapshots.get_snapshot("run-001")
                    assert later is not None
                    assert later.last_event_seq == 2
                    assert await snapshots.delete_run("run-001")
                    assert await snapshots.get_snapshot("run-001") is None
            finally:
                await cache.close()

        asyncio.run(scenario())
