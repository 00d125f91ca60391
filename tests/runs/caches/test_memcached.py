"""The cache in Memcached keeps the promises of any, over a real server."""

import asyncio
from contextlib import suppress

import pytest

from headwater.errors import CacheUnavailable, SettingsError
from headwater.runs.caches.memcached import MemcachedCache
from headwater.runs.caching import CachedSnapshots, SnapshotCache
from headwater.runs.stores.memory import MemoryRunStore
from tests.suites.run_steps import append, started
from tests.suites.snapshot_cache_suite import SnapshotCacheSuite
from tests.support.engines.process import free_port
from tests.support.proxy import Proxy


class TestMemcachedCache(SnapshotCacheSuite):
    """Every promise."""

    @pytest.fixture
    def cache(self, memcached_url: str, request: pytest.FixtureRequest) -> SnapshotCache:
        return MemcachedCache(memcached_url, prefix=f"{request.node.name}:")


def test_a_snapshot_that_is_too_large_is_not_kept_and_replaces_the_older_one(
    memcached_url: str,
) -> None:
    async def scenario() -> None:
        cache = MemcachedCache(memcached_url, prefix="large:")
        await cache.open()
        try:
            await cache.set("run", b"old", 60)
            await cache.set("run", b"x" * 2_000_000, 60)
            assert await cache.get("run") is None
        finally:
            await cache.close()

    asyncio.run(scenario())


def test_a_server_that_is_away_is_said_so_and_passed_by() -> None:
    async def scenario() -> None:
        cache = MemcachedCache(f"memcached://127.0.0.1:{free_port()}")
        await cache.open()
        try:
            with pytest.raises(CacheUnavailable, match="Memcached"):
                await cache.get("run-001")
            async with MemoryRunStore() as store:
                await append(store, started())
                snapshot = await CachedSnapshots(store, cache).get_snapshot("run-001")
                assert snapshot == await store.get_snapshot("run-001")
        finally:
            await cache.close()

    asyncio.run(scenario())


def test_it_comes_back_after_its_connections_were_cut(memcached_url: str) -> None:
    async def scenario() -> None:
        with Proxy(memcached_url) as proxy:
            cache = MemcachedCache(proxy.url.replace("http:", "memcached:"), prefix="cut:")
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


@pytest.mark.parametrize("url", ["redis://localhost", "memcached://", "localhost:11211"])
def test_a_url_of_something_else_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="memcached://"):
        MemcachedCache(url)
