"""Long responses of the disk store go from file to socket: complete, in order, unbuffered."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.conftest import Serve
from tests.support.barrier import barrier
from tests.support.patience import wait_until
from tests.support.server import ServerProcess
from tests.support.stepped_server import SteppedServer
from tests.support.wire import Wire, build

BINARY = {"Content-Type": "application/octet-stream"}
JSON = {"Content-Type": "application/json"}
S = "/v1/stream/s"
MIB = 1024 * 1024
DROPPED = "dropped a slow client"
BODY = os.urandom(MIB) * 12

Saved = Callable[..., ServerProcess]


@pytest.fixture
def saved(serve: Serve, tmp_path: Path) -> Saved:
    """Start a server whose stream is in a segment and not in memory."""

    def start(*options: str, headers: dict[str, str] = BINARY, body: bytes = BODY) -> ServerProcess:
        data = tmp_path / "data"
        server = serve(
            *("--store", str(data), "--checkpoint-interval", "0.05"),
            *("--chunk-bytes", str(32 * MIB), *options),
        )
        with Wire(server.port) as writer:
            assert writer.ask("PUT", S, headers, body).status == 201
        first = data / "journal" / "0000000000000001.log"
        wait_until(lambda: not first.exists(), "saving")
        # A chunk ends before bytes that are not verified yet; two bytes are its brackets.
        assert max(_read_through(server)) <= MIB + 2
        return server

    return start


@pytest.fixture
def half_saved(serve: Serve, saved: Saved, tmp_path: Path) -> Callable[[], ServerProcess]:
    """Start a server with one stream in a segment, and another in memory."""

    def start() -> ServerProcess:
        earlier = saved()
        earlier.signal(signal.SIGTERM)
        assert earlier.exit_code() == 0
        server = serve("--store", str(tmp_path / "data"), "--chunk-bytes", str(32 * MIB))
        _read_through(server)
        with Wire(server.port) as writer:
            assert writer.ask("PUT", "/v1/stream/memory", BINARY, BODY[: 6 * MIB]).status == 201
        return server

    return start


def _read_through(server: ServerProcess | SteppedServer) -> list[int]:
    """Read the stream to its end, and return the lengths of the responses."""
    lengths: list[int] = []
    offset = "-1"
    with Wire(server.port) as wire:
        while True:
            answer = wire.ask("GET", f"{S}?offset={offset}")
            lengths.append(len(answer.body))
            if "stream-up-to-date" in answer.headers:
                return lengths
            offset = answer.headers["stream-next-offset"]


@contextmanager
def stuck_readers(server: ServerProcess) -> Iterator[list[Wire]]:
    """Clients that ask for the stream and read nothing."""
    stuck = [Wire(server.port, receive_buffer=4096) for _ in range(30)]
    try:
        for wire in stuck:
            wire.send(build("GET", S))
        yield stuck
    finally:
        for wire in stuck:
            wire.close()


def test_many_stuck_readers_cost_no_memory(saved: Saved) -> None:
    server = saved("--write-timeout", "3600")
    before = server.rss()
    with stuck_readers(server) as stuck:
        for wire in stuck:
            assert wire.answer_head()[0] == 200
        assert server.rss() - before < 30 * MIB  # of the 360 MiB requested


def test_stuck_readers_are_disconnected(saved: Saved) -> None:
    server = saved("--write-timeout", "0.5")
    with stuck_readers(server) as stuck:
        wait_until(lambda: server.log().count(DROPPED) == len(stuck), "dropping")
        wait_until(lambda: server.connections() == 0, "closing")


def test_requests_that_follow_one_another_are_answered_in_order(saved: Saved) -> None:
    server = saved()
    with Wire(server.port) as wire:
        wire.send(build("GET", S) + build("HEAD", S) + build("GET", "/healthz") + build("GET", S))
        assert wire.answer().body == BODY
        assert wire.answer(head_only=True).status == 200
        assert wire.answer().json() == {"status": "alive"}
        assert wire.answer().body == BODY
        part = wire.ask(
            "GET", f"{S}?offset=-1", {"If-None-Match": wire.ask("GET", S).headers["etag"]}
        )
        assert part.status == 304


def test_requests_wait_for_a_full_transport(
    half_saved: Callable[[], ServerProcess],
) -> None:
    server = half_saved()
    before = server.rss()
    with Wire(server.port, receive_buffer=4096) as wire:
        wire.send(build("GET", "/v1/stream/memory") + 8 * build("GET", S))
        assert wire.answer_head()[0] == 200
        barrier(server.port, rounds=50)
        assert server.rss() - before < 30 * MIB  # of the 102 MiB requested
        assert wire.file.read(6 * MIB) == BODY[: 6 * MIB]
        for _ in range(8):
            assert wire.answer().body == BODY


def test_copied_responses_are_small(saved: Saved) -> None:
    server = saved("--max-open-segments", "1")  # so that no file is sent
    before = server.rss()
    with Wire(server.port, receive_buffer=4096) as wire:
        wire.send(64 * build("GET", S))
        assert wire.answer_head()[0] == 200
        barrier(server.port, rounds=50)
        assert server.rss() - before < 15 * MIB  # of 64 MiB
    assert max(_read_through(server)) <= MIB


def test_an_idle_connection_has_one_descriptor(saved: Saved) -> None:
    server = saved()
    with Wire(server.port) as wire:
        assert wire.ask("GET", "/healthz").status == 200
        before = server.open_files()
        assert wire.ask("GET", S).body == BODY
        assert wire.ask("GET", "/healthz").status == 200
        assert server.open_files() <= before + 1  # the segment


def test_responses_end_at_message_boundaries_wherever_the_bytes_are(saved: Saved) -> None:
    messages = [{"number": number, "text": "é" * (number % 700)} for number in range(9000)]
    server = saved("--chunk-bytes", "900000", headers=JSON, body=json.dumps(messages).encode())
    got: list[object] = []
    with Wire(server.port) as wire:
        offset = "-1"
        for _ in range(100):
            answer = wire.ask("GET", f"{S}?offset={offset}")
            got += answer.json()
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                break
            assert len(answer.body) < 900_000
        wire.ask("POST", S, JSON, b'{"number": "last"}')
        tail = wire.ask("GET", f"{S}?offset={offset}")
        whole = wire.ask("GET", S)
    assert got == messages
    assert tail.json() == [{"number": "last"}]
    assert whole.json() == messages[: len(whole.json())]


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}])
def test_a_slow_reader_gets_everything(
    saved: Saved, tmp_path: Path, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    assert saved().stop() == 0
    settings = {"store": str(tmp_path / "data"), "chunk_bytes": 32 * MIB}
    with (
        SteppedServer(write_timeout=5.0, **settings) as server,
        # Each piece exceeds the buffer, so that reading it is progress for the server.
        Wire(server.port, receive_buffer=32768) as wire,
    ):
        _read_through(server)
        wire.send(build("GET", S, headers))
        assert wire.answer_head()[0] == 200
        got = b""
        for _ in range(10):
            got += wire.file.read(200_000)
            server.advance(2.0)
        got += wire.file.read(len(BODY) - len(got))
        assert got == BODY
        if headers:
            assert wire.file.read() == b""
        else:
            assert wire.ask("GET", "/healthz").status == 200
    assert DROPPED not in caplog.text


def test_a_stopping_server_completes_responses_in_flight(saved: Saved) -> None:
    server = saved()
    with Wire(server.port, receive_buffer=65536) as wire:
        wire.send(build("GET", S))
        assert wire.answer_head()[0] == 200
        server.signal(signal.SIGTERM)
        server.wait_for_log("stopping")
        assert wire.file.read() == BODY
    assert server.exit_code() == 0


def test_readers_that_disconnect_leave_no_file_open(saved: Saved) -> None:
    server = saved()
    with Wire(server.port) as wire:
        assert wire.ask("GET", S).body == BODY
    wait_until(lambda: server.connections() == 0, "closing")
    before = server.open_files()
    for _ in range(20):
        with Wire(server.port, receive_buffer=4096) as wire:
            wire.send(build("GET", S))
            assert wire.answer_head()[0] == 200
    wait_until(lambda: server.open_files() < before + 5, "closing")


def test_a_truncated_file_ends_its_response_only(saved: Saved, tmp_path: Path) -> None:
    server = saved()
    with Wire(server.port, receive_buffer=65536) as wire:
        wire.send(build("GET", S))
        assert wire.answer_head()[0] == 200
        (segment,) = (tmp_path / "data" / "segments").glob("*.seg")
        os.truncate(segment, 4 * MIB)
        assert len(wire.file.read()) < 5 * MIB  # of the 12 MiB announced
    server.wait_for_log("segment file was truncated")
    with Wire(server.port) as other:
        assert other.ask("GET", "/healthz").status == 200
