"""HTTP/1.1: connections, pipelining, framing of requests, and malformed input."""

import pytest

from tests.server.conftest import Serve
from tests.support.barrier import barrier
from tests.support.server import ServerProcess
from tests.support.stepped_server import SteppedServer
from tests.support.wire import Wire, build

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}


class TestConnections:
    """Keep-alive, closing, half-closing."""

    def test_a_connection_serves_many_requests(self, wire: Wire, path: str) -> None:
        assert wire.ask("PUT", path, JSON).status == 201
        for number in range(50):
            assert wire.ask("POST", path, JSON, b"%d" % number).status == 204
        assert wire.ask("GET", path).json() == list(range(50))

    def test_connection_close_is_honoured(self, wire: Wire, path: str) -> None:
        answer = wire.ask("PUT", path, JSON | {"Connection": "close"})
        assert answer.status == 201
        assert answer.headers["connection"] == "close"
        assert wire.closed_by_server()

    def test_http_1_0_is_answered_with_a_length_and_closed(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT, b"hello")
        wire.send(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = wire.answer()
        assert answer.body == b"hello"
        assert answer.headers["connection"] == "close"
        assert wire.closed_by_server()

    def test_http_1_0_gets_a_keep_alive_header(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT, b"hello")
        for _ in range(3):
            wire.send(f"GET {path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
            answer = wire.answer()
            assert answer.body == b"hello"
            assert answer.headers["connection"] == "keep-alive"
        assert "connection" not in wire.ask("GET", path).headers

    def test_input_after_the_last_request_is_ignored(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT)
        last = build("POST", path, TEXT | {"Connection": "close"}, b"last")
        wire.send(last + build("POST", path, TEXT, b"more") + b"NONSENSE\r\n\r\n")
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (204, "close")
        assert wire.closed_by_server()

    def test_a_half_closed_client_gets_its_response_and_eof(self, wire: Wire, path: str) -> None:
        wire.send(build("PUT", path, TEXT, b"hello"))
        wire.send(build("GET", path))
        wire.end_sending()
        assert wire.answer().status == 201
        assert wire.answer().body == b"hello"
        assert wire.closed_by_server()

    def test_a_half_closed_client_that_waits_gets_its_response_and_eof(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        wire.ask("PUT", path, TEXT)
        wire.send(build("GET", f"{path}?offset=-1&live=long-poll"))
        wire.end_sending()
        barrier(server.port)
        with Wire(server.port) as other:
            other.ask("POST", path, TEXT, b"woken")
        assert wire.answer().body == b"woken"
        assert wire.closed_by_server()

    def test_a_client_that_disconnects_does_not_affect_others(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        wire.ask("PUT", path, JSON)
        for request in (
            build("GET", f"{path}?offset=-1&live=long-poll"),
            build("GET", f"{path}?offset=-1&live=sse"),
            build("POST", path, JSON, b"1")[:-1],
            b"GET ",
        ):
            with Wire(server.port) as other:
                other.send(request)
                barrier(server.port)
        assert wire.ask("POST", path, JSON, b"1").status == 204

    def test_an_upgrade_is_ignored_and_the_request_is_answered(self, wire: Wire, path: str) -> None:
        upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c"}
        wire.ask("PUT", path, TEXT, b"hello")
        assert wire.ask("GET", path, upgrade).body == b"hello"
        # Either the connection can be used on, or the server says that it ends.
        wire.send(build("GET", path))
        assert wire.answer().body == b"hello"

    def test_a_request_that_asks_for_an_upgrade_keeps_its_body(self, wire: Wire, path: str) -> None:
        upgrade = TEXT | {"Connection": "Upgrade", "Upgrade": "h2c"}
        wire.ask("PUT", path, TEXT)
        chunked = build("POST", path, upgrade | {"Transfer-Encoding": "chunked"})
        chunked = chunked.replace(b"Content-Length: 0\r\n", b"")
        wire.send(
            build("POST", path, upgrade, b"one ")
            + chunked
            + b"4\r\ntwo \r\n0\r\n\r\n"
            + build("POST", path, TEXT, b"three")
        )
        assert [wire.answer().status for _ in range(3)] == [204] * 3
        whole = build("POST", path, upgrade | {"Expect": "100-continue"}, b" four")
        wire.send(whole[:-5])
        assert wire.answer().status == 100
        wire.send(whole[-5:])
        assert wire.answer().status == 204
        assert wire.ask("GET", path).body == b"one two three four"

    def test_connect_opens_no_tunnel(self, wire: Wire, path: str) -> None:
        wire.send(f"CONNECT example:443 HTTP/1.1\r\nHost: test\r\n\r\nPUT {path}".encode())
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (404, "close")
        assert wire.closed_by_server()


class TestPipelining:
    """Requests that come before earlier ones are answered."""

    def test_responses_come_in_the_order_of_requests(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON)
        batch = b"".join(build("POST", path, JSON, b"%d" % number) for number in range(100))
        wire.send(batch + build("GET", path) + build("HEAD", path) + build("DELETE", path))
        assert [wire.answer().status for _ in range(100)] == [204] * 100
        assert wire.answer().json() == list(range(100))
        assert wire.answer(head_only=True).status == 200
        assert wire.answer().status == 204

    def test_requests_after_a_long_poll_wait_for_it(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        wire.ask("PUT", path, JSON)
        wire.send(
            build("GET", f"{path}?offset=-1&live=long-poll")
            + build("POST", path, JSON, b"2")
            + build("GET", path)
        )
        barrier(server.port)
        with Wire(server.port) as other:
            assert other.ask("GET", path).json() == []
            other.ask("POST", path, JSON, b"1")
        assert wire.answer().json() == [1]
        assert wire.answer().status == 204
        assert wire.answer().json() == [1, 2]

    def test_a_long_queue_after_a_long_poll_is_answered_completely(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        wire.ask("PUT", path, JSON)
        count = 1500
        wire.send(build("GET", f"{path}?offset=-1&live=long-poll") + build("HEAD", path) * count)
        barrier(server.port)
        with Wire(server.port) as other:
            other.ask("POST", path, JSON, b"1")
        assert wire.answer().json() == [1]
        statuses = {wire.answer(head_only=True).status for _ in range(count)}
        assert statuses == {200}
        assert "Traceback" not in server.log()

    def test_a_long_pipeline_does_not_count_as_large_headers(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON)
        count = 4000
        # Sent in pieces that end inside a head, as a full receive buffer does.
        batch = build("HEAD", path, {"X-Padding": "x" * 40}) * count
        pieces = [batch[at : at + 60_011] for at in range(0, len(batch), 60_011)]
        answered = 0
        for piece in pieces:
            wire.send(piece)
            whole = piece.count(b"\r\n\r\n")
            for _ in range(whole - 1):
                assert wire.answer(head_only=True).status == 200
                answered += 1
        while answered < count:
            assert wire.answer(head_only=True).status == 200
            answered += 1

    def test_a_large_body_and_the_next_head_may_share_a_packet(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT)
        following = build("HEAD", path)
        wire.send(build("POST", path, TEXT, b"x" * 120_000) + following[:20])
        assert wire.answer().status == 204
        wire.send(following[20:])
        assert wire.answer(head_only=True).status == 200

    def test_requests_before_a_malformed_one_are_answered(self, wire: Wire, path: str) -> None:
        wire.send(build("PUT", path, TEXT, b"hello") + build("GET", path) + b"NONSENSE\r\n\r\n")
        assert wire.answer().status == 201
        assert wire.answer().body == b"hello"
        wire.answer().problem(400, "malformed-request")
        assert wire.closed_by_server()

    def test_requests_after_a_long_poll_are_answered_before_a_malformed_one(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        wire.ask("PUT", path, JSON)
        wire.send(
            build("GET", f"{path}?offset=-1&live=long-poll")
            + build("POST", path, JSON, b"2")
            + b"NONSENSE\r\n\r\n"
        )
        barrier(server.port)
        with Wire(server.port) as other:
            other.ask("POST", path, JSON, b"1")
            assert wire.answer().json() == [1]
            assert wire.answer().status == 204
            assert other.ask("GET", path).json() == [1, 2]
        rest = wire.file.read()
        assert not rest or rest.startswith(b"HTTP/1.1 400 ")

    def test_a_slow_reader_of_a_pipeline_gets_everything(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        body = b"x" * 200_000
        wire.ask("PUT", path, TEXT, body)
        wire.send(build("GET", path) * 40)
        barrier(server.port, rounds=40)
        for _ in range(40):
            assert wire.answer().body == body


class TestFraming:
    """How a request may be framed."""

    def test_head_has_the_headers_of_a_stream_and_no_body(self, wire: Wire, path: str) -> None:
        created = wire.ask("PUT", path, TEXT | {"Stream-TTL": "60"}, b"hello")
        answer = wire.ask("HEAD", path)
        assert answer.headers["stream-next-offset"] == created.headers["stream-next-offset"]
        assert answer.headers["stream-ttl"] == "60"
        assert answer.headers["cache-control"] == "no-store"
        assert wire.ask("HEAD", f"{path}/none").status == 404
        assert wire.ask("GET", path).body == b"hello"

    def test_100_continue_is_sent_before_the_body(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT)
        whole = build("POST", path, TEXT | {"Expect": "100-continue"}, b"hello")
        wire.send(whole[:-5])
        assert wire.answer().status == 100
        wire.send(whole[-5:])
        assert wire.answer().status == 204
        assert wire.ask("GET", path).body == b"hello"

    def test_an_unknown_expectation_fails(self, wire: Wire, path: str) -> None:
        wire.send(build("POST", path, TEXT | {"Expect": "a miracle"}, b"hello"))
        wire.answer().problem(417, "expectation-failed")

    def test_a_chunked_body_is_joined(self, server: ServerProcess, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT)
        head = build("POST", path, TEXT | {"Transfer-Encoding": "chunked"})
        wire.send(head.replace(b"Content-Length: 0\r\n", b""))
        for piece in (b"5\r\nhel", b"lo\r\n1;ext=1\r\n \r\n5\r", b"\nworld\r\n0\r\n", b"\r\n"):
            wire.send(piece)
            barrier(server.port)
        assert wire.answer().status == 204
        assert wire.ask("GET", path).body == b"hello world"

    def test_equal_heads_may_have_different_bodies(self, wire: Wire, path: str) -> None:
        """Each request arrives in one piece, head and body of the same lengths as before."""
        wire.ask("PUT", path, TEXT)
        for letter in b"abcd":
            assert wire.ask("POST", path, TEXT, bytes([letter]) * 5).status == 204
        head = build("POST", path, TEXT | {"Transfer-Encoding": "chunked"})
        head = head.replace(b"Content-Length: 0\r\n", b"")
        for letter in b"efgh":
            wire.send(head + b"2\r\n%c%c\r\n1\r\n%c\r\n0\r\n\r\n" % (letter, letter, letter))
            assert wire.answer().status == 204
        packed = build("POST", path, TEXT | {"Transfer-Encoding": "chunked"})
        packed = packed.replace(b"Content-Length: 0\r\n", b"")
        wire.send(packed + b"0f\r\n" + b"i" * 15 + b"\r\n0\r\n\r\n")
        assert wire.answer().status == 204
        expected = b"aaaaabbbbbcccccdddddeeefffggghhh" + b"i" * 15
        assert wire.ask("GET", path).body == expected

    def test_an_equal_head_expects_100_continue_again(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT)
        whole = build("POST", path, TEXT | {"Expect": "100-continue"}, b"hello")
        for _ in range(3):
            wire.send(whole)
            answer = wire.answer()
            if answer.status == 100:  # may be left out where the body is there already
                answer = wire.answer()
            assert answer.status == 204
            wire.send(whole[:-5])
            assert wire.answer().status == 100
            wire.send(whole[-5:])
            assert wire.answer().status == 204
        assert wire.ask("GET", path).body == b"hello" * 6

    def test_an_equal_head_is_subject_to_the_limits_again(self, serve: Serve) -> None:
        server = serve("--max-buffered-bytes", "10000", "--max-body-bytes", "9000")
        with Wire(server.port) as wire, Wire(server.port) as other:
            wire.ask("PUT", "/v1/stream/s", TEXT)
            whole = build("POST", "/v1/stream/s", TEXT, b"x" * 6000)
            for _ in range(3):
                wire.send(whole)
                assert wire.answer().status == 204
            other.send(whole[:-1])
            barrier(server.port)
            wire.send(whole)
            wire.answer().problem(429, "too-much-buffered")

    def test_equal_heads_of_a_closed_connection_close_again(
        self, server: ServerProcess, path: str
    ) -> None:
        for _ in range(3):
            with Wire(server.port) as wire:
                answer = wire.ask("GET", path, {"Connection": "close"})
                assert answer.headers["connection"] == "close"
                assert wire.closed_by_server()

    def test_trailers_are_not_headers(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT)
        head = build("POST", path, TEXT | {"Transfer-Encoding": "chunked"})
        head = head.replace(b"Content-Length: 0\r\n", b"")
        wire.send(head + b"1\r\nx\r\n0\r\nStream-Closed: true\r\nX-More: 1\r\n\r\n")
        answer = wire.answer()
        assert answer.status in {204, 400}
        assert "stream-closed" not in wire.ask("HEAD", path).headers

    def test_a_request_may_arrive_byte_by_byte(self, wire: Wire, path: str) -> None:
        for byte in build("PUT", path, TEXT, b"hello"):
            wire.send(bytes([byte]))
        assert wire.answer().status == 201

    def test_an_absolute_target_names_the_same_stream(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT, b"hello")
        wire.send(f"GET http://test{path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        assert wire.answer().body == b"hello"

    def test_an_absolute_target_determines_the_location_of_a_stream(
        self, wire: Wire, path: str
    ) -> None:
        """RFC 9112, 3.2.2: its host counts, not that of the header."""
        wire.send(f"PUT HTTPS://me@proxied:8443{path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        assert wire.answer().headers["location"] == f"https://proxied:8443{path}"
        for target, status in (("http://test", 404), ("http://test?a=b", 404), ("http:///x", 404)):
            assert wire.ask("GET", target).status == status

    def test_header_names_are_case_insensitive_and_values_are_trimmed(
        self, wire: Wire, path: str
    ) -> None:
        wire.ask("PUT", path, {"CONTENT-type": "  application/json \t", "STREAM-closed": " True "})
        assert wire.ask("HEAD", path).headers["stream-closed"] == "true"

    @pytest.mark.parametrize(
        "request_bytes",
        [
            b"\x00\x01\x02\x03\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"FETCH / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\r\n c: folded\r\nX\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nxyz\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ],
    )
    def test_malformed_input_gets_400_and_closes_the_connection(
        self, wire: Wire, request_bytes: bytes
    ) -> None:
        wire.send(request_bytes)
        answer = wire.answer()
        answer.problem(400, "malformed-request")
        assert answer.headers["connection"] == "close"
        assert wire.closed_by_server()

    def test_a_method_that_streams_do_not_support_gets_405(self, wire: Wire, path: str) -> None:
        for method in ("PATCH", "TRACE", "PROPFIND"):
            answer = wire.ask(method, path)
            answer.problem(405, "method-not-allowed")
            assert "POST" in answer.headers["allow"]


class TestSlowClosing:
    """A response that is the last of its connection is delivered whole, however slowly."""

    def test_a_slow_reader_gets_the_complete_last_response(self) -> None:
        body = b"x" * 12_000_000  # more than the buffers of the system take at once
        with (
            SteppedServer(write_timeout=20.0, chunk_bytes=20_000_000) as server,
            Wire(server.port, receive_buffer=4096) as wire,
        ):
            with Wire(server.port) as writer:
                writer.ask("PUT", "/v1/stream/s", TEXT, body)
            wire.send(build("GET", "/v1/stream/s", {"Connection": "close"}))
            status, headers = wire.answer_head()
            assert (status, headers["content-length"]) == (200, "12000000")
            got = len(wire.file.read(10_000))
            server.advance(9.0)  # longer than the server waits for a client that still sends
            got += len(wire.file.read())
        assert got == len(body)
