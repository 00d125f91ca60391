"""The log: one line for each request at debug, never a payload."""

import errno
import json
import logging
import os

import pytest

from headwater.server.logs import JsonFormatter, TextFormatter
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


def record(message: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("headwater.disk", logging.ERROR, __file__, 1, message, values, None)


def fields(message: str, *values: object) -> dict[str, str]:
    """Format a line of the JSON log, without what every line has."""
    document: dict[str, str] = json.loads(JsonFormatter().format(record(message, *values)))
    return {key: document[key] for key in document.keys() - {"time", "level", "logger"}}


@pytest.mark.parametrize(
    "value",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        ("127.0.0.1", 4437),
        "two\nlines",
        "level=forged a=b",
        "",
    ],
)
def test_json_logs_have_whole_values(value: object) -> None:
    assert fields("checkpoint failed error=%s", value) == {
        "event": "checkpoint failed",
        "error": str(value),
    }


@pytest.mark.parametrize(
    ("message", "values", "expected"),
    [
        ("stopping", (), {"event": "stopping"}),
        (
            "recovered records=%d seconds=%.3f",
            (7, 0.12345),
            {"event": "recovered", "records": "7", "seconds": "0.123"},
        ),
        (
            "%s; writes are stopped until the server is restarted error=%s",
            ("a=b failed", "no room"),
            {
                "event": "a=b failed; writes are stopped until the server is restarted",
                "error": "no room",
            },
        ),
        (
            "damaged file=%s position=0 %s",
            ("/data/a b", "too short"),
            {"event": "damaged too short", "file": "/data/a b", "position": "0"},
        ),
        (
            "following ended run=%s: %s",
            ("r 1", "gone"),
            {"event": "following ended: gone", "run": "r 1"},
        ),
        ("%d%% full of 100%%", (97,), {"event": "97% full of 100%"}),
        ("100% full error=no", (), {"event": "100% full", "error": "no"}),
    ],
)
def test_json_logs_take_fields_from_the_message_not_from_its_values(
    message: str, values: tuple[object, ...], expected: dict[str, str]
) -> None:
    assert fields(message, *values) == expected


def test_text_logs_have_fields_as_they_were_written() -> None:
    line = TextFormatter().format(record("checkpoint failed error=%s", "no room\nlevel=forged"))
    assert line.endswith("headwater.disk checkpoint failed error=no room\\nlevel=forged")


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
