"""The log: one line for each request at debug, never a payload."""

import json

from tests.server.conftest import Serve
from tests.support.wire import EventReader, Wire, build

JSON = {"Content-Type": "application/json"}
SECRET = "hush-hush-4711"
S = "/v1/stream/s"


def exercise(port: int) -> None:
    """Make requests of every kind, each with the secret in its payload."""
    secret = f'"{SECRET}"'.encode()
    with Wire(port) as wire:
        wire.ask("PUT", S, JSON, secret)
        wire.ask("POST", S, JSON, b"[" + secret + b"]")
        wire.ask("POST", S, JSON, secret[:-1])
        wire.ask("POST", S, {"Content-Type": "text/plain"}, secret)
        wire.ask("POST", S, JSON | {"Content-Encoding": "gzip"}, secret)
        wire.ask("GET", S)
        wire.ask("POST", S, {"Stream-Closed": "true"})
        EventReader(wire, f"{S}?offset=-1&live=sse").rest()
        wire.send(build("POST", S, JSON, secret) + secret)
        wire.answer()
        wire.answer().problem(400, "malformed-request")


def test_requests_are_logged_at_debug_without_payload(serve: Serve) -> None:
    server = serve("--log-level", "debug")
    exercise(server.port)
    server.stop()
    log = server.log()
    assert f"method=PUT path={S} status=201" in log
    assert "method=POST" in log
    assert SECRET not in log


def test_requests_are_not_logged_at_info(serve: Serve) -> None:
    server = serve()
    exercise(server.port)
    server.stop()
    assert "method=" not in server.log()
    assert SECRET not in server.log()


def test_json_logs_are_one_object_a_line(serve: Serve) -> None:
    server = serve("--log-level", "debug", "--log-format", "json")
    exercise(server.port)
    server.stop()
    lines = [line for line in server.log().splitlines() if not line.startswith("Headwater")]
    documents = [json.loads(line) for line in lines]
    assert all({"time", "level", "logger", "event"} <= set(document) for document in documents)
    assert any(document.get("status") == "201" for document in documents)
    assert SECRET not in server.log()


def test_a_path_can_not_write_a_line_of_its_own_or_another_field(serve: Serve) -> None:
    server = serve("--log-level", "debug", "--log-format", "json")
    with Wire(server.port) as wire:
        for target in (b"/x\x85level=forged", b"/x\xa0level=forged", b"/x%0alevel=forged"):
            wire.send(b"GET " + target + b" HTTP/1.1\r\nHost: test\r\n\r\n")
            if wire.answer().headers.get("connection") == "close":
                break
    server.stop()
    for line in server.log().split("\n"):
        if line.startswith("{"):
            assert json.loads(line)["level"] in {"debug", "info", "warning", "error"}
