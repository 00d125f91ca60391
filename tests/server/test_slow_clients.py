"""Slow clients do not affect others, take little memory and are disconnected."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.server.conftest import Serve
from tests.support.barrier import barrier
from tests.support.patience import wait_until
from tests.support.server import ServerProcess
from tests.support.stepped_server import SteppedServer
from tests.support.wire import EventReader, Wire, build

TEXT = {"Content-Type": "text/plain"}
BINARY = {"Content-Type": "application/octet-stream"}
S = "/v1/stream/s"
MIB = 1024 * 1024
DROPPED = "dropped a slow client"


@contextmanager
def slow_lorises(server: ServerProcess) -> Iterator[list[Wire]]:
    """Clients that never finish a request: every other one its head, the others its body."""
    lorises = [Wire(server.port) for _ in range(200)]
    try:
        for number, loris in enumerate(lorises):
            whole = build("PUT", S, TEXT, b"hello")
            loris.send(whole[:-1] if number % 2 else whole[: whole.index(b"\r\n") + 2])
        yield lorises
    finally:
        for loris in lorises:
            loris.close()


def test_slow_loris_clients_do_not_affect_others_and_take_little_memory(serve: Serve) -> None:
    # None of them is disconnected: a request that had to wait for one would wait forever.
    server = serve("--header-timeout", "3600", "--body-timeout", "3600")
    before = server.rss()
    with slow_lorises(server) as lorises:
        for _ in range(4):
            barrier(server.port, rounds=20)
            for loris in lorises[::2]:
                loris.send(b"X-Drip: 1\r\n")
        assert server.rss() - before < 16 * MIB


def test_slow_loris_clients_are_disconnected(serve: Serve) -> None:
    server = serve("--header-timeout", "0.3", "--body-timeout", "0.3")
    with slow_lorises(server) as lorises:
        for loris in lorises:
            loris.answer().problem(408, "request-timeout")
            assert loris.closed_by_server()


@contextmanager
def stuck_readers(server: ServerProcess) -> Iterator[list[Wire]]:
    """Clients that ask for a huge answer twenty times, and read nothing."""
    with Wire(server.port) as writer:
        writer.ask("PUT", S, BINARY, b"x" * 4 * MIB)
    stuck = [Wire(server.port, receive_buffer=4096) for _ in range(10)]
    try:
        for wire in stuck:
            wire.send(build("GET", S) * 20)
        yield stuck
    finally:
        for wire in stuck:
            wire.close()


def test_readers_that_stop_reading_do_not_affect_others(serve: Serve) -> None:
    # None of them is disconnected: a request that had to wait for one would wait forever.
    server = serve("--write-timeout", "3600", "--chunk-bytes", str(4 * MIB))
    before = server.rss()
    with stuck_readers(server):
        barrier(server.port, rounds=100)
        # Twenty answers were asked for; what is queued is not more than a few of them.
        assert server.rss() - before < (1 + 10 * 3) * 4 * MIB


def test_readers_that_stop_reading_are_disconnected(serve: Serve) -> None:
    server = serve("--write-timeout", "0.5", "--chunk-bytes", str(4 * MIB))
    before = server.rss()
    with stuck_readers(server) as stuck:
        wait_until(lambda: server.log().count(DROPPED) == len(stuck), "dropping")
        wait_until(lambda: server.rss() - before < 44 * MIB, "giving memory back")


@contextmanager
def stuck_subscribers(server: ServerProcess) -> Iterator[list[Wire]]:
    """Clients that follow a stream without reading its events."""
    stuck = [Wire(server.port, receive_buffer=4096) for _ in range(20)]
    try:
        for wire in stuck:
            EventReader(wire, f"{S}?offset=-1&live=sse")
        yield stuck
    finally:
        for wire in stuck:
            wire.close()


def test_subscribers_that_stop_reading_take_little_memory_and_do_not_affect_others(
    serve: Serve,
) -> None:
    # None of them is dropped: what they cost stays.
    server = serve("--write-timeout", "3600", "--write-buffer-bytes", "65536")
    with Wire(server.port) as writer, Wire(server.port) as good:
        writer.ask("PUT", S, BINARY)
        reader = EventReader(good, f"{S}?offset=-1&live=sse")
        reader.need("control")
        with stuck_subscribers(server):
            before = server.rss()
            piece = b"y" * 100_000
            for _ in range(120):
                writer.ask("POST", S, BINARY, piece)
                assert reader.need("data").decoded() == piece
                reader.need("control")
            stored = 120 * len(piece)
            assert server.rss() - before - stored < 24 * MIB


def test_only_subscribers_that_stop_reading_are_disconnected(serve: Serve) -> None:
    server = serve("--write-timeout", "0.5", "--write-buffer-bytes", "65536")
    with Wire(server.port) as writer, Wire(server.port) as good:
        writer.ask("PUT", S, BINARY)
        with stuck_subscribers(server) as stuck:
            for _ in range(120):
                writer.ask("POST", S, BINARY, b"y" * 100_000)
            reader = EventReader(good, f"{S}?offset=now&live=sse")
            reader.need("control")
            wait_until(lambda: server.log().count(DROPPED) == len(stuck), "dropping")
            writer.ask("POST", S, BINARY, b"on")
            assert reader.need("data").decoded() == b"on"


def test_a_slow_subscriber_gets_everything_later(serve: Serve) -> None:
    server = serve("--write-buffer-bytes", "65536")
    with Wire(server.port) as writer, Wire(server.port, receive_buffer=4096) as slow:
        writer.ask("PUT", S, BINARY)
        reader = EventReader(slow, f"{S}?offset=-1&live=sse")
        pieces = [bytes([number]) * 100_000 for number in range(100)]
        for piece in pieces:
            writer.ask("POST", S, BINARY, piece)
        writer.ask("POST", S, {"Stream-Closed": "true"})
        events = reader.rest()
        got = b"".join(event.decoded() for event in events if event.kind == "data")
        assert got == b"".join(pieces)
        assert events[-1].json()["streamClosed"] is True


def test_readers_that_receive_nothing_are_disconnected_whatever_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A response below the buffer's limit does not hold a connection open indefinitely."""
    large = {"chunk_bytes": 16 * MIB, "write_buffer_bytes": 32 * MIB}
    with SteppedServer(write_timeout=10.0, idle_timeout=10.0, **large) as server:
        with Wire(server.port) as writer:
            writer.ask("PUT", S, BINARY, b"x" * 12 * MIB)
        idle, closing, half_closed = (Wire(server.port, receive_buffer=4096) for _ in range(3))
        try:
            idle.send(build("GET", S))
            closing.send(build("GET", S, {"Connection": "close"}))
            half_closed.send(build("GET", S))
            half_closed.end_sending()
            barrier(server.port)
            server.advance(5.0)
            assert DROPPED not in caplog.text
            server.advance(30.0)
            assert caplog.text.count(DROPPED) == 3
            for wire in (idle, closing, half_closed):
                assert len(wire.file.read()) < 12 * MIB
        finally:
            for wire in (idle, closing, half_closed):
                wire.close()


@pytest.mark.parametrize("piece", [200_000, 1_000_000])
def test_a_slow_reader_that_makes_progress_stays_connected(
    caplog: pytest.LogCaptureFixture, piece: int
) -> None:
    """Also where what it takes makes no room in the server's socket for a long time."""
    body = b"x" * 12_000_000
    with (
        SteppedServer(write_timeout=5.0, chunk_bytes=20_000_000) as server,
        # A piece is more than the buffer holds, so that each of them is progress for the server.
        Wire(server.port, receive_buffer=32768) as wire,
    ):
        with Wire(server.port) as writer:
            writer.ask("PUT", S, BINARY, body)
        wire.send(build("GET", S))
        wire.answer_head()
        got = 0
        for _ in range(10):
            got += len(wire.file.read(piece))
            server.advance(2.0)
        assert got + len(wire.file.read(len(body) - got)) == len(body)
    assert DROPPED not in caplog.text
