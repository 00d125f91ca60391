"""Long-poll reads (PROTOCOL 5.7)."""

import time

from tests.server.conftest import Serve
from tests.support.barrier import barrier
from tests.support.server import ServerProcess
from tests.support.stepped_server import START, SteppedServer, is_silent
from tests.support.wire import Wire, build

JSON = {"Content-Type": "application/json"}
S = "/v1/stream/s"
NO_END = ("--long-poll-timeout", "3600")
"""A long-poll that is not answered for another reason outlives any test."""


def poll(path: str, offset: str, more: str = "") -> bytes:
    return build("GET", f"{path}?offset={offset}&live=long-poll{more}")


def test_existing_data_is_returned_at_once(wire: Wire, path: str) -> None:
    wire.ask("PUT", path, JSON, b"[1]")
    wire.send(poll(path, "-1"))
    answer = wire.answer()
    assert answer.json() == [1]
    assert answer.headers["stream-up-to-date"] == "true"
    assert int(answer.headers["stream-cursor"]) > 0
    assert "etag" in answer.headers


def test_an_append_wakes_all_waiting_readers(serve: Serve, path: str) -> None:
    server = serve(*NO_END)
    wires = [Wire(server.port) for _ in range(10)]
    tail = wires[0].ask("PUT", path, JSON, b"[1]").headers["stream-next-offset"]
    for wire in wires[1:]:
        wire.send(poll(path, tail))
    barrier(server.port)
    wires[0].ask("POST", path, JSON, b"2")
    for wire in wires[1:]:
        assert wire.answer().json() == [2]
    for wire in wires:
        wire.close()


def test_now_waits_for_the_next_append(server: ServerProcess, wire: Wire, path: str) -> None:
    wire.ask("PUT", path, JSON, b"[1]")
    wire.send(poll(path, "now"))
    barrier(server.port)
    with Wire(server.port) as other:
        other.ask("POST", path, JSON, b"[2, 3]")
    assert wire.answer().json() == [2, 3]


def test_a_timeout_returns_204() -> None:
    with SteppedServer(long_poll_timeout=30.0) as server, Wire(server.port) as wire:
        tail = wire.ask("PUT", S, JSON, b"[1]").headers["stream-next-offset"]
        wire.send(poll(S, tail))
        barrier(server.port)
        server.advance(29.5)
        assert is_silent(server, wire)
        server.advance(0.5)
        answer = wire.answer()
        assert answer.status == 204
        assert answer.headers["stream-next-offset"] == tail
        assert answer.headers["stream-up-to-date"] == "true"
        assert int(answer.headers["stream-cursor"]) > 0
        assert "stream-closed" not in answer.headers
        wire.send(poll(S, "now"))
        barrier(server.port)
        server.advance(30.0)
        assert wire.answer().headers["stream-next-offset"] == tail


def test_the_cursor_never_goes_back(serve: Serve) -> None:
    server = serve("--long-poll-timeout", "0.1")
    with Wire(server.port) as wire:
        wire.ask("PUT", S, JSON)
        cursor = 0
        for _ in range(4):
            wire.send(poll(S, "-1", f"&cursor={cursor}" if cursor else ""))
            following = int(wire.answer().headers["stream-cursor"])
            assert following > cursor
            cursor = following
        for odd in ("abc", "-5", "", "9" * 60, "1.5"):
            wire.send(poll(S, "-1", f"&cursor={odd}"))
            assert wire.answer().status == 204


def test_a_closed_stream_answers_without_waiting(serve: Serve) -> None:
    server = serve(*NO_END)
    with Wire(server.port) as wire:
        closed = JSON | {"Stream-Closed": "true"}
        tail = wire.ask("PUT", S, closed, b"[1]").headers["stream-next-offset"]
        for offset in (tail, "now"):
            wire.send(poll(S, offset))
            answer = wire.answer()
            assert answer.status == 204
            assert answer.headers["stream-closed"] == "true"
            assert answer.headers["stream-up-to-date"] == "true"
            assert answer.headers["stream-next-offset"] == tail


def test_closing_wakes_waiting_readers(server: ServerProcess, wire: Wire, path: str) -> None:
    wire.ask("PUT", path, JSON)
    wire.send(poll(path, "-1"))
    barrier(server.port)
    with Wire(server.port) as other:
        other.ask("POST", path, {"Stream-Closed": "true"})
    answer = wire.answer()
    assert (answer.status, answer.headers["stream-closed"]) == (204, "true")


def test_deletion_wakes_waiting_readers_with_404(
    server: ServerProcess, wire: Wire, path: str
) -> None:
    wire.ask("PUT", path, JSON)
    wire.send(poll(path, "-1"))
    barrier(server.port)
    with Wire(server.port) as other:
        other.ask("DELETE", path)
    wire.answer().problem(404, "stream-not-found")


def test_expiry_wakes_waiting_readers_with_404() -> None:
    with SteppedServer(long_poll_timeout=3600.0) as server, Wire(server.port) as wire:
        instant = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START + 10))
        assert wire.ask("PUT", S, JSON | {"Stream-Expires-At": instant}).status == 201
        wire.send(poll(S, "-1"))
        barrier(server.port)
        server.advance(9.5)
        assert is_silent(server, wire)
        server.advance(2.0)  # until the next round of the reaper
        wire.answer().problem(404, "stream-not-found")


def test_waiting_keeps_a_sliding_ttl_alive() -> None:
    with (
        SteppedServer(reap_interval=0.1, long_poll_timeout=30.0) as server,
        Wire(server.port) as wire,
    ):
        assert wire.ask("PUT", S, JSON | {"Stream-TTL": "10"}).status == 201
        wire.send(poll(S, "-1"))
        barrier(server.port)
        server.advance(30.0)
        assert wire.answer().status == 204


def test_a_fork_is_not_woken_by_its_source(serve: Serve) -> None:
    server = serve(*NO_END)
    with Wire(server.port) as wire, Wire(server.port) as other:
        wire.ask("PUT", S, JSON, b"[1]")
        wire.ask("PUT", f"{S}/f", {"Stream-Forked-From": S})
        wire.send(poll(f"{S}/f", "-1"))
        assert wire.answer().json() == [1]
        wire.send(poll(f"{S}/f", "now"))
        barrier(server.port)
        other.ask("POST", S, JSON, b"2")
        barrier(server.port)
        other.ask("POST", f"{S}/f", JSON, b"3")
        assert wire.answer().json() == [3]
