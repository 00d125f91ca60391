"""The event loop never waits for a disk, and none of its callbacks grows with what is stored.

Each callback may make a limited number of calls, whatever the number of streams or links, and none
that asks SQLite, reads a segment, or creates or deletes a file.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from headwater.protocol.expiry import Expiry
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.offsets import START
from headwater.protocol.producers import ProducerClaim
from headwater.server.app import Application
from headwater.server.messages import Head, Request, Response
from headwater.server.settings import Settings
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import Appended, Chunk, Created
from tests.storage.disk.steps import until_at_rest
from tests.suites.steps import BINARY, PLENTY, T0, expect, fork
from tests.support.effort import EFFORT
from tests.support.loop_watch import LoopWatch

_COUNT: Final = 4_000 if EFFORT == 1 else 100_000
_MOST_CALLS: Final = 20_000
"""Of one callback. A slice of 512 streams, or a batch of 256 deletions, takes fewer."""
_TOGETHER: Final = 64
_OPTIONS: Final = DiskOptions(
    durability="os",
    checkpoint_seconds=3600,
    max_loaded_streams=500,
    max_dirty_streams=2 * _COUNT,
    tail_budget=1 << 30,
    journal_bytes=1 << 28,
    journal_records=10**9,
)


@asynccontextmanager
async def opened(folder: Path, options: DiskOptions = _OPTIONS) -> AsyncIterator[DiskStore]:
    store = DiskStore(folder, options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def for_all(work: Callable[[int], Awaitable[object]], count: int = _COUNT) -> None:
    """Do something for each stream, a few at a time."""
    for first in range(0, count, _TOGETHER):
        numbers = range(first, min(first + _TOGETHER, count))
        await asyncio.gather(*(work(number) for number in numbers))


async def create_all(store: DiskStore, ttl: int | None = None) -> None:
    async def create(number: int) -> None:
        request = Create(BINARY, Expiry(ttl=ttl), b"%d" % number)
        expect(Created, await store.create(f"s/{number}", request, T0))

    await for_all(create)


def is_free(watch: LoopWatch) -> None:
    assert not watch.blocking
    assert watch.most < _MOST_CALLS, watch.busiest


def test_cold_streams_are_read_in_threads(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path / "data") as store:
            await create_all(store)
        async with opened(tmp_path / "data") as store:

            async def read(number: int) -> None:
                chunk = expect(Chunk, await store.read(f"s/{number}", START, PLENTY, T0))
                assert chunk.joined() == b"%d" % number

            with LoopWatch() as watch:
                await for_all(read)
                await store.read("missing", START, PLENTY, T0)
                assert await store.list_streams("s/", "", 1000, T0)
            is_free(watch)

    asyncio.run(scenario())


def test_cold_streams_are_written_without_a_wait_on_the_loop(tmp_path: Path) -> None:
    """With producers that have to be looked up, and forks whose sources do."""
    count = _COUNT // 4

    async def scenario() -> None:
        async with opened(tmp_path / "data") as store:
            await create_all(store)
        async with opened(tmp_path / "data") as store:

            async def write(number: int) -> None:
                path = f"s/{number}"
                request = Append(BINARY, b"+", producer=ProducerClaim("p", 0, 0))
                expect(Appended, await store.append(path, request, T0))
                await fork(store, f"fork/{number}", path)
                assert await store.delete(path, T0) is None

            with LoopWatch() as watch:
                await for_all(write, count)
            is_free(watch)
            await until_saved(store)
        async with opened(tmp_path / "data") as store:

            async def delete(number: int) -> None:
                assert await store.delete(f"fork/{number}", T0) is None

            with LoopWatch() as watch:
                await for_all(delete, count)
            is_free(watch)

    asyncio.run(scenario())


async def until_saved(store: DiskStore) -> None:
    store._checkpointer._tick()
    await until_at_rest(store)


def test_a_checkpoint_of_many_streams_is_taken_in_slices(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path / "data") as store:
            await create_all(store)
            with LoopWatch() as watch:
                await until_saved(store)
            assert store.metrics.checkpoints == 1
            is_free(watch)

    asyncio.run(scenario())


def test_a_compaction_leaves_the_loop_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path / "data") as store:
            await create_all(store)

            async def append(number: int) -> None:
                request = Append(BINARY, b"+%d" % number)
                expect(Appended, await store.append(f"s/{number % 500}", request, T0))

            with LoopWatch() as watch:
                for _ in range(20):
                    await for_all(append, 500)
                    await until_saved(store)
            assert store.metrics.compactions
            is_free(watch)

    asyncio.run(scenario())


def test_many_streams_are_reaped_in_slices(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path / "data") as store:
            await create_all(store, ttl=10)
        async with opened(tmp_path / "data") as store:
            removed = 0
            with LoopWatch() as watch:
                while count := await store.expire(T0 + 10, 1000):
                    removed += count
                await until_saved(store)
            assert removed == _COUNT
            is_free(watch)

    asyncio.run(scenario())


def test_a_subscription_with_many_links_is_deleted_in_slices(tmp_path: Path) -> None:
    path = "/v1/stream/__ds/subscriptions/all"
    headers = {b"content-type": b"application/json", b"host": b"x"}
    body = b'{"type": "pull-wake", "pattern": "s/*", "wake_stream": "wake"}'

    async def scenario() -> None:
        async with opened(tmp_path / "data") as store:
            await create_all(store)
            app = Application(store, Settings(store="memory"))
            await app.start()
            created = expect(
                Response, await app.handle(Request(Head("PUT", path, "", headers), body))
            )
            assert created.status == 201
            with LoopWatch() as watch:
                request = Request(Head("DELETE", path, "", headers), b"")
                deleted = expect(Response, await app.handle(request))
                await until_saved(store)
            assert deleted.status == 204
            is_free(watch)
            await app.stop()

    asyncio.run(scenario())
