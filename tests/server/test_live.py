"""The fan-out of live reads: writers first, then slices of subscribers, one write for each."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.offsets import START
from headwater.server.app import Application
from headwater.server.asgi import AsgiApp
from headwater.server.context import Context
from headwater.server.handlers.live import SLICE, EventFeed, EventStream, Fanout
from headwater.server.http1.connection import Connection
from headwater.server.http1.endpoint import Endpoint
from headwater.server.settings import Settings
from headwater.storage.disk.store import DiskStore
from headwater.storage.memory import MemoryStore
from headwater.storage.store import Store
from tests.support.patience import PATIENCE_SECONDS
from tests.support.wire import build

PATH: Final = "s"
JSON: Final = "application/json"
Log = list[tuple[str, int]]


async def turns_until(condition: Callable[[], bool]) -> None:
    """Run the loop turn by turn until a condition holds."""
    while not condition():  # noqa: ASYNC110 - an event would be seen in a later turn
        await asyncio.sleep(0)


class Client:
    """A sink that records what is written to it."""

    chunked = False

    def __init__(self, log: Log, number: int) -> None:
        self._log = log
        self._number = number
        self.feed: EventFeed
        self.full = False
        self.ended = False
        self.writes: list[bytes] = []

    def write(self, frame: bytes) -> None:
        assert not self.full, "written to although it is full"
        self.writes.append(frame)
        self._log.append(("served", self._number))

    def end(self) -> None:
        self.ended = True

    @property
    def messages(self) -> list[int]:
        """Return the messages of all data events, in the order in which they were written."""
        found: list[int] = []
        for event in b"".join(self.writes).decode().split("\n\n"):
            kind, _, data = event.partition("\ndata:")
            if kind == "event: data":
                found += json.loads(data.replace("\ndata:", "\n"))
        return found


class Audience:
    """A stream with clients that follow it, on one loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.log: Log = []
        self.clients: list[Client] = []
        self.appended: list[int] = []
        self._fanout = Fanout(Context(store, Settings()))

    async def join(self, count: int = 1) -> None:
        for _ in range(count):
            client = Client(self.log, len(self.clients))
            response = await self._fanout.subscribe(PATH, START, None)
            assert isinstance(response, EventStream)
            client.feed = response.feed
            self.clients.append(client)
            client.feed.start(client)

    async def append(self) -> None:
        """Append the next number, and record when that is acknowledged."""
        number = len(self.appended)
        self.appended.append(number)
        await self.store.append(PATH, Append(JSON, b"%d" % number), 0.0)
        self.log.append(("acknowledged", number))

    async def quiet(self) -> None:
        """Wait until nothing has been written for several turns of the loop."""
        seen = -1
        while seen != len(self.log):
            seen = len(self.log)
            for _ in range(10 + len(self.clients) // SLICE):
                await asyncio.sleep(0)

    def forget(self) -> None:
        """Drop what has been recorded so far."""
        self.log.clear()
        for client in self.clients:
            client.writes.clear()


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DiskStore(tmp_path)


def runs(store: Store, scenario: Callable[[Audience], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await store.open()
        await store.create(PATH, Create(JSON), 0.0)
        audience = Audience(store)
        await scenario(audience)
        for client in audience.clients:
            client.feed.stop()
        await audience.quiet()
        await store.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


def test_an_append_is_acknowledged_before_any_subscriber_is_served(store: Store) -> None:
    async def scenario(audience: Audience) -> None:
        await audience.join(300)
        await audience.quiet()
        audience.forget()
        await asyncio.gather(*(audience.append() for _ in range(4)))
        await turns_until(lambda: len(audience.log) == 304)
        assert audience.log[:4] == [("acknowledged", number) for number in range(4)]
        assert audience.log[4:] == [("served", number) for number in range(300)]

    runs(store, scenario)


def test_appends_are_acknowledged_between_two_slices_and_share_the_next_write() -> None:
    async def scenario(audience: Audience) -> None:
        await audience.join(4 * SLICE)
        await audience.quiet()
        audience.forget()
        await audience.append()
        await turns_until(lambda: len(audience.log) == 1 + SLICE)
        for _ in range(5):
            await audience.append()
        assert len(audience.log) == 1 + SLICE + 5
        await audience.quiet()
        assert all(client.messages == audience.appended for client in audience.clients)
        counts = [len(client.writes) for client in audience.clients]
        # The second slice is served in the turn of the appends, which are notified in the next one.
        assert counts == 2 * SLICE * [2] + 2 * SLICE * [1]

    runs(MemoryStore(), scenario)


def test_a_turn_of_the_loop_serves_one_slice() -> None:
    async def scenario(audience: Audience) -> None:
        loop = asyncio.get_running_loop()
        turn = 0

        def tick() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(tick)

        await audience.join(5 * SLICE + 1)
        await audience.quiet()
        audience.forget()
        tick()
        await audience.append()
        turns: Counter[int] = Counter()
        served = len(audience.log)
        while sum(turns.values()) < len(audience.clients):
            await asyncio.sleep(0)
            turns[turn] += len(audience.log) - served
            served = len(audience.log)
        assert sorted(count for count in turns.values() if count) == [1, *5 * [SLICE]]

    runs(MemoryStore(), scenario)


def test_a_full_subscriber_does_not_delay_others_and_catches_up_in_one_write(store: Store) -> None:
    async def scenario(audience: Audience) -> None:
        await audience.join(10)
        await audience.quiet()
        slow = audience.clients[4]
        slow.full = True
        audience.forget()
        for _ in range(20):
            await audience.append()
            await audience.quiet()
        assert slow.writes == []
        assert all(
            client.messages == audience.appended
            for client in audience.clients
            if client is not slow
        )
        slow.full = False
        slow.feed.resume()
        await audience.quiet()
        assert slow.messages == audience.appended
        assert len(slow.writes) == 1
        await audience.append()
        await audience.quiet()
        assert slow.messages == audience.appended

    runs(store, scenario)


def test_a_change_is_read_once_for_all_subscribers() -> None:
    class CountingStore(MemoryStore):
        reads = 0

        async def read(self, *given: Any, **options: Any) -> Any:
            self.reads += 1
            return await super().read(*given, **options)

    store = CountingStore()

    async def scenario(audience: Audience) -> None:
        await audience.join(4 * SLICE)
        await audience.quiet()
        before = store.reads
        await audience.append()
        await audience.quiet()
        assert store.reads == before + 1

    runs(store, scenario)


class WaitingStore(MemoryStore):
    """A store whose reads return a few turns after they have looked."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def read(self, *given: Any, **options: Any) -> Any:
        chunk = await super().read(*given, **options)
        for _ in range(self._chance.randrange(3)):
            await asyncio.ensure_future(asyncio.sleep(0))
        return chunk


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_each_subscriber_gets_everything_in_order_however_turns_interleave(
    seed: int, waiting: bool
) -> None:
    chance = random.Random(seed)

    async def scenario(audience: Audience) -> None:
        async def stall() -> None:
            chance.choice(audience.clients).full = True

        async def proceed() -> None:
            client = chance.choice(audience.clients)
            client.full = False
            client.feed.resume()

        async def leave() -> None:
            chance.choice(audience.clients).feed.stop()

        async def turn() -> None:
            await asyncio.sleep(0)

        steps: list[Callable[[], Awaitable[None]]] = [
            *(6 * [audience.append]),
            *(6 * [turn]),
            *(2 * [stall, proceed, audience.join]),
            leave,
        ]
        await audience.join(2 * SLICE + 5)
        for _ in range(400):
            await chance.choice(steps)()
        staying = [client for client in audience.clients if client.feed._sink is not None]
        for client in staying:
            client.full = False
            client.feed.resume()
        await audience.quiet()
        assert all(client.messages == audience.appended for client in staying)
        await audience.store.append(PATH, Append(JSON, close=True), 0.0)
        await audience.quiet()
        for client in audience.clients:
            if client in staying:
                assert client.ended
                assert client.messages == audience.appended
            else:
                assert client.messages == audience.appended[: len(client.messages)]

    runs(WaitingStore(chance) if waiting else MemoryStore(), scenario)


def test_a_subscriber_of_a_deleted_stream_does_not_end_one_of_its_successor() -> None:
    async def scenario(audience: Audience) -> None:
        await audience.join()
        await audience.quiet()
        # Nothing is notified before all of this is done.
        await audience.store.delete(PATH, 0.0)
        await audience.store.create(PATH, Create(JSON), 0.0)
        await audience.join()
        await audience.append()
        await audience.quiet()
        old, new = audience.clients
        assert (old.ended, old.messages) == (True, [])
        assert (new.ended, new.messages) == (False, [0])

    runs(MemoryStore(), scenario)


class Transport(asyncio.Transport):
    """Records what a connection writes, and when."""

    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        super().__init__()
        self._log = log
        self._name = name

    def write(self, data: Any) -> None:
        self._log.append((self._name, bytes(data)))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


Wires = list[tuple[str, bytes]]
Request = Callable[[str, bytes], None]


@asynccontextmanager
async def over_http1(log: Wires) -> AsyncIterator[Request]:
    """Requests on connections of their own, by HTTP/1.1."""
    store = MemoryStore()
    await store.open()
    endpoint = Endpoint(Application(store, Settings()))
    connections: list[Connection] = []

    def request(name: str, data: bytes) -> None:
        connection = Connection(endpoint)
        connections.append(connection)
        connection.connection_made(Transport(log, name))
        connection.data_received(data)

    yield request
    for connection in connections:
        connection.connection_lost(None)
    await store.close()


@asynccontextmanager
async def over_asgi(log: Wires) -> AsyncIterator[Request]:
    """The same requests, by ASGI."""
    app = AsgiApp(MemoryStore(), Settings())
    await app.startup()
    tasks: list[asyncio.Task[None]] = []

    def request(name: str, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        path, _, query = line.split()[1].partition(b"?")
        messages: Iterator[Any] = iter([{"type": "http.request", "body": body}])

        async def receive() -> Any:
            message = next(messages, None)
            return message or await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            status = b"HTTP/1.1 %d" % message["status"] if "status" in message else b""
            log.append((name, status + message.get("body", b"")))

        scope = {
            "type": "http",
            "method": line.split()[0].decode(),
            "path": path.decode(),
            "query_string": query,
            "headers": [
                (key.strip().lower(), value.strip())
                for key, _, value in (each.partition(b":") for each in lines)
            ],
        }
        tasks.append(asyncio.ensure_future(app(scope, receive, send)))

    yield request
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await app.shutdown()


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
@pytest.mark.parametrize("wire", [over_http1, over_asgi])
def test_the_response_to_an_append_is_written_before_any_to_live_readers(
    wire: Callable[[Wires], Any], mode: str
) -> None:
    """Appends that arrive together are answered, then all readers are written to."""

    async def scenario() -> None:
        log: Wires = []
        async with wire(log) as request:
            headers = {"Content-Type": JSON}
            request("creator", build("PUT", "/v1/stream/s", headers))
            await turns_until(lambda: written(log, b"HTTP/1.1 201") == 1)
            for _ in range(150):
                request("reader", build("GET", f"/v1/stream/s?offset=-1&live={mode}"))
            for _ in range(10):
                await asyncio.sleep(0)
            log.clear()
            for number in range(3):
                request("writer", build("POST", "/v1/stream/s", headers, b'"m%d"' % number))
            await turns_until(lambda: written(log, b'"m0"') == 150)
            names = [
                name for name, data in log if data.startswith(b"HTTP/1.1 204") or b'"m' in data
            ]
            assert names == [*3 * ["writer"], *150 * ["reader"]]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def written(log: Wires, part: bytes) -> int:
    """Return how many writes contain some bytes."""
    return sum(part in data for _, data in log)
