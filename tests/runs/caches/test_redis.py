"""The cache in Redis keeps the promises of any, over a real server."""

import asyncio
from contextlib import suppress

import pytest

from headwater.errors import CacheUnavailable, SettingsError
from headwater.runs.caches.redis import RedisCache
from headwater.runs.caching import CachedSnapshots, SnapshotCache
from headwater.runs.stores.memory import MemoryRunStore
from tests.suites.run_steps import append, started
from tests.suites.snapshot_cache_suite import SnapshotCacheSuite
from tests.support.engines.process import free_port
from tests.support.engines.redis import Redis
from tests.support.proxy import Proxy


class TestRedisCache(SnapshotCacheSuite):
    """Every promise."""

    @pytest.fixture
    def cache(self, redis_server: Redis) -> SnapshotCache:
        return RedisCache(redis_server.fresh_url())


def test_a_server_that_is_away_is_said_so_and_passed_by() -> None:
    async def scenario() -> None:
        cache = RedisCache(f"redis://127.0.0.1:{free_port()}/0")
        await cache.open()
        try:
            with pytest.raises(CacheUnavailable, match="Redis"):
                await cache.get("run-001")
            async with MemoryRunStore() as store:
                await append(store, started())
                snapshot = await CachedSnapshots(store, cache).get_snapshot("run-001")
                assert snapshot == await store.get_snapshot("run-001")
        finally:
            await cache.close()

    asyncio.run(scenario())


def test_it_comes_back_after_its_connections_were_cut(redis_server: Redis) -> None:
    async def scenario() -> None:
        with Proxy(f"http://127.0.0.1:{redis_server.port}") as proxy:
            cache = RedisCache(proxy.url.replace("http:", "redis:") + "/0")
            await cache.open()
            try:
                await cache.set("cut", b"1", 60)
                proxy.cut()
                for _ in range(1200):
                    with suppress(CacheUnavailable):
                        assert await cache.get("cut") == b"1"
                        return
                    await asyncio.sleep(0.05)
                pytest.fail("it did not come back")
            finally:
                await cache.close()

    asyncio.run(scenario())


def test_a_url_of_something_else_is_refused() -> None:
    with pytest.raises(SettingsError, match="redis://"):
        asyncio.run(RedisCache("http://localhost").open())
