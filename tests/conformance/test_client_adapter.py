"""The adapter speaks the public suite's protocol: one command per line in, one result per line out.

The suite itself is not published as a package, so its cases are not run here; these are the
behaviours that it looks at, one command kind after another.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.either import SERVERS, either_server

pytestmark = pytest.mark.starts_engine

ADAPTER = Path(__file__).with_name("client_adapter.py")
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with either_server(request.param) as server:
        yield server


@pytest.fixture
def ask(url: str) -> Iterator[Ask]:
    with subprocess.Popen(
        [sys.executable, str(ADAPTER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines, commands = process.stdout, process.stdin

        def send(kind: str, **command: Any) -> dict[str, Any]:
            commands.write(json.dumps({"type": kind, **command}) + "\n")
            commands.flush()
            result: dict[str, Any] = json.loads(lines.readline())
            return result

        assert send("init", serverUrl=url)["success"]
        yield send
        assert send("shutdown") == {"type": "shutdown", "success": True}
        assert process.wait(10) == 0


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/v1/stream/{abs(hash(request.node.nodeid))}-{os.getpid()}"


def test_it_is_a_command_and_declares_every_feature(ask: Ask, url: str) -> None:
    assert os.access(ADAPTER, os.X_OK)
    features = ask("init", serverUrl=url)["features"]
    assert len(features) == 9
    assert all(features.values())


def test_a_stream_from_creation_to_deletion(ask: Ask, path: str) -> None:
    assert ask("create", path=path, contentType="text/plain")["status"] == 201
    assert ask("create", path=path, contentType="text/plain")["status"] == 200
    assert ask("create", path=path, contentType="a/b")["errorCode"] == "CONFLICT"
    first = ask("append", path=path, data="one", seq=1)
    assert first["success"]
    assert ask("append", path=path, data="two", seq=1)["errorCode"] == "SEQUENCE_CONFLICT"
    assert ask("append", path=path, data="dHdv", binary=True, seq=2)["success"]
    read = ask("read", path=path, offset=first["offset"])
    assert [chunk["data"] for chunk in read["chunks"]] == ["two"]
    assert read["upToDate"]
    assert ask("connect", path=path)["status"] == 200
    assert ask("close", path=path, data="!")["finalOffset"]
    assert ask("append", path=path, data="x")["errorCode"] == "STREAM_CLOSED"
    assert ask("head", path=path)["streamClosed"]
    for live in (True, "sse", "long-poll"):
        read = ask("read", path=path, live=live, timeoutMs=3000)
        assert "".join(chunk["data"] for chunk in read["chunks"]) == "onetwo!"
        assert read["streamClosed"]
    assert ask("delete", path=path)["success"]
    assert ask("head", path=path)["errorCode"] == "NOT_FOUND"


def test_producers_dedupe_claim_and_close(ask: Ask, path: str) -> None:
    ask("create", path=path, contentType="application/json")
    mine = {"path": path, "producerId": "p", "epoch": 0, "autoClaim": False}
    assert ask("idempotent-append", data="1", **mine)["success"]
    items = [str(number) for number in range(2, 20)]
    others = mine | {"producerId": "q", "maxInFlight": 5}
    assert ask("idempotent-append-batch", items=items, **others)["success"]
    claiming = others | {"autoClaim": True, "epoch": 0, "producerId": "r"}
    ask("append", path=path, data="20", producerId="r", producerEpoch=4, producerSeq=0)
    assert ask("idempotent-append-batch", items=["21"], **claiming)["success"]
    fenced = ask("idempotent-append", data="0", **(mine | {"producerId": "r"}))
    assert fenced["status"] == 403
    assert ask("idempotent-detach", path=path, producerId="q", epoch=0)["success"]
    assert ask("idempotent-close", data="22", **mine)["success"]
    (chunk,) = ask("read", path=path)["chunks"]
    assert json.loads(chunk["data"]) == list(range(1, 23))


def test_values_are_made_for_each_request(ask: Ask, path: str) -> None:
    ask("create", path=path)
    ask("set-dynamic-header", name="X-Count", valueType="counter")
    ask("set-dynamic-param", name="at", valueType="timestamp")
    sent = [ask("append", path=path, data="x")["headersSent"]["X-Count"] for _ in range(3)]
    assert sent == sorted(set(sent))
    assert ask("read", path=path)["paramsSent"]["at"].isdigit()
    assert ask("clear-dynamic")["success"]
    assert "headersSent" not in ask("read", path=path)


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ({"target": "retry-options", "maxRetries": -1}, "maxRetries"),
        ({"target": "retry-options", "initialDelayMs": 0}, "initialDelayMs"),
        ({"target": "retry-options", "initialDelayMs": 10, "maxDelayMs": 5}, "maxDelayMs"),
        ({"target": "retry-options", "multiplier": 0.5}, "multiplier"),
        ({"target": "idempotent-producer", "epoch": -1}, "epoch"),
        ({"target": "idempotent-producer", "maxBatchBytes": 0}, "maxBatchBytes"),
        ({"target": "idempotent-producer", "maxBatchItems": 0}, "maxBatchItems"),
    ],
)
def test_values_that_can_not_be_used_are_refused(
    ask: Ask, target: dict[str, Any], word: str
) -> None:
    assert ask("validate", target={"target": target["target"]})["success"]
    refused = ask("validate", target=target)
    assert refused["errorCode"] == "INVALID_ARGUMENT"
    assert word in refused["message"]


def test_benchmarks_are_timed(ask: Ask, path: str) -> None:
    ask("create", path=path, contentType="application/json")
    operation = {"op": "throughput_append", "path": path, "count": 500, "size": 20}
    operation["concurrency"] = 1
    assert int(ask("benchmark", iterationId="1", operation=operation)["durationNs"]) > 0
    read = ask("benchmark", iterationId="2", operation={"op": "throughput_read", "path": path})
    assert read["metrics"]["messagesProcessed"] == 500


def test_what_is_unknown_is_told(ask: Ask) -> None:
    assert ask("dance")["errorCode"] == "NOT_SUPPORTED"
