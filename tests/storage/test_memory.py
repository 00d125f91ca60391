"""The memory store keeps the promises of any store, and its own limit."""

import asyncio
import gc
import tracemalloc

import pytest

from headwater.errors import StoreNotOpen
from headwater.protocol.expiry import Expiry
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.refusals import StreamNotFound
from headwater.storage.memory import MemoryStore
from headwater.storage.refusals import StoreFull
from headwater.storage.store import Store
from tests.suites.behaviours import runs_behaviours
from tests.suites.steps import BINARY, T0, append, content, create, expect, fork, head
from tests.suites.store_model import store_machine
from tests.suites.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    """Every promise."""

    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


TestMemoryStoreAgainstModel = store_machine(MemoryStore).TestCase


def test_a_store_that_is_not_open_raises() -> None:
    store = MemoryStore()
    with pytest.raises(StoreNotOpen):
        asyncio.run(store.head("s", T0))


@runs_behaviours
class TestLimit:
    """The memory limit, and what counts against it."""

    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(limit=1000)

    async def test_a_write_over_the_limit_is_refused_as_a_whole(self, store: MemoryStore) -> None:
        before = await create(store, content_type=BINARY, body=b"x" * 600)
        outcome = await store.append("s", Append(BINARY, b"y" * 401, close=True), T0)
        expect(StoreFull, outcome)
        assert await head(store) == before
        assert await content(store) == b"x" * 600
        expect(StoreFull, await store.create("t", Create(BINARY, body=b"y" * 401), T0))
        assert await store.head("t", T0) == StreamNotFound("t")
        await append(store, body=b"y" * 400, content_type=BINARY)  # it is open, and has room

    async def test_a_write_up_to_the_limit_is_accepted(self, store: MemoryStore) -> None:
        await create(store, content_type=BINARY, body=b"x" * 600)
        await append(store, body=b"y" * 400, content_type=BINARY)
        assert len(await content(store)) == 1000

    async def test_deleting_frees_bytes(self, store: MemoryStore) -> None:
        await create(store, content_type=BINARY, body=b"x" * 1000)
        await store.delete("s", T0)
        assert store.bytes == 0
        await create(store, content_type=BINARY, body=b"y" * 1000)

    async def test_expiring_frees_bytes(self, store: MemoryStore) -> None:
        await create(store, content_type=BINARY, body=b"x" * 1000, expiry=Expiry(ttl=1))
        await store.expire(T0 + 1, 10)
        assert store.bytes == 0

    async def test_shared_bytes_count_once_until_the_last_fork_is_deleted(
        self, store: MemoryStore
    ) -> None:
        await create(store, content_type=BINARY, body=b"x" * 600)
        await fork(store, "f", "s")
        await append(store, "f", b"y" * 100, BINARY)
        assert store.bytes == 700
        await store.delete("s", T0)
        assert store.bytes == 700
        await store.delete("f", T0)
        assert store.bytes == 0

    async def test_a_full_store_can_still_be_read_and_closed(self, store: MemoryStore) -> None:
        await create(store, content_type=BINARY, body=b"x" * 1000)
        await append(store, body=b"", content_type="", close=True)
        assert len(await content(store)) == 1000


def test_deleted_streams_leave_no_entries() -> None:
    """A deleted stream must not be remembered until its TTL would have run out."""

    async def come_and_go(store: MemoryStore, count: int) -> None:
        for number in range(count):
            path = f"stream/{number}"
            await create(store, path, body=b"1", expiry=Expiry(ttl=10**9))
            unwatch = store.watch(path, lambda: None)
            await fork(store, "fork", path)
            unwatch()
            await store.delete(path, T0)
            await store.delete("fork", T0)

    async def scenario() -> int:
        store = MemoryStore()
        await store.open()
        await come_and_go(store, 500)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await come_and_go(store, 5000)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return after - before

    assert asyncio.run(scenario()) < 200_000
