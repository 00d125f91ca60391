"""The budget holds: memory and open files stay bounded, whatever goes through the store."""

import asyncio
import gc
import http.client
import resource
import socket
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from headwater.protocol.expiry import Expiry
from headwater.protocol.lifecycle import Append
from headwater.protocol.producers import ProducerClaim, SequenceGap
from headwater.protocol.refusals import StreamNotFound
from headwater.storage.disk.compaction import MERGE_AT
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.steps import SMALL, until_at_rest, with_store
from tests.suites.steps import JSON, T0, append, create, expect, head, read
from tests.support.patience import wait_until
from tests.support.server import ServerProcess
from tests.support.wire import BINARY, ROOT, Wire

MIB: Final = 1024 * 1024
_BODY: Final = 256 * 1024


def test_a_server_stores_far_more_than_its_memory(tmp_path: Path) -> None:
    server = ServerProcess(
        *("--memory-budget-bytes", str(16 * MIB), "--journal-bytes", str(8 * MIB)),
        *("--max-open-segments", "8", "--durability", "os", "--read-cache-bytes", "0"),
        store=tmp_path / "data",
    ).start()
    try:
        with Wire(server.port) as wire:
            streams = [f"s{number}" for number in range(20)]
            for path in streams:
                assert wire.ask_stream("PUT", path, {"Content-Type": BINARY}).status == 201
            before, files = server.rss(), server.open_files()
            most_memory = most_files = 0
            for number in range(300 * MIB // _BODY):
                path = streams[number % len(streams)]
                body = number.to_bytes(4, "big") * (_BODY // 4)
                assert wire.ask_stream("POST", path, {"Content-Type": BINARY}, body).status == 204
                if number % 20 == 0:
                    most_memory = max(most_memory, server.rss())
                    most_files = max(most_files, server.open_files())
            # The budget, the batch in flight, and what a checkpoint and a compaction hold.
            assert most_memory - before < 60 * MIB, f"{most_memory / MIB:.0f} MiB"
            # Readers' segments, those of a compaction and the new ones of both, the next journal
            # file and the one it is made of, and what SQLite has open for a moment.
            most = files + 8 + MERGE_AT + 8
            assert most_files <= most
            for path in streams[:3]:
                assert _length(server.port, path) == 300 * MIB // len(streams)
            assert server.rss() - before < 60 * MIB
            assert server.open_files() <= most
    finally:
        server.kill()


def test_the_budget_holds_where_no_file_can_be_opened(tmp_path: Path) -> None:
    """Idle connections have taken all that may be open: there is no next journal file."""
    server = ServerProcess(
        *("--memory-budget-bytes", str(4 * MIB), "--journal-bytes", str(MIB)),
        *("--checkpoint-interval", "0.3", "--read-cache-bytes", "0"),
        store=tmp_path / "data",
        limit=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
    ).start()
    idle = []
    try:
        with Wire(server.port) as wire:
            assert wire.ask_stream("PUT", "a", {"Content-Type": BINARY}).status == 201
            idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
            wait_until(lambda: server.open_files() >= 128, "taking all that may be open")
            before = server.rss()
            answers = [
                wire.ask_stream("POST", "a", {"Content-Type": BINARY}, bytes(_BODY))
                for _ in range(200)
            ]
            accepted = sum(answer.status == 204 for answer in answers)
            assert accepted * _BODY < 8 * MIB
            refused = answers[-1].problem(503, "store-unwritable")
            assert "Try again later" in refused["detail"]
            assert server.rss() - before < 40 * MIB
            for connection in idle:
                connection.close()

            def is_accepted() -> bool:
                answer = wire.ask_stream("POST", "a", {"Content-Type": BINARY}, b"x")
                return answer.status == 204

            wait_until(is_accepted, "an accepted append")
            assert _length(server.port, "a") == accepted * _BODY + 1
        assert server.stop() == 0, server.log()
    finally:
        for connection in idle:
            connection.close()
        server.kill()


def _length(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    length, offset = 0, "-1"
    while True:
        connection.request("GET", f"{ROOT}{path}?offset={offset}")
        response = connection.getresponse()
        length += len(response.read())
        offset = response.headers["stream-next-offset"]
        if response.headers["stream-up-to-date"]:
            connection.close()
            return length


async def growth(
    store: DiskStore, work: Callable[[int], Awaitable[object]], first: int, upto: int
) -> int:
    """Return by how much memory grew while something was done many times."""
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(first, upto):
            await work(number)
        await until_at_rest(store)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_streams_that_are_only_read_are_evicted(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    count = 3000
    options = DiskOptions(max_loaded_streams=50, durability="os", checkpoint_seconds=3600)

    async def fill(store: DiskStore) -> None:
        for number in range(count):
            await create(store, f"s{number}", body=b"1")

    async def look_at_all(store: DiskStore) -> None:
        async def look(number: int) -> None:
            await head(store, f"s{number}")
            await read(store, f"s{number}")
            await asyncio.sleep(0)

        # A stream takes about a kilobyte.
        assert await growth(store, look, 0, count) < 500_000

    with_store(folder, fill, options)
    with_store(folder, look_at_all, options)


def test_producers_that_came_and_went_are_not_kept_in_memory(tmp_path: Path) -> None:
    """Sessions with names of their own must not add up on a stream that is always in use."""
    options = DiskOptions(
        tail_budget=64 * 1024, durability="os", journal_bytes=64 * 1024, checkpoint_seconds=0.05
    )

    async def scenario(store: DiskStore) -> None:
        async def session(number: int) -> None:
            await append(store, producer=ProducerClaim(f"session-{number}", 0, 0))

        await create(store)
        for number in range(1000):
            await session(number)
        await until_at_rest(store)
        # Each would take some 300 bytes.
        grown = await growth(store, session, 1000, 6000)
        assert grown < 500_000, grown
        for number in (0, 17, 4999, 5999):
            claim = ProducerClaim(f"session-{number}", 0, 0)
            assert (await append(store, producer=claim)).repeated

    with_store(tmp_path / "data", scenario, options)


def test_producers_that_are_refused_are_not_kept_in_memory(tmp_path: Path) -> None:
    options = DiskOptions(durability="os", checkpoint_seconds=0.05)

    async def scenario(store: DiskStore) -> None:
        async def refused(number: int) -> None:
            request = Append(JSON, b"1", producer=ProducerClaim(f"session-{number}", 0, 7))
            expect(SequenceGap, await store.append("s", request, T0))

        async def repeated(number: int) -> None:
            claim = ProducerClaim(f"known-{number}", 0, 0)
            assert (await append(store, producer=claim)).repeated

        await create(store)
        for number in range(3000):
            await append(store, producer=ProducerClaim(f"known-{number}", 0, 0))
        await until_at_rest(store)
        # Each would take more than a hundred bytes.
        assert await growth(store, refused, 0, 5000) < 100_000
        assert await growth(store, repeated, 0, 3000) < 100_000

    with_store(tmp_path / "data", scenario, options)


def test_a_stream_deleted_under_a_waiting_call_does_not_come_back(tmp_path: Path) -> None:
    """A repeated append waits for the batch that deletes its stream, then counts as an access."""
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        await create(store, expiry=Expiry(ttl=1000))
        claim = ProducerClaim("p", 0, 0)
        request = Append(JSON, b"1", producer=claim)
        calls = [
            store.append("s", request, T0),
            store.append("s", request, T0),
            store.delete("s", T0),
        ]
        await asyncio.gather(*calls)
        assert await store.head("s", T0) == StreamNotFound("s")

    async def look(store: DiskStore) -> None:
        assert await store.head("s", T0) == StreamNotFound("s")

    with_store(folder, scenario, SMALL)
    with_store(folder, look, SMALL)
