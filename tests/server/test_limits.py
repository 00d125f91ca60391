"""Limits and timeouts: what is too large, too slow or too much is refused, and costs little."""

from dataclasses import fields

import pytest

from headwater.errors import SettingsError
from headwater.server.settings import Settings
from tests.server.conftest import Serve
from tests.support.barrier import barrier
from tests.support.patience import wait_until
from tests.support.server import ServerProcess
from tests.support.stepped_server import SteppedServer, is_silent
from tests.support.wire import Wire, build

TEXT = {"Content-Type": "text/plain"}
MIB = 1024 * 1024
S = "/v1/stream/s"


def chunked(path: str, headers: dict[str, str] | None = None) -> bytes:
    """Write the head of a request with a chunked body."""
    head = build("POST", path, TEXT | {"Transfer-Encoding": "chunked"} | (headers or {}))
    return head.replace(b"Content-Length: 0\r\n", b"")


@pytest.mark.parametrize("name", ["max_body_bytes", "max_buffered_bytes"])
def test_a_body_limit_that_the_store_could_not_hold_is_refused(name: str) -> None:
    most = next(item for item in fields(Settings) if item.name == name).metadata["maximum"]
    Settings(**{name: most})
    with pytest.raises(SettingsError, match=f"at most {most}"):
        Settings(**{name: most + 1})


