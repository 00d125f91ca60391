"""Admission under HTTP/1.1 and ASGI: bytes are counted while held, and always released."""

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import brotli
import pytest
import uvicorn
import zstandard

from headwater.protocol.lifecycle import Append
from headwater.server import Server, Settings, asgi_app
from headwater.server.admission import Admission, Overload, TooLarge
from headwater.server.app import Application
from headwater.server.compression import decompress
from headwater.storage.memory import MemoryStore
from headwater.storage.refusals import AppendRefusal
from headwater.storage.store import Appended
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.wire import build

S: Final = "/v1/stream/s"
TEXT: Final = {"Content-Type": "text/plain", "Connection": "close"}
GZIP: Final = TEXT | {"Content-Encoding": "gzip"}
MIB: Final = 1024 * 1024
BUDGET: Final = 100_000


class GatedStore(MemoryStore):
    """A store whose appends wait for a gate, and fail on request."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False

    async def append(self, path: str, request: Append, now: float) -> Appended | AppendRefusal:
        self.entered.set()
        await self.gate.wait()
        if self.fails:
            raise RuntimeError("the store is broken")
        return await super().append(path, request, now)


class Running(NamedTuple):
    """A server of either kind, on the loop of the test."""

    app: Application
    store: GatedStore
    port: int

    async def ask(self, request: bytes) -> int:
        """Send a request on a connection of its own; return the status of the response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n")
            await reader.read()
            return int(head.split()[1])
        finally:
            writer.close()

    async def post(self, body: bytes, headers: dict[str, str] = TEXT) -> int:
        return await self.ask(build("POST", S, headers, body))

    async def is_empty(self) -> bool:
        """Check that nothing is counted, and that a body as large as the budget is accepted."""
        admission = self.app.admission
        await until(lambda: not admission.buffered, "the release of every byte")
        return await self.post(b"x" * admission.max_buffered) == 204


@asynccontextmanager
async def http1(settings: Settings) -> AsyncIterator[Running]:
    store = GatedStore()
    server = Server(settings, store)
    await server.start()
    try:
        yield Running(server.app, store, urlsplit(server.url).port or 0)
    finally:
        await server.stop()


@asynccontextmanager
async def asgi(settings: Settings) -> AsyncIterator[Running]:
    store = GatedStore()
    adapter = asgi_app(store, settings)
    config = uvicorn.Config(adapter, port=0, log_level="warning")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Running(adapter.app, store, port)
    finally:
        server.force_exit = True
        await server.shutdown()


Wire = Callable[[Settings], Any]
over_both_wires = pytest.mark.parametrize("wire", [http1, asgi])


def run(
    wire: Wire, scenario: Callable[[Running], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    limits = {"max_body_bytes": BUDGET, "max_buffered_bytes": BUDGET, **settings}

    async def main() -> None:
        async with wire(Settings(store="memory", port=0, **limits)) as running:
            await running.ask(build("PUT", S, TEXT))
            await scenario(running)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_SECONDS))


@over_both_wires
def test_a_compressed_body_is_counted_as_it_is_held(wire: Wire) -> None:
    async def scenario(running: Running) -> None:
        running.store.gate.clear()
        post = asyncio.create_task(running.post(gzip.compress(bytes(80_000)), GZIP))
        await running.store.entered.wait()
        assert running.app.admission.buffered == 80_000
        assert await running.post(gzip.compress(bytes(30_000)), GZIP) == 429
        assert running.app.admission.buffered == 80_000
        running.store.gate.set()
        assert await post == 204
        assert await running.is_empty()

    run(wire, scenario)


@over_both_wires
def test_only_the_request_over_the_budget_is_refused(wire: Wire) -> None:
    async def scenario(running: Running) -> None:
        admission = running.app.admission
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        body = b"x" * 60_000
        writer.write(build("POST", S, TEXT, body)[:-1])
        await until(lambda: admission.buffered == len(body) - 1, "the arrival of the body")
        assert await running.post(body) == 429
        assert await running.post(gzip.compress(body), GZIP) == 429
        assert await running.post(b"x" * 40_000) == 204
        writer.write(body[-1:])
        assert (await reader.readline()).split()[1] == b"204"
        writer.close()
        assert await running.is_empty()

    run(wire, scenario)


