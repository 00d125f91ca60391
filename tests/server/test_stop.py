"""The graceful stop: requests in progress are answered, then the process exits with 0."""

import signal

import pytest

from tests.server.conftest import Serve
from tests.support.barrier import barrier
from tests.support.patience import wait_until
from tests.support.server import ServerProcess
from tests.support.wire import EventReader, Lost, Wire, build

JSON = {"Content-Type": "application/json"}
S = "/v1/stream/s"
NO_END = ("--shutdown-timeout", "3600", "--long-poll-timeout", "3600")
"""A server that waits for anything outlives any test."""


def refuses(server: ServerProcess) -> bool:
    try:
        Wire(server.port).close()
    except Lost:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_stops_at_once(serve: Serve, number: signal.Signals) -> None:
    server = serve(*NO_END)
    with Wire(server.port) as wire:
        assert wire.ask("GET", "/healthz").status == 200
        server.signal(number)
        assert server.exit_code() == 0
        assert wire.closed_by_server()
    assert "Headwater has stopped." in server.log()


def test_a_waiting_long_poll_gets_204(serve: Serve) -> None:
    server = serve(*NO_END)
    with Wire(server.port) as wire:
        tail = wire.ask("PUT", S, JSON, b"[1]").headers["stream-next-offset"]
        wire.send(build("GET", f"{S}?offset={tail}&live=long-poll"))
        barrier(server.port)
        server.signal(signal.SIGTERM)
        answer = wire.answer()
        assert answer.status == 204
        assert answer.headers["stream-next-offset"] == tail
        assert answer.headers["connection"] == "close"
        assert wire.closed_by_server()
    assert server.exit_code() == 0


def test_an_event_stream_ends_with_a_control_event_and_properly(serve: Serve) -> None:
    server = serve()
    with Wire(server.port) as wire:
        tail = wire.ask("PUT", S, JSON, b"[1]").headers["stream-next-offset"]
        reader = EventReader(wire, f"{S}?offset=-1&live=sse")
        reader.need("data")
        reader.need("control")
        server.signal(signal.SIGTERM)
        control = reader.need("control").json()
        assert control["streamNextOffset"] == tail
        assert "streamClosed" not in control
        assert reader.next() is None
        assert wire.closed_by_server()
    assert server.exit_code() == 0


def test_an_append_in_flight_is_answered(serve: Serve) -> None:
    server = serve()
    with Wire(server.port) as wire:
        wire.ask("PUT", S, JSON)
        request = build("POST", S, JSON, b'"in flight"')
        wire.send(request[:-4])
        barrier(server.port)
        server.signal(signal.SIGTERM)
        wait_until(lambda: refuses(server), "refusing connections")
        wire.send(request[-4:])
        answer = wire.answer()
        assert answer.status == 204
        assert answer.headers["connection"] == "close"
    assert server.exit_code() == 0


def test_requests_that_wait_for_a_long_poll_are_answered(serve: Serve) -> None:
    server = serve()
    with Wire(server.port) as wire:
        tail = wire.ask("PUT", S, JSON).headers["stream-next-offset"]
        poll = build("GET", f"{S}?offset={tail}&live=long-poll")
        wire.send(poll + build("POST", S, JSON, b"1") + build("GET", S))
        barrier(server.port)
        server.signal(signal.SIGTERM)
        answers = [wire.answer() for _ in range(3)]
        assert [answer.status for answer in answers] == [204, 204, 200]
        assert answers[2].json() == [1]
        assert ["connection" in answer.headers for answer in answers] == [False, False, True]
        assert wire.closed_by_server()
    assert server.exit_code() == 0


def test_new_connections_are_refused_while_stopping(serve: Serve) -> None:
    server = serve()
    with Wire(server.port) as wire:
        wire.send(build("POST", S, JSON, b"1")[:-1])
        barrier(server.port)
        server.signal(signal.SIGTERM)
        wait_until(lambda: refuses(server), "refusing connections")
        with pytest.raises(Lost) as refused:
            Wire(server.port)
        assert isinstance(refused.value.__cause__, ConnectionRefusedError)
    assert server.exit_code() == 0


def test_connections_are_closed_at_the_shutdown_timeout(serve: Serve) -> None:
    server = serve("--shutdown-timeout", "0.5")
    with Wire(server.port) as wire:
        wire.send(build("POST", S, JSON, b"1")[:-1])
        barrier(server.port)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
        assert wire.closed_by_server()
    assert "exceeded the shutdown timeout" in server.log()


def test_a_port_in_use_is_reported_in_one_sentence(serve: Serve) -> None:
    server = serve()
    with pytest.raises(AssertionError, match=r"Can't listen on 127\.0\.0\.1"):
        serve("--port", str(server.port))
