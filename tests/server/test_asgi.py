"""The ASGI adapter, mounted in a FastAPI application under uvicorn, and alone."""

import asyncio
import errno
import http.client
import json
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from headwater.server import Settings, asgi_app
from headwater.server.asgi import AsgiApp
from headwater.storage.memory import MemoryStore
from tests.support.asgi import AsgiProcess
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def connection() -> Iterator[http.client.HTTPConnection]:
    with AsgiProcess("tests.support.asgi_apps:mounted") as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        yield connection
        connection.close()


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: str | None = None,
    **headers: str,
) -> tuple[http.client.HTTPResponse, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    return response, response.read()


def test_the_host_keeps_its_own_routes(
    connection: http.client.HTTPConnection,
) -> None:
    assert json.loads(ask(connection, "GET", "/hello")[1]) == {"hello": "world"}
    created, _ = ask(connection, "PUT", "/streams/chat/1", '["a"]', content_type="application/json")
    assert created.status == 201
    location = created.getheader("location") or ""
    assert location.endswith("/streams/chat/1")
    read, body = ask(connection, "GET", "/streams/chat/1?offset=-1")
    assert read.status == 200
    assert json.loads(body) == ["a"]


def test_a_fork_names_its_source_by_the_whole_url_path(
    connection: http.client.HTTPConnection,
) -> None:
    ask(connection, "PUT", "/streams/source", '["a"]', content_type="application/json")
    forked, _ = ask(connection, "PUT", "/streams/fork", None, stream_forked_from="/streams/source")
    assert forked.status == 201
    assert json.loads(ask(connection, "GET", "/streams/fork")[1]) == ["a"]


def test_the_body_limit_holds(connection: http.client.HTTPConnection) -> None:
    refused, body = ask(connection, "PUT", "/streams/large", "x" * 1001)
    assert refused.status == 413
    assert json.loads(body)["code"] == "body-too-large"


def test_head_has_no_body_and_no_content_length(connection: http.client.HTTPConnection) -> None:
    ask(connection, "PUT", "/streams/head", '["a"]', content_type="application/json")
    response, body = ask(connection, "HEAD", "/streams/head")
    assert response.status == 200
    assert body == b""
    assert response.getheader("stream-next-offset")


def test_a_large_response_from_a_file_is_sent_in_pieces(tmp_path: Path) -> None:
    content = os.urandom(1024 * 1024) * 5

    async def call(
        app: AsgiApp, method: str, body: bytes, query: str = ""
    ) -> tuple[dict[bytes, bytes], Any]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": "/v1/stream/s",
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"content-type", b"application/octet-stream")] if body else [],
        }
        await app(scope, receive, send)
        return dict(sent[0]["headers"]), [each["body"] for each in sent[1:]]

    async def scenario() -> None:
        app = asgi_app(settings=Settings(store=str(tmp_path)))
        await app.startup()
        await call(app, "PUT", content)
        await app.shutdown()  # which leaves everything in a segment
        app = asgi_app(settings=Settings(store=str(tmp_path)))
        await app.startup()
        found = b""
        offset = "-1"
        while len(found) < len(content):  # the first time, in answers of what is checked at once
            headers, parts = await call(app, "GET", b"", f"offset={offset}")
            found += b"".join(parts)
            offset = headers[b"stream-next-offset"].decode()
        assert found == content
        headers, parts = await call(app, "GET", b"")
        assert int(headers[b"content-length"]) == len(content)
        assert b"".join(parts) == content
        assert max(map(len, parts)) <= 1024 * 1024
        await app.shutdown()

    asyncio.run(asyncio.wait_for(scenario(), 30))


class FailingOnce(MemoryStore):
    """A store whose first expiry fails."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self.expired_again = asyncio.Event()

    async def expire(self, now: float, limit: int) -> int:
        if not self.failed:
            self.failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.expired_again.set()
        return await super().expire(now, limit)


def test_expiry_continues_after_a_failure_which_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        store = FailingOnce()
        app = asgi_app(store, Settings(reap_interval=0.05))
        await app.startup()
        await asyncio.wait_for(store.expired_again.wait(), PATIENCE_SECONDS)
        await app.shutdown()

    asyncio.run(scenario())
    assert "housekeeping failed" in caplog.text
    assert "No space left on device" in caplog.text


class Upload:
    """A request whose body never ends, and what was answered to it."""

    def __init__(self, app: AsgiApp, piece: bytes, *then: BaseException) -> None:
        self._piece = piece
        self._then = then
        self._received = 0
        self.waiting = asyncio.Event()
        self.status = 0
        scope = {
            "type": "http",
            "method": "PUT",
            "path": "/v1/stream/s",
            "headers": [(b"content-type", b"text/plain")],
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        self._received += 1
        if self._received == 1:
            return {"type": "http.request", "body": self._piece, "more_body": True}
        self.waiting.set()
        for error in self._then:
            raise error
        forever: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        return await forever

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.status = message.get("status", self.status)


def test_a_body_is_counted_only_during_its_request() -> None:
    """Each of them takes more than half of what may be buffered."""

    async def scenario() -> None:
        app = asgi_app(MemoryStore(), Settings(max_body_bytes=1000, max_buffered_bytes=1000))
        await app.startup()
        cancelled = Upload(app, b"x" * 600)
        await cancelled.waiting.wait()
        too_much = Upload(app, b"x" * 600)
        await too_much.task
        assert too_much.status == 429
        cancelled.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled.task
        failed = Upload(app, b"x" * 600, OSError("the host lost the connection"))
        with pytest.raises(OSError, match="lost"):
            await failed.task
        too_large = Upload(app, b"x" * 1001)
        await too_large.task
        assert too_large.status == 413
        last = Upload(app, b"x" * 1000)
        await asyncio.wait(
            {last.task, asyncio.ensure_future(last.waiting.wait())}, return_when="FIRST_COMPLETED"
        )
        assert last.waiting.is_set(), f"refused with {last.status}"
        last.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await last.task
        await app.shutdown()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
