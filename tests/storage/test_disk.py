"""The disk store keeps the promises of any store, with much memory and with very little."""

import asyncio
from pathlib import Path

import pytest

from headwater.errors import StoreDamaged
from headwater.protocol.lifecycle import Create
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import Store
from tests.storage.disk.steps import until_at_rest
from tests.suites.store_suite import StoreSuite

TINY = DiskOptions(
    tail_budget=64,
    journal_bytes=4096,
    max_dirty_streams=2,
    max_loaded_streams=1,
    max_open_segments=2,
    checkpoint_seconds=0.02,
)
"""So little memory that every read crosses journal, memory and segments."""


class TestDiskStore(StoreSuite):
    """Every promise, as it is run by default."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return DiskStore(tmp_path / "data")


class TestDiskStoreWithHardlyAnyMemory(StoreSuite):
    """Every promise, with a checkpoint after nearly every batch."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return DiskStore(tmp_path / "data", TINY)

    async def settle(self, store: Store) -> None:
        assert isinstance(store, DiskStore)
        await until_at_rest(store)


class TestDiskStoreThatLeavesSyncingToTheSystem(StoreSuite):
    """Every promise, without waiting for syncs."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return DiskStore(tmp_path / "data", DiskOptions(durability="os"))


def test_a_lost_catalog_does_not_count_as_an_empty_store(tmp_path: Path) -> None:
    async def lose() -> None:
        store = DiskStore(tmp_path)
        await store.open()
        await store.create("s", Create("text/plain", body=b"kept"), 0.0)
        await store.close()
        (tmp_path / "catalog.db").unlink()
        with pytest.raises(StoreDamaged, match="headwater repair"):
            await DiskStore(tmp_path).open()
        assert list((tmp_path / "segments").glob("*.seg"))

    asyncio.run(lose())


def test_it_is_committing_while_a_writer_waits_for_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = DiskStore(tmp_path)
        assert not store.committing
        await store.open()
        assert not store.committing
        writer = asyncio.create_task(store.create("s", Create("text/plain"), 0.0))
        seen = False
        while not writer.done():
            seen = seen or store.committing
            await asyncio.sleep(0)
        assert seen
        assert not store.committing
        await store.close()

    asyncio.run(scenario())
