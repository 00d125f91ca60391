"""Catch-up reads: chunks, ETags, caching, incarnations."""

import pytest

from tests.server.conftest import Serve
from tests.support.server import ServerProcess
from tests.support.wire import Wire, build

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
S = "/v1/stream/s"


class TestChunks:
    """The chunk limit."""

    def test_a_long_json_stream_comes_in_chunks_of_whole_messages(self, serve: Serve) -> None:
        server = serve("--chunk-bytes", "1000")
        sent = [{"number": number, "pad": "x" * (number % 90)} for number in range(300)]
        with Wire(server.port) as wire:
            wire.ask("PUT", S, JSON)
            for message in sent:
                wire.ask("POST", S, JSON, str(message).replace("'", '"').encode())
            got = []
            offset = "-1"
            answers = 0
            while True:
                answer = wire.ask("GET", f"{S}?offset={offset}")
                assert answer.status == 200
                got += answer.json()
                answers += 1
                offset = answer.headers["stream-next-offset"]
                if "stream-up-to-date" in answer.headers:
                    break
                assert answer.json()
        assert got == sent
        assert answers > 10

    def test_only_the_last_chunk_of_a_closed_stream_reports_closure(self, serve: Serve) -> None:
        server = serve("--chunk-bytes", "10")
        with Wire(server.port) as wire:
            wire.ask("PUT", S, TEXT | {"Stream-Closed": "true"}, b"x" * 25)
            offset, marks = "-1", []
            for _ in range(3):
                answer = wire.ask("GET", f"{S}?offset={offset}")
                offset = answer.headers["stream-next-offset"]
                marks.append((len(answer.body), answer.headers.get("stream-closed")))
        assert marks == [(10, None), (10, None), (5, "true")]

    def test_a_response_ends_at_the_until_offset(self, serve: Serve) -> None:
        server = serve("--chunk-bytes", "1000")
        with Wire(server.port) as wire:
            ends = [wire.ask("PUT", S, JSON, b"[0]").headers["stream-next-offset"]]
            for number in range(1, 400):
                wire.ask("POST", S, JSON, b"[%d]" % number)
                ends.append(wire.ask("HEAD", S).headers["stream-next-offset"])
            few = wire.ask("GET", f"{S}?offset={ends[4]}&until={ends[9]}")
            assert (few.json(), few.headers["stream-next-offset"]) == ([5, 6, 7, 8, 9], ends[9])
            assert "stream-up-to-date" not in few.headers
            assert wire.ask("GET", f"{S}?until={ends[0]}").json() == [0]
            many = wire.ask("GET", f"{S}?offset=-1&until={ends[-1]}")
            assert len(many.body) <= 1000
            past = wire.ask("GET", f"{S}?offset={ends[9]}&until={ends[4]}")
            assert past.json()[0] == 10
            wire.ask("GET", f"{S}?offset=-1&until=soon").problem(400, "offset-malformed")

    def test_a_message_over_the_limit_is_returned_whole(self, serve: Serve) -> None:
        server = serve("--chunk-bytes", "100")
        with Wire(server.port) as wire:
            wire.ask("PUT", S, JSON, b'[1, "%b", 2]' % (b"x" * 1000))
            first = wire.ask("GET", S)
            assert first.json() == [1]
            second = wire.ask("GET", f"{S}?offset={first.headers['stream-next-offset']}")
            assert second.json()[0] == "x" * 1000


