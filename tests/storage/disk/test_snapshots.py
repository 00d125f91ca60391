"""Snapshots for checkpoints: taken in slices, and yet the state at one point of the journal."""

import asyncio
from pathlib import Path
from typing import Final

from headwater.protocol.producers import ProducerClaim
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.steps import crashed, with_store
from tests.suites.steps import BINARY, T0, append, content, create, fork
from tests.support.patience import PATIENCE_SECONDS, until

_SLICE: Final = 16
_COUNT: Final = 8 * _SLICE
_LAST: Final = f"s{_COUNT - 1}"
_OPTIONS: Final = DiskOptions(
    durability="os", checkpoint_seconds=3600, streams_per_turn=_SLICE, max_loaded_streams=10
)


async def create_many(store: DiskStore) -> None:
    for number in range(_COUNT):
        await create(store, f"s{number}", BINARY, b"%d" % number)


async def until_collecting(store: DiskStore) -> None:
    """Start a checkpoint, and wait for a turn between two slices of its snapshot."""
    store._checkpointer._tick()
    turns = 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not store._checkpointer._collecting:
            turns += 1
            await asyncio.sleep(0)


def test_reads_are_served_and_appends_wait_while_a_snapshot_is_taken(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create_many(store)
        await until_collecting(store)
        appending = asyncio.create_task(append(store, "s1", b"+", BINARY))
        turns = 0
        while store._checkpointer._collecting:
            assert await content(store, "s1") == b"1"
            assert not appending.done()
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 6
        await appending
        assert await content(store, "s1") == b"1+"

    with_store(tmp_path / "data", scenario, _OPTIONS)


def test_what_happens_during_a_snapshot_is_replayed_over_it_once(tmp_path: Path) -> None:
    """A fork counts at its source, and a producer's append has its number: neither twice."""
    claim = ProducerClaim("p", 0, 0)

    async def scenario(store: DiskStore) -> None:
        await create_many(store)
        await until_collecting(store)
        await asyncio.gather(
            fork(store, "fork", _LAST),
            append(store, "s1", b"+", BINARY, producer=claim),
            store.delete("s0", T0),
        )
        await until(lambda: store.metrics.checkpoints, "the checkpoint")

    async def look(store: DiskStore) -> None:
        assert await content(store, "s1") == b"1+"
        assert (await append(store, "s1", b"+", BINARY, producer=claim)).repeated
        assert await content(store, "fork") == b"127"
        await store.delete(_LAST, T0)
        await store.delete("fork", T0)  # the last one that needs its source
        for path in ("s0", _LAST, "fork"):
            await create(store, path)

    copy = crashed(tmp_path / "data", scenario, tmp_path / "copy", _OPTIONS)
    with_store(copy, look, _OPTIONS)


def test_what_was_saved_is_released_in_slices(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create_many(store)
        await until_collecting(store)
        left: set[int] = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while store._checkpointer._running is not None:
                left.add(store._registry.tail_bytes)
                await asyncio.sleep(0)
        assert len(left) >= 7
        assert store._registry.tail_bytes == 0
        await append(store, "s1", b"+", BINARY)
        assert await content(store, "s1") == b"1+"

    with_store(tmp_path / "data", scenario, _OPTIONS)
