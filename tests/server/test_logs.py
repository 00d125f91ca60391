"""The log: one line for each request at debug, never a payload."""

import errno
import json
import logging
from pathlib import Path
from typing import Any

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
    assert any(document.get("status") == 201 for document in documents)
    assert SECRET not in server.log()


def record(message: str, *values: object, **fields: object) -> logging.LogRecord:
    logger = logging.getLogger("headwater.disk")
    place = (__file__, 1)
    return logger.makeRecord(
        logger.name, logging.ERROR, *place, message, values, None, extra=fields
    )


def members(message: str, *values: object, **fields: object) -> dict[str, Any]:
    """Format a line of the JSON log, without what every line has."""
    document: dict[str, Any] = json.loads(
        JsonFormatter().format(record(message, *values, **fields))
    )
    return {key: document[key] for key in document.keys() - {"time", "level", "logger"}}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (OSError(errno.ENOSPC, "No space left"), "[Errno 28] No space left"),
        (("127.0.0.1", 4437), ["127.0.0.1", 4437]),
        (Path("/data/a b"), "/data/a b"),
        ("two\nlines", "two\nlines"),
        ("level=forged a=b", "level=forged a=b"),
        ("", ""),
        (0.123, 0.123),
        (7, 7),
        (None, None),
    ],
)
def test_json_logs_have_whole_values_with_their_types(value: object, written: object) -> None:
    assert members("checkpoint failed", error=value) == {
        "event": "checkpoint failed",
        "error": written,
    }


def test_json_logs_take_fields_from_the_call_not_from_the_message() -> None:
    assert members("%s, 97%% full: a=b", "level=forged", file="f") == {
        "event": "level=forged, 97% full: a=b",
        "file": "f",
    }
    assert members("100% full") == {"event": "100% full"}


def test_a_field_does_not_replace_what_every_line_has() -> None:
    document = json.loads(JsonFormatter().format(record("stopping", event="x", level="y", time=0)))
    assert (document["event"], document["level"]) == ("stopping", "error")
    assert document["time"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("/data/s", "/data/s"),
        (7, "7"),
        ("é", "é"),
        ("no room", '"no room"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('"', r'"\""'),
        ("two\nlevel=forged", r'"two\nlevel=forged"'),
        ("x\x85level=forged", r'"x\u0085level=forged"'),
    ],
)
def test_text_logs_quote_a_value_that_could_be_taken_for_something_else(
    value: object, written: str
) -> None:
    line = TextFormatter().format(record("checkpoint failed", error=value, count=2))
    assert line.endswith(f"headwater.disk checkpoint failed error={written} count=2")


def test_a_message_is_one_line_of_text() -> None:
    line = TextFormatter().format(record("%s failed", "one\r\ntwo"))
    assert line.endswith("headwater.disk one\\r\\ntwo failed")


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