class TestCaching:
    """ETags, 304, `Cache-Control` (PROTOCOL 10.1)."""

    def test_an_unchanged_read_gets_304(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON, b"[1]")
        first = wire.ask("GET", path)
        again = wire.ask("GET", path, {"If-None-Match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["stream-next-offset"] == first.headers["stream-next-offset"]
        weak = {"If-None-Match": f'"x", W/{first.headers["etag"]}'}
        assert wire.ask("GET", path, weak).status == 304
        assert wire.ask("GET", path, {"If-None-Match": '"other"'}).status == 200

    def test_an_append_changes_the_etag(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON, b"[1]")
        etag = wire.ask("GET", path).headers["etag"]
        wire.ask("POST", path, JSON, b"2")
        assert wire.ask("GET", path, {"If-None-Match": etag}).json() == [1, 2]

    def test_closing_changes_the_etag(self, wire: Wire, path: str) -> None:
        tail = wire.ask("PUT", path, JSON, b"[1]").headers["stream-next-offset"]
        targets = (path, f"{path}?offset={tail}")
        etags = [wire.ask("GET", target).headers["etag"] for target in targets]
        wire.ask("POST", path, {"Stream-Closed": "true"})
        for target, etag in zip(targets, etags, strict=True):
            answer = wire.ask("GET", target, {"If-None-Match": etag})
            assert answer.status == 200
            assert answer.headers["stream-closed"] == "true"
            assert answer.headers["etag"] != etag

    def test_recreating_changes_the_etag(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON, b"[1]")
        etag = wire.ask("GET", path).headers["etag"]
        wire.ask("DELETE", path)
        wire.ask("PUT", path, JSON, b"[2]")
        assert wire.ask("GET", path, {"If-None-Match": etag}).json() == [2]

    def test_data_may_be_cached_and_the_tail_may_not(self, wire: Wire, path: str) -> None:
        tail = wire.ask("PUT", path, JSON, b"[1]").headers["stream-next-offset"]
        data = wire.ask("GET", path).headers["cache-control"]
        assert data == "public, max-age=60, stale-while-revalidate=300"
        for offset in (tail, "now"):
            control = wire.ask("GET", f"{path}?offset={offset}").headers["cache-control"]
            assert control in {"no-cache", "no-store"}
        assert "etag" not in wire.ask("GET", f"{path}?offset=now").headers

    def test_a_private_server_sends_private_caching(self, serve: Serve) -> None:
        server = serve("--cache", "private")
        with Wire(server.port) as wire:
            wire.ask("PUT", S, JSON, b"[1]")
            assert wire.ask("GET", S).headers["cache-control"].startswith("private")

    def test_every_reader_sees_the_latest_state(self, server: ServerProcess, path: str) -> None:
        """The same read, again and again, while the stream changes in every way it can."""
        with Wire(server.port) as one, Wire(server.port) as other:

            def seen() -> list[object]:
                found = []
                for wire in (one, other, one):
                    answer = wire.ask("GET", path)
                    closed = answer.headers.get("stream-closed")
                    found.append((answer.json() if answer.status == 200 else None, closed))
                assert found[0] == found[1] == found[2]
                return [*found[0]]

            other.ask("PUT", path, JSON)
            assert seen() == [[], None]
            other.ask("POST", path, JSON, b"1")
            assert seen() == [[1], None]
            one.ask("POST", path, JSON | {"Stream-Closed": "true"}, b"2")
            assert seen() == [[1, 2], "true"]
            other.ask("DELETE", path)
            assert one.ask("GET", path).status == 404
            other.ask("PUT", path, JSON, b"[1]")
            assert seen() == [[1], None]


class TestIncarnations:
    """A stream that was deleted and created again can be distinguished from the first one."""

    def test_head_and_reads_return_the_incarnation(self, wire: Wire, path: str) -> None:
        created = wire.ask("PUT", path, JSON, b"[1]").headers["stream-incarnation"]
        tail = wire.ask("HEAD", path).headers["stream-next-offset"]
        for target in (path, f"{path}?offset={tail}", f"{path}?offset=now"):
            assert wire.ask("GET", target).headers["stream-incarnation"] == created
        assert wire.ask("HEAD", path).headers["stream-incarnation"] == created
        assert wire.ask("PUT", path, JSON).headers["stream-incarnation"] == created

    def test_an_offset_of_the_first_stream_gets_410_on_the_second(
        self, wire: Wire, path: str
    ) -> None:
        first = wire.ask("PUT", path, JSON, b"[1]")
        stale = first.headers["stream-next-offset"]
        wire.ask("DELETE", path)
        second = wire.ask("PUT", path, JSON, b"[1]")
        assert second.headers["stream-incarnation"] != first.headers["stream-incarnation"]
        for live in ("", "&live=long-poll", "&live=sse"):
            answer = wire.ask("GET", f"{path}?offset={stale}{live}")
            answer.problem(410, "offset-gone")
            assert answer.headers["stream-incarnation"] == second.headers["stream-incarnation"]

    @pytest.mark.parametrize("offset", ["-1", "0000000000000000_0000000000000000", None])
    def test_the_beginning_needs_no_incarnation(
        self, wire: Wire, path: str, offset: str | None
    ) -> None:
        wire.ask("PUT", path, JSON, b"[1]")
        target = path if offset is None else f"{path}?offset={offset}"
        assert wire.ask("GET", target).json() == [1]


def test_a_query_may_be_written_in_any_order_and_with_escapes(wire: Wire, path: str) -> None:
    tail = wire.ask("PUT", path, JSON, b"[1]").headers["stream-next-offset"]
    wire.ask("POST", path, JSON, b"2")
    escaped = tail.replace("_", "%5F")
    wire.send(build("GET", f"{path}?unknown=1&live=false&offset={escaped}&&=&x"))
    assert wire.answer().json() == [2]
