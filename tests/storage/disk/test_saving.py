"""When to save: which journal file comes next, and how often a checkpoint is made for it."""

import asyncio
from pathlib import Path

from headwater.storage.disk.saving import DiskOptions
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.steps import with_store
from tests.suites.steps import BINARY, append, content, create


def test_closing_while_a_journal_file_is_made_ready_keeps_the_one_that_is_needed(
    tmp_path: Path,
) -> None:
    first, second = b"x" * 600_000, b"y" * 600_000

    async def close_early(store: DiskStore) -> None:
        await create(store, "a", BINARY)
        await append(store, "a", first, BINARY)  # half of what has the next file made ready
        late = asyncio.create_task(append(store, "a", second, BINARY))
        await asyncio.sleep(0)
        await store.close()
        await late

    async def read(store: DiskStore) -> None:
        assert await content(store, "a") == first + second

    with_store(tmp_path / "data", close_early)
    with_store(tmp_path / "data", read)


def test_large_batches_soon_have_a_journal_file_that_is_filled(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY)
        unfilled: set[int] = set()
        for _ in range(400):
            await append(store, "a", b"x" * 1_200_000, BINARY)
            if store._commits.journal.is_filled:
                break
            unfilled.add(store._commits.journal.number)
        assert store._commits.journal.is_filled
        assert len(unfilled) == 1

    with_store(tmp_path / "data", scenario, DiskOptions(durability="fsync"))


def test_a_busy_store_that_saves_by_the_clock_keeps_to_filled_files(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY)
        unfilled: set[int] = set()
        for _ in range(120):
            for _ in range(10):
                await append(store, "a", b"x" * 20_000, BINARY)
            journal = store._commits.journal
            if not journal.is_filled:
                unfilled.add(journal.number)
            await asyncio.sleep(0.005)
        assert store._commits.journal.number > 4, "nothing was saved"
        assert len(unfilled) <= 2

    with_store(tmp_path / "data", scenario, DiskOptions(checkpoint_seconds=0.1))


def test_a_store_with_little_to_save_fills_no_file(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY, b"little")
        for _ in range(500):
            if store.metrics.checkpoints:
                break
            await asyncio.sleep(0.01)
        assert store.metrics.checkpoints
        assert not store._commits.journal.is_filled

    with_store(tmp_path / "data", scenario, DiskOptions(checkpoint_seconds=0.02))
