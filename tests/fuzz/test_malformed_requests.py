"""A flood of malformed requests leaves the server answering, without a 500, and no larger.

`HEADWATER_FUZZ_REQUESTS` and `HEADWATER_FUZZ_SEED` choose how many and which; a failure names the
seed. A server closes a connection on what is no HTTP, so each connection carries one batch:
requests that are wrong but end where they say, all of which are answered, and one that is broken.
"""

import os
import re
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.fuzz.requests import BYTES_PATH, JSON_PATH, Maker
from tests.support.effort import examples
from tests.support.patience import PATIENCE_SECONDS, wait_until
from tests.support.server import ServerProcess
from tests.support.wire import Wire

COUNT: Final = int(os.environ.get("HEADWATER_FUZZ_REQUESTS") or examples(100_000, 1_000_000))
SEED: Final = int(os.environ.get("HEADWATER_FUZZ_SEED", "20241009"))
CONNECTIONS: Final = 32
BATCH: Final = 9
GROWTH: Final = 6 * 1024 * 1024

_STATUS: Final = re.compile(rb"HTTP/1\.1 ([2-5]\d\d) ")


class Flood:
    """Keeps some connections busy with batches of malformed requests."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.maker = Maker(seed)
        self.sent = 0
        self.unanswered = 0
        """Requests that end where they say, and got no answer."""
        self.statuses: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._answers: dict[socket.socket, bytes] = {}

    def run(self, count: int) -> None:
        """Send at least so many more requests."""
        until = self.sent + count
        for _ in range(CONNECTIONS):
            self._open()
        heard = time.monotonic()
        while self._selector.get_map():
            assert time.monotonic() < heard + PATIENCE_SECONDS, "the server stopped answering"
            for key, _ in self._selector.select(timeout=1):
                heard = time.monotonic()
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                try:
                    data = sock.recv(1 << 18)
                except OSError:
                    data = b""
                if data:
                    self._answers[sock] += data
                    continue
                self._count(self._answers.pop(sock))
                self._selector.unregister(sock)
                sock.close()
                if self.sent < until:
                    self._open()

    def _count(self, data: bytes) -> None:
        answers = _STATUS.findall(data)
        self.unanswered += max(0, BATCH - 1 - len(answers))
        for status in answers:
            self.statuses[int(status)] = self.statuses.get(int(status), 0) + 1

    def _open(self) -> None:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self._selector.register(sock, selectors.EVENT_READ)
        self._answers[sock] = b""
        batch = [self.maker.framed() for _ in range(BATCH - 1)] + [self.maker.unframed()]
        # The server waits for the end of a request: say that none will come.
        sock.sendall(b"".join(batch))
        sock.shutdown(socket.SHUT_WR)
        self.sent += len(batch)


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    timeouts = ("--header-timeout", "2", "--body-timeout", "2", "--idle-timeout", "2")
    # Streams get longer all along: a cache that is small is full after the first flood.
    process = ServerProcess(*timeouts, "--read-cache-bytes", str(1024 * 1024)).start()
    yield process
    process.kill()


def settled_rss(server: ServerProcess) -> int:
    """Measure once nothing is under way any more."""
    wait_until(lambda: server.connections() == 0, "closing every connection")
    return min(server.rss() for _ in range(3))


@pytest.mark.timeout(900)
def test_malformed_requests_do_no_harm(server: ServerProcess) -> None:
    with Wire(server.port) as wire:
        wire.ask("PUT", JSON_PATH.decode(), {"Content-Type": "application/json"}, b"[1, 2]")
        wire.ask("PUT", BYTES_PATH.decode(), body=b"some bytes")
    flood = Flood(server.port, SEED)
    told = f"seed {SEED}"
    # Twice the flood: the first time fills what is bounded (caches, the allocator's arenas).
    flood.run(COUNT)
    warm = settled_rss(server)
    flood.run(COUNT)
    grown = settled_rss(server) - warm
    assert flood.sent >= 2 * COUNT
    assert 500 not in flood.statuses, (told, flood.statuses, server.log()[-3000:])
    assert "Traceback" not in server.log(), (told, server.log()[-3000:])
    assert flood.unanswered == 0, (told, flood.unanswered, flood.statuses)
    assert grown < GROWTH, (told, f"grew by {grown} bytes")
    with Wire(server.port) as wire:
        assert wire.ask("GET", "/healthz").status == 200, told
        assert wire.ask("PUT", "/v1/stream/after", body=b"well").status == 201, told
        assert wire.ask("GET", "/v1/stream/after").body == b"well", told
    assert server.stop() == 0, told