class TestBodies:
    """413."""

    def test_a_length_over_the_limit_is_refused_before_the_body_comes(self, serve: Serve) -> None:
        server = serve("--max-body-bytes", "1000")
        with Wire(server.port) as wire:
            wire.send(build("POST", S, TEXT, b"x" * 1001)[:-1001])
            answer = wire.answer()
            answer.problem(413, "body-too-large")
            assert answer.headers["connection"] == "close"

    def test_an_expected_body_over_the_limit_gets_no_100(self, wire: Wire, path: str) -> None:
        head = build("POST", path, TEXT | {"Expect": "100-continue"})
        wire.send(head.replace(b"Content-Length: 0", b"Content-Length: 33554433"))
        wire.answer().problem(413, "body-too-large")

    def test_a_client_that_keeps_sending_still_gets_the_response(self, serve: Serve) -> None:
        server = serve("--max-body-bytes", "1000")
        with Wire(server.port) as wire:
            wire.send(build("POST", S, TEXT, b"x" * 3 * MIB))
            wire.answer().problem(413, "body-too-large")

    def test_a_chunked_body_is_refused_once_it_exceeds_the_limit(self, serve: Serve) -> None:
        server = serve("--max-body-bytes", "1000")
        with Wire(server.port) as wire:
            wire.ask("PUT", S, TEXT)
            wire.send(chunked(S) + b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n")
            assert wire.answer().status == 204
            wire.send(chunked(S) + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx\r\n")
            wire.answer().problem(413, "body-too-large")

    def test_a_body_in_tiny_pieces_takes_no_more_memory_than_its_bytes(self, serve: Serve) -> None:
        server = serve()
        with Wire(server.port) as wire:
            wire.ask("PUT", S, TEXT)
            before = server.rss()
            wire.send(chunked(S))
            for _ in range(200):
                wire.send(b"2\r\nxy\r\n" * 5000)
            wire.send(b"2\r\nxy\r\n")
            wait_until(lambda: server.rss() - before > MIB, "the arrival of the body")
            barrier(server.port, rounds=20)
            assert server.rss() - before < 12 * MIB
            wire.send(b"0\r\n\r\n")
            assert wire.answer().status == 204

    @pytest.mark.parametrize("length", ["99999999999999999999", "1" * 400, "18446744073709551616"])
    def test_an_absurd_length_is_refused(self, wire: Wire, path: str, length: str) -> None:
        head = build("POST", path, TEXT)
        wire.send(head.replace(b"Content-Length: 0", f"Content-Length: {length}".encode()))
        assert wire.answer().status in {400, 413}

    def test_a_body_at_the_limit_is_accepted(self, serve: Serve) -> None:
        server = serve("--max-body-bytes", "1000")
        with Wire(server.port) as wire:
            assert wire.ask("PUT", S, TEXT, b"x" * 1000).status == 201


class TestHeads:
    """431, and what long heads may cost."""

    @pytest.mark.parametrize("size", [40_000, 150_000])
    def test_a_head_over_the_limit_gets_431_however_it_arrives(
        self, wire: Wire, path: str, size: int
    ) -> None:
        wire.send(build("GET", path, {"X-Large": "x" * size}))
        answer = wire.answer()
        answer.problem(431, "headers-too-large")
        assert answer.headers["connection"] == "close"

    def test_many_small_headers_count_together(self, wire: Wire, path: str) -> None:
        wire.send(build("GET", path, {f"X-{number}": "x" * 50 for number in range(1000)}))
        wire.answer().problem(431, "headers-too-large")

    def test_a_long_request_line_counts_too(self, wire: Wire) -> None:
        wire.send(build("GET", "/v1/stream/" + "x" * 40_000))
        wire.answer().problem(431, "headers-too-large")

    def test_a_head_that_never_ends_is_refused_at_the_limit(
        self, server: ServerProcess, wire: Wire
    ) -> None:
        wire.send(b"GET / HTTP/1.1\r\n")
        for _ in range(40):
            wire.send(b"X-Large: " + b"x" * 1000 + b"\r\n")
            barrier(server.port, rounds=1)
        wire.answer().problem(431, "headers-too-large")

    @pytest.mark.parametrize("before", [b"GET /", b"GET / HTTP/1.1\r\nX", b"GET / HTTP/1.1\r\nX: "])
    def test_a_line_that_never_ends_is_refused_at_the_limit(
        self, wire: Wire, before: bytes
    ) -> None:
        wire.send(before)
        for _ in range(400):
            wire.send(b"x" * 1000)
        wire.answer().problem(431, "headers-too-large")

    def test_a_trailer_that_never_ends_is_refused_at_the_limit(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT)
        wire.send(chunked(path) + b"1\r\nx\r\n0\r\nX: ")
        for _ in range(400):
            wire.send(b"x" * 1000)
        wire.answer().problem(431, "headers-too-large")
        assert wire.closed_by_server()

    def test_a_head_just_below_the_limit_is_accepted(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        for headers in ({"X-Large": "x" * 32_500}, {f"X-{n}": "x" * 50 for n in range(550)}):
            request = build("GET", path, headers)
            assert len(request) < 32_768
            wire.send(request)
            assert wire.answer().status == 404
            for at in range(0, len(request), 5000):
                wire.send(request[at : at + 5000])
                barrier(server.port, rounds=1)
            assert wire.answer().status == 404

    def test_trailers_are_limited_like_headers(self, serve: Serve) -> None:
        server = serve("--body-timeout", "3600")
        with Wire(server.port) as wire:
            wire.ask("PUT", S, TEXT)
            before = server.rss()
            wire.send(chunked(S) + b"1\r\nx\r\n0\r\n")
            try:
                for number in range(800):
                    wire.send(b"X-%d: " % number + b"x" * 30_000 + b"\r\n")
            except OSError:
                pass  # refused and closed: what should happen
            barrier(server.port, rounds=20)
            assert server.rss() - before < 8 * MIB

    def test_long_targets_and_values_are_not_cached(self, serve: Serve) -> None:
        """What a client may choose freely must not fill a cache by the megabyte."""
        server = serve("--max-header-bytes", "32768")
        with Wire(server.port) as wire:
            wire.ask("PUT", S, TEXT, b"hello")

            def send_all(numbers: range) -> None:
                for number in numbers:
                    junk = f"{number:06d}" + "j" * 30_000
                    wire.ask("GET", f"/{junk}")
                    wire.ask("GET", f"/v1/stream/{junk}")
                    wire.ask("GET", f"{S}?junk={junk}")
                    wire.ask("GET", S, {"Accept-Encoding": junk})
                    wire.ask("POST", S, {"Content-Type": f"text/plain;{junk}"}, b"x")

            send_all(range(100))
            before = server.rss()
            send_all(range(100, 1100))
            assert server.rss() - before < 16 * MIB


class TestTimeouts:
    """408, and idle connections."""

    def test_a_head_that_does_not_end_gets_408(self) -> None:
        with SteppedServer(header_timeout=10.0) as server, Wire(server.port) as wire:
            wire.send(b"GET / HTTP/1.1\r\n")
            for _ in range(9):
                assert is_silent(server, wire)
                server.advance(1.0)
                wire.send(b"X: y\r\n")  # which gains no time
            assert is_silent(server, wire)
            server.advance(4.0)
            answer = wire.answer()
            answer.problem(408, "request-timeout")
            assert answer.headers["connection"] == "close"

    def test_a_body_that_does_not_end_gets_408(self) -> None:
        with SteppedServer(body_timeout=10.0) as server, Wire(server.port) as wire:
            wire.send(build("PUT", S, TEXT, b"hello")[:-1])
            assert is_silent(server, wire)
            server.advance(9.0)
            assert is_silent(server, wire)
            server.advance(4.0)
            wire.answer().problem(408, "request-timeout")
            assert wire.closed_by_server()

    def test_an_idle_connection_is_closed_without_a_response(self) -> None:
        with (
            SteppedServer(idle_timeout=10.0) as server,
            Wire(server.port) as fresh,
            Wire(server.port) as used,
        ):
            assert used.ask("GET", "/healthz").status == 200
            server.advance(9.0)
            assert is_silent(server, fresh)
            assert is_silent(server, used)
            server.advance(4.0)
            assert fresh.closed_by_server()
            assert used.closed_by_server()

    def test_a_long_poll_is_not_idle(self) -> None:
        brief = {"idle_timeout": 10.0, "header_timeout": 10.0}
        with (
            SteppedServer(**brief, long_poll_timeout=50.0) as server,
            Wire(server.port) as wire,
        ):
            wire.ask("PUT", S, TEXT)
            wire.send(build("GET", f"{S}?offset=-1&live=long-poll"))
            barrier(server.port)
            server.advance(50.0)
            assert wire.answer().status == 204

    def test_a_second_request_has_its_own_time(self) -> None:
        with (
            SteppedServer(header_timeout=10.0, body_timeout=10.0) as server,
            Wire(server.port) as wire,
        ):
            assert wire.ask("GET", "/healthz").status == 200
            server.advance(30.0)  # longer than a request may take, not than a connection may wait
            assert wire.ask("GET", "/healthz").status == 200


class TestOverload:
    """429."""

    def test_one_connection_too_many_gets_429_and_the_others_continue(self, serve: Serve) -> None:
        server = serve("--max-connections", "3")
        wires = [Wire(server.port) for _ in range(3)]
        for wire in wires:
            assert wire.ask("GET", "/healthz").status == 200
        with Wire(server.port) as extra:
            answer = extra.answer()
            answer.problem(429, "too-many-connections")
            assert int(answer.headers["retry-after"]) >= 1
            assert extra.closed_by_server()
        assert wires[0].ask("GET", "/healthz").status == 200
        wires[0].close()

        def has_room() -> bool:
            with Wire(server.port) as wire:
                return wire.ask("GET", "/healthz").status == 200

        wait_until(has_room, "room for another connection")
        for wire in wires[1:]:
            wire.close()

    def test_bodies_in_flight_are_limited_together(self, serve: Serve) -> None:
        server = serve("--max-buffered-bytes", "100000", "--max-body-bytes", "80000")
        with Wire(server.port) as first, Wire(server.port) as second:
            first.ask("PUT", S, TEXT)
            body = b"x" * 80_000
            first.send(build("POST", S, TEXT, body)[:-1])
            barrier(server.port)
            second.send(build("POST", S, TEXT, body))
            answer = second.answer()
            answer.problem(429, "too-much-buffered")
            assert "retry-after" in answer.headers
            first.send(b"x")
            assert first.answer().status == 204
            # What was refused and what was answered no longer counts.
            assert first.ask("POST", S, TEXT, body).status == 204

    def test_chunked_bodies_in_flight_are_limited_too(self, serve: Serve) -> None:
        server = serve("--max-buffered-bytes", "100000", "--max-body-bytes", "80000")
        with Wire(server.port) as first, Wire(server.port) as second:
            first.ask("PUT", S, TEXT)
            for wire in (first, second):
                wire.send(chunked(S) + b"ea60\r\n" + b"x" * 60_000)
                barrier(server.port)
            second.answer().problem(429, "too-much-buffered")
            first.send(b"\r\n0\r\n\r\n")
            assert first.answer().status == 204

    def test_a_full_store_refuses_appends_but_serves_reads(self, serve: Serve) -> None:
        server = serve("--memory-limit-bytes", "10000")
        with Wire(server.port) as wire:
            wire.ask("PUT", S, TEXT, b"x" * 9000)
            answer = wire.ask("POST", S, TEXT, b"x" * 1001)
            answer.problem(429, "store-full")
            assert int(answer.headers["retry-after"]) >= 1
            wire.ask("PUT", f"{S}/2", TEXT, b"x" * 1001).problem(429, "store-full")
            assert len(wire.ask("GET", S).body) == 9000
            wire.ask("DELETE", S)
            assert wire.ask("PUT", f"{S}/2", TEXT, b"x" * 1001).status == 201


def test_expired_streams_are_removed_without_being_touched() -> None:
    with SteppedServer(memory_limit_bytes=10_000) as server, Wire(server.port) as wire:
        assert wire.ask("PUT", S, TEXT | {"Stream-TTL": "10"}, b"x" * 9000).status == 201

        def has_room() -> bool:
            return wire.ask("PUT", f"{S}/other", TEXT, b"x" * 9000).status == 201

        server.advance(9.0)
        assert not has_room()
        server.advance(3.0)  # past the next round of the reaper
        assert has_room()
        assert wire.ask("HEAD", S).status == 404


def test_reading_keeps_a_sliding_ttl_alive() -> None:
    with SteppedServer() as server, Wire(server.port) as wire:
        wire.ask("PUT", S, TEXT | {"Stream-TTL": "10"}, b"hello")
        for _ in range(3):
            server.advance(9.0)
            assert wire.ask("GET", S).body == b"hello"
        server.advance(10.0)
        assert wire.ask("HEAD", S).status == 404
