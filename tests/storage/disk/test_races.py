"""What may happen while a request waits for a lookup or a read, one race after another.

Each test is a row of the table in docs/decisions/0064. The report of a thread is held back while
the store goes on; a checkpoint may end and streams may be evicted meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from headwater.protocol.expiry import Expiry
from headwater.protocol.forks import ForkRequest
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.offsets import START, Offset
from headwater.protocol.producers import ProducerClaim
from headwater.protocol.refusals import (
    ConfigMismatch,
    SourceGone,
    SourceNotFound,
    StreamNotFound,
)
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.segments import Extent
from headwater.storage.disk.store import DiskStore
from headwater.storage.refusals import BytesDamaged
from headwater.storage.store import Appended, Chunk, Created, StreamInfo
from tests.storage.disk.stepped import SteppedStore, run_stepped
from tests.suites.steps import BINARY, JSON, PLENTY, T0, expect

T = TypeVar("T")

_OPTIONS: Final = DiskOptions(durability="os", checkpoint_seconds=3600, max_loaded_streams=1)


def race(folder: Path, scenario: Callable[[SteppedStore], Awaitable[None]]) -> None:
    """Run a scenario on a store with stepped threads, and close the store."""

    async def run() -> None:
        store = DiskStore(folder, _OPTIONS, lambda: T0)
        await store.open()
        stepped = SteppedStore(store)
        try:
            await scenario(stepped)
        finally:
            await stepped.settle(lambda: True)
            stepped.use_real_threads()
            await store.close()

    run_stepped(run())


async def cold(stepped: SteppedStore, path: str, request: Create) -> Created:
    """Create a stream, and have it in the catalog only."""
    created = await stepped.finish(stepped.store.create(path, request, T0))
    await stepped.save()
    stepped.evict()
    assert stepped.store._registry.loaded(path) is None
    return expect(Created, created)


async def waiting(stepped: SteppedStore, call: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Begin a call, and run its lookup or read without delivering what that has found."""
    task = asyncio.get_running_loop().create_task(call)
    await stepped.turns(3)
    stepped.read()
    await stepped.turns(3)
    assert not task.done()
    return task


async def ended(stepped: SteppedStore, task: "asyncio.Task[T]") -> T:
    await stepped.settle(task.done)
    return task.result()


def binary(body: bytes, ttl: int | None = None) -> Create:
    return Create(BINARY, Expiry(ttl=ttl), body)


async def content(stepped: SteppedStore, path: str) -> bytes:
    chunk = await stepped.finish(stepped.store.read(path, START, PLENTY, T0))
    return expect(Chunk, chunk).joined()


