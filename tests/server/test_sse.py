"""SSE reads (PROTOCOL 5.8)."""

import json
import threading
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.support.server import ServerProcess
from tests.support.wire import EventReader, Wire

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
S = "/v1/stream/s"


def sse(path: str, offset: str = "-1", more: str = "") -> str:
    return f"{path}?offset={offset}&live=sse{more}"


class TestEvents:
    """What is sent, and when."""

    def test_a_reader_catches_up_and_then_follows(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        with Wire(server.port) as writer:
            writer.ask("PUT", path, JSON, b"[1, 2]")
            reader = EventReader(wire, sse(path))
            assert reader.headers["content-type"] == "text/event-stream"
            assert reader.headers["cache-control"] == "no-cache"
            assert "stream-sse-data-encoding" not in reader.headers
            assert reader.need("data").json() == [1, 2]
            control = reader.need("control").json()
            assert control["upToDate"] is True
            assert int(control["streamCursor"]) > 0
            for number in range(3, 8):
                tail = writer.ask("POST", path, JSON, b"%d" % number).headers["stream-next-offset"]
                assert reader.need("data").json() == [number]
                assert reader.need("control").json()["streamNextOffset"] == tail

    def test_reading_from_now_starts_with_a_control_event_at_the_tail(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        with Wire(server.port) as writer:
            tail = writer.ask("PUT", path, JSON, b"[1]").headers["stream-next-offset"]
            reader = EventReader(wire, sse(path, "now"))
            control = reader.need("control").json()
            assert (control["streamNextOffset"], control["upToDate"]) == (tail, True)
            writer.ask("POST", path, JSON, b"2")
            assert reader.need("data").json() == [2]

    def test_a_long_catch_up_is_sent_in_chunks_and_reports_its_end(self, serve: Serve) -> None:
        server = serve("--chunk-bytes", "1000")
        sent = list(range(100_000, 101_000))
        with Wire(server.port) as wire:
            wire.ask("PUT", S, JSON, json.dumps(sent).encode())
            reader = EventReader(wire, sse(S))
            got: list[Any] = []
            controls: list[dict[str, Any]] = []
            while not controls or "upToDate" not in controls[-1]:
                got += reader.need("data").json()
                controls.append(reader.need("control").json())
        assert got == sent
        assert len(controls) > 5

    def test_closing_ends_the_stream_with_its_last_event(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        with Wire(server.port) as writer:
            writer.ask("PUT", path, JSON)
            reader = EventReader(wire, sse(path))
            reader.need("control")
            writer.ask("POST", path, JSON | {"Stream-Closed": "true"}, b'"last"')
            assert reader.need("data").json() == ["last"]
            control = reader.need("control").json()
            assert control["streamClosed"] is True
            assert "streamCursor" not in control
            assert reader.next() is None
        assert wire.ask("GET", path).json() == ["last"]  # the connection lives on

    def test_closing_without_data_is_reported_too(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        with Wire(server.port) as writer:
            writer.ask("PUT", path, JSON)
            reader = EventReader(wire, sse(path))
            reader.need("control")
            writer.ask("POST", path, {"Stream-Closed": "true"})
            assert reader.need("control").json()["streamClosed"] is True
            assert reader.next() is None

    @pytest.mark.parametrize("offset", ["-1", "now"])
    def test_a_closed_stream_is_reported_at_once(self, wire: Wire, path: str, offset: str) -> None:
        wire.ask("PUT", path, JSON | {"Stream-Closed": "true"}, b"[1]")
        events = EventReader(wire, sse(path, offset)).rest()
        kinds = ["data", "control"] if offset == "-1" else ["control"]
        assert [event.kind for event in events] == kinds
        last = events[-1].json()
        assert (last["streamClosed"], last["upToDate"]) == (True, True)

    def test_deleting_ends_the_stream(self, server: ServerProcess, wire: Wire, path: str) -> None:
        with Wire(server.port) as writer:
            writer.ask("PUT", path, JSON)
            reader = EventReader(wire, sse(path))
            reader.need("control")
            writer.ask("DELETE", path)
            assert reader.next() is None
            wire.ask("GET", sse(path)).problem(404, "stream-not-found")

    def test_deleting_and_creating_again_does_not_mix_two_streams(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        with Wire(server.port) as writer:
            writer.ask("PUT", path, JSON, b"[1]")
            reader = EventReader(wire, sse(path))
            reader.need("data")
            reader.need("control")
            writer.ask("DELETE", path)
            writer.ask("PUT", path, JSON, b"[1]")
            writer.ask("POST", path, JSON, b'"of the second"')
            assert reader.next() is None
            fresh = EventReader(wire, sse(path))
            assert fresh.need("data").json() == [1, "of the second"]

    def test_a_fork_is_read_across_its_fork_point_and_followed_alone(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        with Wire(server.port) as writer:
            writer.ask("PUT", path, JSON, b"[1]")
            writer.ask("PUT", f"{path}/f", {"Stream-Forked-From": path}, b"[2]")
            reader = EventReader(wire, sse(f"{path}/f"))
            assert reader.need("data").json() == [1, 2]
            reader.need("control")
            writer.ask("POST", path, JSON, b'"of the source"')
            writer.ask("POST", f"{path}/f", JSON, b"3")
            assert reader.need("data").json() == [3]

    def test_http_1_0_gets_events_without_chunked_coding(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON | {"Stream-Closed": "true"}, b"[1]")
        reader = EventReader(wire, sse(path), version="1.0")
        assert "transfer-encoding" not in reader.headers
        assert [event.kind for event in reader.rest()] == ["data", "control"]


class TestPayloads:
    """How content types are carried."""

    def test_binary_data_is_sent_in_base64(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        body = bytes(range(256)) * 5
        with Wire(server.port) as writer:
            writer.ask("PUT", path, {"Content-Type": "application/x-thing"}, body)
            reader = EventReader(wire, sse(path))
            assert reader.headers["stream-sse-data-encoding"] == "base64"
            assert reader.need("data").decoded() == body
            reader.need("control")
            writer.ask("POST", path, {"Content-Type": "application/x-thing"}, b"\n\n")
            assert reader.need("data").decoded() == b"\n\n"

    @pytest.mark.parametrize(
        "text",
        [
            "one\ntwo\n\nthree\n",
            "event: control\ndata: forged\n\nevent: data\ndata: more",
            "id: 7\nretry: 1\n: comment",
            " indented\n  more\n\ttab",
            "ünïcödé \u2028 \u2029 \x85",
            "\n\n\n",
            "\ufeffmark",
        ],
    )
    def test_text_is_sent_unchanged(self, wire: Wire, path: str, text: str) -> None:
        wire.ask("PUT", path, TEXT | {"Stream-Closed": "true"}, text.encode())
        events = EventReader(wire, sse(path)).rest()
        assert [event.kind for event in events] == ["data", "control"]
        assert events[0].data == text

    def test_no_kind_of_line_break_ends_an_event(self, wire: Wire, path: str) -> None:
        text = "a\r\nevent: control\rdata: forged\r\r\nb\n\rc"
        wire.ask("PUT", path, TEXT | {"Stream-Closed": "true"}, text.encode())
        events = EventReader(wire, sse(path)).rest()
        assert [event.kind for event in events] == ["data", "control"]
        assert events[0].data == text.replace("\r\n", "\n").replace("\r", "\n")
        assert "\r" not in events[0].data

    def test_json_with_line_breaks_is_one_event(self, wire: Wire, path: str) -> None:
        body = b'{"a":\r\n 1,\n\n"b": "c\\nd"}'
        wire.ask("PUT", path, JSON | {"Stream-Closed": "true"}, body)
        events = EventReader(wire, sse(path)).rest()
        assert events[0].json() == [{"a": 1, "b": "c\nd"}]


class TestEventStreams:
    """Cursors, duration, many subscribers."""

    def test_the_cursor_exceeds_the_one_that_the_client_sent(
        self, server: ServerProcess, wire: Wire, path: str
    ) -> None:
        with Wire(server.port) as writer:
            writer.ask("PUT", path, JSON)
            plain = EventReader(wire, sse(path)).need("control").json()
            ahead = int(plain["streamCursor"]) + 5000
            with Wire(server.port) as other:
                reader = EventReader(other, sse(path, "-1", f"&cursor={ahead}"))
                cursors = [int(reader.need("control").json()["streamCursor"])]
                for number in range(3):
                    writer.ask("POST", path, JSON, b"%d" % number)
                    reader.need("data")
                    cursors.append(int(reader.need("control").json()["streamCursor"]))
            assert cursors[0] > ahead
            assert cursors == sorted(cursors)

    def test_a_connection_ends_after_its_duration_and_the_next_one_loses_nothing(
        self, serve: Serve
    ) -> None:
        server = serve("--sse-duration", "0.1")
        written: list[int] = []
        enough = threading.Event()
        with Wire(server.port) as writer, Wire(server.port) as wire:
            writer.ask("PUT", S, JSON)

            def write() -> None:
                while not enough.is_set():
                    writer.ask("POST", S, JSON, b"%d" % len(written))
                    written.append(len(written))
                writer.ask("POST", S, {"Stream-Closed": "true"})

            thread = threading.Thread(target=write)
            thread.start()
            got: list[Any] = []
            control: dict[str, Any] = {"streamNextOffset": "-1"}
            connections = 0
            while "streamClosed" not in control:
                connections += 1
                if connections > 3:
                    enough.set()
                query = f"&cursor={control['streamCursor']}" if "streamCursor" in control else ""
                reader = EventReader(wire, sse(S, control["streamNextOffset"], query))
                while (event := reader.next()) is not None:
                    if event.kind == "data":
                        got += event.json()
                    else:
                        control = event.json()
            thread.join()
        assert got == written

    def test_all_subscribers_get_everything_in_order(
        self, server: ServerProcess, path: str
    ) -> None:
        wires = [Wire(server.port) for _ in range(30)]
        with Wire(server.port) as writer:
            writer.ask("PUT", path, JSON, b"[-1]")
            readers: list[EventReader] = []
            for number in range(100):
                writer.ask("POST", path, JSON, b"%d" % number)
                if number % 4 == 0 and len(readers) < len(wires):
                    readers.append(EventReader(wires[len(readers)], sse(path)))
            while len(readers) < len(wires):
                readers.append(EventReader(wires[len(readers)], sse(path)))
            writer.ask("POST", path, {"Stream-Closed": "true"})
        for reader in readers:
            events = reader.rest()
            got = [each for event in events if event.kind == "data" for each in event.json()]
            assert got == [-1, *range(100)]
            assert events[-1].json()["streamClosed"] is True
        for wire in wires:
            wire.close()

    def test_a_subscriber_that_disconnects_does_not_affect_others(
        self, server: ServerProcess, path: str
    ) -> None:
        with Wire(server.port) as writer, Wire(server.port) as stays:
            writer.ask("PUT", path, JSON)
            reader = EventReader(stays, sse(path))
            reader.need("control")
            for number in range(10):
                with Wire(server.port) as leaves:
                    EventReader(leaves, sse(path)).next()
                writer.ask("POST", path, JSON, b"%d" % number)
                assert reader.need("data").json() == [number]
                reader.need("control")

    def test_a_request_after_an_event_stream_is_answered_after_it(self, serve: Serve) -> None:
        server = serve("--sse-duration", "0.3")
        with Wire(server.port) as wire:
            wire.ask("PUT", S, JSON, b"[1]")
            reader = EventReader(wire, sse(S))
            wire.send(b"GET /v1/stream/s HTTP/1.1\r\nHost: test\r\n\r\n")
            reader.rest()
            assert wire.answer().json() == [1]
