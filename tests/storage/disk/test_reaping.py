"""Streams that expire at the same time: they share a commit, and leave the loop to others."""

import asyncio
from pathlib import Path
from typing import Final

from headwater.protocol.expiry import Expiry
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import MAX_EXPIRED_AT_ONCE
from tests.storage.disk.steps import with_store
from tests.suites.steps import T0, append, create

_ROOMY: Final = DiskOptions(durability="os", checkpoint_seconds=3600)


async def create_many(store: DiskStore, count: int, ttl: int) -> None:
    requests = (create(store, f"s{number}", expiry=Expiry(ttl=ttl)) for number in range(count))
    await asyncio.gather(*requests)


def test_streams_that_expire_together_are_deleted_by_one_commit(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create_many(store, MAX_EXPIRED_AT_ONCE, ttl=1)
        before = store.metrics.batches
        assert await store.expire(T0 + 1, 1000) == MAX_EXPIRED_AT_ONCE
        assert store.metrics.batches == before + 1

    with_store(tmp_path / "data", scenario, _ROOMY)


def test_no_batch_of_expired_streams_is_longer_than_the_bound(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create_many(store, 3 * MAX_EXPIRED_AT_ONCE, ttl=1)
        before = store.metrics.batches
        assert await store.expire(T0 + 1, 10_000) == 3 * MAX_EXPIRED_AT_ONCE
        assert store.metrics.batches == before + 3

    with_store(tmp_path / "data", scenario, _ROOMY)


def test_others_are_served_while_many_streams_are_found_to_live_on(tmp_path: Path) -> None:
    """Their deadlines have passed, but they were accessed since."""
    count = 8 * MAX_EXPIRED_AT_ONCE

    async def scenario(store: DiskStore) -> None:
        await create_many(store, count, ttl=10)
        for number in range(count):
            await append(store, f"s{number}", now=T0 + 5)
        expiring = asyncio.create_task(store.expire(T0 + 10, 10_000))
        turns = 0
        while not expiring.done():
            turns += 1
            await asyncio.sleep(0)
        assert await expiring == 0
        assert turns >= 8
        assert await store.expire(T0 + 15, 10_000) == count

    with_store(tmp_path / "data", scenario, _ROOMY)
