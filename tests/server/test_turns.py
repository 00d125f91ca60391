"""What one connection may do in a turn of the event loop, counted in requests and bytes.

However much a client sends at once, its connection handles a few requests, lets the loop run, and
continues after the other connections.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

import pytest

from headwater.server.http1.connection import Connection
from headwater.server.http1.endpoint import Endpoint
from headwater.server.settings import Settings
from tests.server.http1_peer import App, Peer, replies
from tests.support.patience import PATIENCE_SECONDS
from tests.support.wire import build

TURN_REQUESTS: Final = 32
TURN_BYTES: Final = 64 * 1024
PIECE_BYTES: Final = 4096
PACKET_BYTES: Final = 256 * 1024
"""What a transport reads at once."""
UPGRADE: Final = {"Connection": "Upgrade", "Upgrade": "h2c"}


class Clients:
    """Connections of one endpoint."""

    def __init__(self) -> None:
        self.app = App(Settings(store="memory", port=0))
        self.endpoint = Endpoint(cast("Any", self.app))
        self.peers: list[Peer] = []

    def connect(self) -> tuple[Connection, Peer]:
        peer = Peer(self.endpoint.loop)
        connection = peer.protocol = Connection(self.endpoint)
        connection.connection_made(peer)
        self.peers.append(peer)
        return connection, peer

    def handled(self) -> int:
        """Return how many requests were handled since this was called last."""
        count = len(self.app.handled)
        self.app.handled.clear()
        return count

    async def turns(self) -> list[int]:
        """Run the loop until nothing is handled any more; return the requests of each turn."""
        counts = [self.handled()]
        await asyncio.sleep(0)
        while count := self.handled():
            counts.append(count)
            await asyncio.sleep(0)
        return counts


def run(scenario: Callable[[Clients], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        clients = Clients()
        try:
            await scenario(clients)
        finally:
            for peer in clients.peers:
                peer.lose()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_SECONDS))


def numbered(count: int, headers: dict[str, str] | None = None) -> bytes:
    return b"".join(build("GET", f"/now/{number}", headers) for number in range(count))


@pytest.mark.parametrize("headers", [{}, UPGRADE], ids=["plain", "upgrade"])
def test_another_connection_is_served_between_the_requests_of_a_pipeline(
    headers: dict[str, str],
) -> None:
    async def scenario(clients: Clients) -> None:
        greedy, peer = clients.connect()
        other, _ = clients.connect()
        greedy.data_received(numbered(3000, headers))
        assert clients.handled() == TURN_REQUESTS
        for _ in range(3):
            other.data_received(build("GET", "/now/1"))
            assert clients.handled() == 1
            assert not peer.reading
            await asyncio.sleep(0)
            assert clients.handled() == TURN_REQUESTS
        assert max(await clients.turns()) == TURN_REQUESTS
        assert peer.reading
        assert [reply.number for reply in replies(peer.received)] == list(range(3000))

    run(scenario)


def test_responses_are_written_at_the_end_of_each_turn() -> None:
    async def scenario(clients: Clients) -> None:
        greedy, peer = clients.connect()
        greedy.data_received(numbered(1000))
        for turn in range(10):
            assert len(replies(peer.received)) == turn * TURN_REQUESTS
            await asyncio.sleep(0)

    run(scenario)


def test_requests_that_waited_for_a_handler_are_handled_in_turns_too() -> None:
    async def scenario(clients: Clients) -> None:
        connection, peer = clients.connect()
        connection.data_received(build("GET", "/later/0") + numbered(1000))
        assert clients.handled() == 1
        assert not peer.reading
        clients.app.waiting[0].set_result(None)
        counts = await clients.turns()
        assert sum(counts) == 1000
        assert max(counts) == TURN_REQUESTS
        assert len(replies(peer.received)) == 1001

    run(scenario)


def test_few_requests_wait_in_memory_while_a_handler_runs() -> None:
    """The shortest requests there are: what is not parsed costs no more than its bytes."""

    async def scenario(clients: Clients) -> None:
        connection, _ = clients.connect()
        shortest = b"GET /now/0 HTTP/1.1\r\n\r\n"
        connection.data_received(build("GET", "/later/0") + shortest * 10_000)
        most = TURN_REQUESTS + PIECE_BYTES // len(shortest)
        assert 0 < len(connection._queue) <= most

    run(scenario)


def test_the_last_request_of_long_input_is_handled_after_those_before_it() -> None:
    async def scenario(clients: Clients) -> None:
        connection, peer = clients.connect()
        chunked = build("POST", "/now/0", {"Transfer-Encoding": "chunked"})
        chunked = chunked.replace(b"Content-Length: 0\r\n", b"") + b"0\r\n\r\n"
        last = build("GET", "/now/1", {"Connection": "close"})
        connection.data_received(chunked + last + b"x" * PIECE_BYTES)
        await clients.turns()
        assert [reply.number for reply in replies(peer.received)] == [0, 1]

    run(scenario)


@pytest.mark.parametrize("count", [80, 600], ids=["queued", "pending"])
def test_a_stopping_server_answers_what_it_has_received(count: int) -> None:
    async def scenario(clients: Clients) -> None:
        connection, peer = clients.connect()
        connection.data_received(numbered(count))
        clients.endpoint.stop()
        await clients.turns()
        found = replies(peer.received)
        assert [reply.number for reply in found] == list(range(count))
        assert [reply.closes for reply in found] == [False] * (count - 1) + [True]
        assert peer.ended

    run(scenario)


@pytest.mark.parametrize("count", [80, 600], ids=["queued", "pending"])
def test_what_arrives_while_reading_is_paused_keeps_its_place(count: int) -> None:
    """A transport may have read it already."""

    async def scenario(clients: Clients) -> None:
        connection, peer = clients.connect()
        batch = numbered(count)
        connection.data_received(batch[: len(batch) // 2])
        assert not peer.reading
        connection.data_received(batch[len(batch) // 2 :] + b"GET /incomplete")
        connection.eof_received()
        await clients.turns()
        assert [reply.number for reply in replies(peer.received)] == list(range(count))
        assert peer.is_closing()

    run(scenario)


def test_no_100_is_sent_while_earlier_requests_wait_for_the_next_turn() -> None:
    """It would be taken for a response to one of them."""

    async def scenario(clients: Clients) -> None:
        connection, peer = clients.connect()
        head = build("POST", "/now/40", {"Expect": "100-continue"}, b"body")[:-4]
        connection.data_received(numbered(40) + head)
        await clients.turns()
        assert len(replies(peer.received)) == 40
        assert b" 100 " not in peer.received
        connection.data_received(b"body")
        await clients.turns()
        assert len(replies(peer.received)) == 41

    run(scenario)


def test_a_chunked_body_is_parsed_in_turns() -> None:
    async def scenario(clients: Clients) -> None:
        connection, peer = clients.connect()
        head = build("POST", "/now/0", {"Transfer-Encoding": "chunked"})
        connection.data_received(head.replace(b"Content-Length: 0\r\n", b""))
        connection.data_received(b"2\r\nxy\r\n" * (PACKET_BYTES // 7))
        turns = 0
        while not peer.reading:
            assert clients.app.admission.buffered <= (turns + 1) * TURN_BYTES
            await asyncio.sleep(0)
            turns += 1
        assert turns >= PACKET_BYTES // TURN_BYTES - 1
        connection.data_received(b"0\r\n\r\n")
        assert clients.handled() == 1

    run(scenario)


def test_a_body_is_read_once_in_a_turn_where_it_fills_the_buffer_of_the_transport() -> None:
    async def scenario(clients: Clients) -> None:
        connection, peer = clients.connect()
        size = 3 * PACKET_BYTES
        request = build("POST", "/now/0", body=b"x" * size)
        for start in range(0, size, PACKET_BYTES):
            assert peer.reading
            connection.data_received(request[start : start + PACKET_BYTES])
            assert not peer.reading
            await asyncio.sleep(0)
        connection.data_received(request[size:])
        assert clients.handled() == 1

    run(scenario)


def test_a_request_of_several_pieces_is_repeated_without_parsing_it_again() -> None:
    async def scenario(clients: Clients) -> None:
        connection, peer = clients.connect()
        request = build("POST", "/now/0", body=b"x" * 3 * PIECE_BYTES)
        head = request[: request.index(b"\r\n\r\n") + 4]
        for _ in range(2):
            connection.data_received(request)
            assert clients.endpoint.heads.find(head, 3 * PIECE_BYTES) is not None
        await asyncio.sleep(0)
        assert len(replies(peer.received)) == 2
        assert clients.app.admission.buffered == 0

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"x" * 5000], ids=["small", "long"])
def test_the_head_of_one_request_is_not_cached_for_another(body: bytes) -> None:
    """What follows a declined upgrade, or a first request, is a request of its own."""

    async def scenario(clients: Clients) -> None:
        connection, peer = clients.connect()
        for headers in (UPGRADE, {}):
            first = build("POST", "/now/0", headers, body)
            connection.data_received(first + build("GET", "/now/1") + build("GET", "/now/2"))
            await clients.turns()
            head = first[: first.index(b"\r\n\r\n") + 4]
            for size in range(10_000):
                assert clients.endpoint.heads.find(head, size) is None
        assert [reply.number for reply in replies(peer.received)] == [0, 1, 2, 0, 1, 2]

    run(scenario)