@over_both_wires
def test_a_refused_body_is_released(wire: Wire) -> None:
    async def scenario(running: Running) -> None:
        packed = gzip.compress(bytes(range(256)) * 300)
        for body, headers, status in (
            (b"x" * (BUDGET + 1), TEXT, 413),
            (gzip.compress(bytes(BUDGET + 1)), GZIP, 413),
            (packed[:-20], GZIP, 400),
            (b"this is not compressed", GZIP, 400),
            (b"hello", TEXT | {"Content-Encoding": "lzma"}, 415),
            (gzip.compress(packed), TEXT | {"Content-Encoding": "br, gzip"}, 400),
        ):
            assert await running.post(body, headers) == status
            assert await running.is_empty()

    run(wire, scenario)


@over_both_wires
def test_a_body_is_released_when_its_client_disconnects(wire: Wire) -> None:
    async def scenario(running: Running) -> None:
        admission = running.app.admission
        chunked = build("POST", S, {"Content-Type": "text/plain", "Transfer-Encoding": "chunked"})
        for request, length in (
            (build("POST", S, TEXT, b"x" * 60_000)[:-1], 59_999),
            (chunked.replace(b"Content-Length: 0\r\n", b"") + b"64\r\n" + b"x" * 100, 100),
        ):
            _, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(request)
            await until(lambda n=length: admission.buffered == n, "the arrival of the body")  # type: ignore[misc]
            writer.close()
            assert await running.is_empty()

    run(wire, scenario)


@over_both_wires
def test_a_body_is_released_when_its_client_disconnects_before_the_response(wire: Wire) -> None:
    async def scenario(running: Running) -> None:
        running.store.gate.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(build("POST", S, GZIP, gzip.compress(bytes(80_000))))
        await running.store.entered.wait()
        writer.close()
        await until(lambda: running.app.admission.connections <= 1, "the disconnection")
        running.store.gate.set()  # uvicorn lets a handler finish
        assert await running.is_empty()

    run(wire, scenario)


@over_both_wires
def test_a_body_is_released_when_its_handler_fails(wire: Wire) -> None:
    async def scenario(running: Running) -> None:
        running.store.fails = True
        assert await running.post(b"x" * 60_000) == 500
        assert await running.post(gzip.compress(bytes(60_000)), GZIP) == 500
        running.store.fails = False
        assert await running.is_empty()

    run(wire, scenario)


@over_both_wires
def test_connections_are_limited_and_released(wire: Wire) -> None:
    async def scenario(running: Running) -> None:
        admission = running.app.admission
        polls = []
        for _ in range(2):
            polls.append(await asyncio.open_connection("127.0.0.1", running.port))
            polls[-1][1].write(build("GET", f"{S}?offset=now&live=long-poll"))
        await until(lambda: len(running.app.context.drain_callbacks) == 2, "both long-polls")
        assert await running.ask(build("GET", S, TEXT)) == 429
        for _, writer in polls:
            writer.close()
        await until(lambda: not admission.connections, "the release of the connections")
        assert await running.ask(build("GET", S, TEXT)) == 200

    run(wire, scenario, max_connections=2, long_poll_timeout=0.5)


CODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": gzip.compress,
    "br": lambda data: bytes(brotli.compress(data, quality=1)),
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_over_the_budget_is_refused_while_it_is_decoded(coding: str) -> None:
    """Its size limit would allow it: the budget ends it long before it is whole."""
    bomb = CODINGS[coding](bytes(64 * MIB))
    admission = Admission(1, max_body=128 * MIB, max_buffered=MIB)

    async def scenario() -> None:
        hold = admission.hold()
        assert hold.add(len(bomb)) is None
        tracemalloc.start()
        try:
            outcome = await decompress(bomb, coding, hold)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert isinstance(outcome, Overload)
        assert peak < 4 * MIB
        assert admission.buffered == len(bomb)
        hold.release()
        assert admission.buffered == 0

    asyncio.run(scenario())


def test_a_cancelled_request_releases_what_it_decoded() -> None:
    admission = Admission(1, max_body=64 * MIB, max_buffered=64 * MIB)
    packed = gzip.compress(bytes(64 * MIB), 1)

    async def scenario() -> None:
        hold = admission.hold()
        hold.add(len(packed))
        task = asyncio.create_task(decompress(packed, "gzip", hold))
        await until(lambda: admission.buffered > len(packed), "the first decoded bytes")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert admission.buffered == len(packed)
        hold.release()
        hold.release()
        assert admission.buffered == 0

    asyncio.run(scenario())


def test_an_announced_length_is_checked_and_not_counted() -> None:
    admission = Admission(1, max_body=100, max_buffered=150)
    first, second = admission.hold(), admission.hold()
    assert first.expect(100) is None
    assert admission.buffered == 0
    assert isinstance(first.expect(101), TooLarge)
    assert first.add(100) is None
    assert second.expect(50) is None
    assert isinstance(second.expect(51), Overload)