def test_a_removed_stream_does_not_come_back_with_a_late_row(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await cold(stepped, "s", binary(b"1"))
        assert await stepped.finish(store.delete("s", T0)) is None
        looking = await waiting(stepped, store.head("s", T0))
        await stepped.save()
        assert await ended(stepped, looking) == StreamNotFound("s")

    race(tmp_path / "data", scenario)


def test_a_late_row_does_not_replace_what_was_saved_since(tmp_path: Path) -> None:
    """A read of a fork loads its source by its number, beside a lookup of the source's path."""

    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await cold(stepped, "s", binary(b"1"))
        looking = await waiting(stepped, store.head("s", T0))
        number = 1
        stream = store._registry.by_number(number)  # as a fork of it would do
        assert stream is not None
        appended = await asyncio.gather(store.append("s", Append(BINARY, b"+"), T0))
        assert isinstance(appended[0], Appended)
        await stepped.save()
        stepped.evict()
        assert expect(StreamInfo, await ended(stepped, looking)).tail == Offset(number, 2)

    race(tmp_path / "data", scenario)


def test_a_late_row_does_not_replace_a_stream_in_memory(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await cold(stepped, "s", binary(b"1"))
        looking = await waiting(stepped, store.head("s", T0))
        assert store._registry.by_number(1) is not None
        assert isinstance(await store.append("s", Append(BINARY, b"+"), T0), Appended)
        assert expect(StreamInfo, await ended(stepped, looking)).tail == Offset(1, 2)
        assert await content(stepped, "s") == b"1+"

    race(tmp_path / "data", scenario)


def test_a_late_state_of_a_producer_is_looked_up_again(tmp_path: Path) -> None:
    """The same append twice: one of them waits until the other is accepted and saved."""

    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await cold(stepped, "s", binary(b"1"))
        first = Append(BINARY, b"2", producer=ProducerClaim("p", 0, 0))
        assert isinstance(await stepped.finish(store.append("s", first, T0)), Appended)
        await stepped.save()
        second = Append(BINARY, b"3", producer=ProducerClaim("p", 0, 1))
        one = await waiting(stepped, store.append("s", second, T0))
        other = asyncio.get_running_loop().create_task(store.append("s", second, T0))
        await stepped.turns(3)
        stepped.read()
        stepped.report(-1)
        await stepped.turns(5)
        assert not expect(Appended, other.result()).repeated
        await stepped.save()
        assert expect(Appended, await ended(stepped, one)).repeated
        assert await content(stepped, "s") == b"123"

    race(tmp_path / "data", scenario)


async def waiting_fork(stepped: SteppedStore) -> "asyncio.Task[Any]":
    """Begin a fork of a cold stream, which waits for bytes of it."""
    await cold(stepped, "s", Create(JSON, body=b"[1,2,3]"))
    request = Create(fork=ForkRequest("s", START, 1))
    forking = asyncio.get_running_loop().create_task(stepped.store.create("f", request, T0))
    await stepped.turns(3)
    for _ in range(2):  # the lookups of the path and of the source
        stepped.read()
        stepped.report()
        await stepped.turns(3)
    stepped.read()
    assert not forking.done()
    return forking


def test_a_fork_finds_a_stream_that_was_created_at_its_path_meanwhile(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        forking = await waiting_fork(stepped)
        creating = asyncio.get_running_loop().create_task(store.create("f", binary(b"x"), T0))
        await stepped.turns(3)
        stepped.read()
        stepped.report(-1)
        await stepped.turns(5)
        assert expect(Created, creating.result()).new
        await stepped.save()
        stepped.evict()
        expect(ConfigMismatch, await ended(stepped, forking))
        assert await content(stepped, "f") == b"x"

    race(tmp_path / "data", scenario)


def test_a_fork_is_refused_if_its_source_is_deleted_meanwhile(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        forking = await waiting_fork(stepped)
        assert await store.delete("s", T0) is None
        outcome = await ended(stepped, forking)
        assert isinstance(outcome, SourceNotFound | SourceGone)
        assert await stepped.finish(store.head("f", T0)) == StreamNotFound("f")

    race(tmp_path / "data", scenario)


def test_a_read_whose_stream_is_deleted_meanwhile_finds_none(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await cold(stepped, "s", binary(b"1"))
        reading = await waiting(stepped, store.read("s", START, PLENTY, T0))
        stepped.report()  # the stream is found, and its bytes are not read yet
        await stepped.turns(3)
        assert await store.delete("s", T0) is None
        await stepped.save()
        assert await ended(stepped, reading) == StreamNotFound("s")

    race(tmp_path / "data", scenario)


def test_a_stream_is_not_evicted_while_its_deletion_waits_for_its_source(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await cold(stepped, "s", binary(b"1"))
        await cold(stepped, "f", Create(fork=ForkRequest("s")))
        deleting = await waiting(stepped, store.delete("f", T0))
        stepped.report()  # the fork is found, and its source is looked up
        await stepped.turns(3)
        stepped.read()
        stepped.evict()
        looking = asyncio.get_running_loop().create_task(store.head("f", T0))
        await stepped.turns(3)
        stepped.read()
        stepped.report(-1)
        await stepped.turns(3)
        assert isinstance(looking.result(), StreamInfo)
        assert await ended(stepped, deleting) is None
        assert await stepped.finish(store.head("f", T0)) == StreamNotFound("f")
        assert await stepped.finish(store.delete("s", T0)) is None
        assert await stepped.finish(store.head("s", T0)) == StreamNotFound("s")

    race(tmp_path / "data", scenario)


def test_an_access_counts_although_memory_is_full_while_it_waits(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await cold(stepped, "s", binary(b"1", ttl=10))
        reading = await waiting(stepped, store.read("s", START, PLENTY, T0 + 8))
        stepped.report()
        await stepped.turns(3)
        stepped.read()
        stepped.evict()
        expect(Chunk, await ended(stepped, reading))
        assert isinstance(await stepped.finish(store.head("s", T0 + 15)), StreamInfo)
        assert await stepped.finish(store.head("s", T0 + 18)) == StreamNotFound("s")

    race(tmp_path / "data", scenario)


def test_a_stream_that_is_saved_while_a_page_is_read_is_listed(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await stepped.finish(store.create("new", binary(b"1"), T0))
        listing = await waiting(stepped, store.list_streams("", "", 10, T0))
        await stepped.save()
        stepped.evict()
        assert [info.path for info in await ended(stepped, listing)] == ["new"]

    race(tmp_path / "data", scenario)


def test_a_stream_that_was_removed_before_a_page_is_not_listed(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await cold(stepped, "old", binary(b"1"))
        assert await stepped.finish(store.delete("old", T0)) is None
        listing = await waiting(stepped, store.list_streams("", "", 10, T0))
        await stepped.save()
        assert await ended(stepped, listing) == []

    race(tmp_path / "data", scenario)


def test_documents_that_are_saved_while_others_are_read_are_found(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await store.put_documents({"a": b"1", "gone": b"1"})
        reading = await waiting(stepped, store.get_documents(""))
        await stepped.save()
        await store.put_documents({"b": b"2", "gone": None})
        await stepped.save()
        assert await ended(stepped, reading) == {"a": b"1", "b": b"2"}

    race(tmp_path / "data", scenario)


class Replaced:
    """A catalog that lists extents of a segment that is gone, so many times."""

    def __init__(self, catalog: Catalog, times: int) -> None:
        self.path = catalog.path
        self._catalog = catalog
        self._times = times

    def extents(self, stream: int, begin: int, end: int) -> list[Extent]:
        found = self._catalog.extents(stream, begin, end)
        if self._times:
            self._times -= 1
            return [extent._replace(segment=999) for extent in found]
        return found


def test_a_segment_that_compaction_replaced_is_looked_up_again(tmp_path: Path) -> None:
    async def scenario(stepped: SteppedStore) -> None:
        store = stepped.store
        await cold(stepped, "s", binary(b"1"))
        segments = store._reads._segments
        segments.catalog = Replaced(store._catalog, 1)  # type: ignore[assignment]
        assert await content(stepped, "s") == b"1"
        segments.catalog = Replaced(store._catalog, 2)  # type: ignore[assignment]
        outcome = await stepped.finish(store.read("s", START, PLENTY, T0))
        assert "0000000000000999.seg" in expect(BytesDamaged, outcome).place

    race(tmp_path / "data", scenario)


def test_a_call_that_waits_while_the_store_closes_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        store = DiskStore(tmp_path / "data", _OPTIONS, lambda: T0)
        await store.open()
        stepped = SteppedStore(store)
        await cold(stepped, "s", binary(b"1"))
        task = await waiting(stepped, store.append("s", Append(BINARY, b"2"), T0))
        stepped.use_real_threads()
        await store.close()
        stepped.report()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert type(outcome).__name__ == "StoreNotOpen"

    run_stepped(run())
