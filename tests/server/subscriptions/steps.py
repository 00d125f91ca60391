"""Steps of the subscription tests: requests to a server, and a webhook that records its calls."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlsplit

from tests.support.patience import PATIENCE_SECONDS, wait_until

ROOT = "/v1/stream/"
LEASE_MS = 600_000
"""Longer than any test, unless time is what it is about."""


class Reply(NamedTuple):
    """A response of the server."""

    status: int
    body: Any
    headers: dict[str, str]

    @property
    def code(self) -> str:
        """The protocol's error code."""
        return str(self.body["error"]["code"])


class Api:
    """A server's streams and subscriptions, one request at a time."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, method: str, path: str, body: object = None, token: str | None = None) -> Reply:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            headers = {"Content-Type": "application/json"}
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            data = None if body is None else json.dumps(body)
            connection.request(method, ROOT + path, data, headers)
            answer = connection.getresponse()
            raw = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, json.loads(raw) if raw else None, found)
        finally:
            connection.close()

    # Streams

    def create(self, path: str, *messages: object) -> str:
        reply = self.call("PUT", path, list(messages))
        assert reply.status in {200, 201}, reply
        return reply.headers["stream-next-offset"]

    def append(self, path: str, message: object = 1) -> str:
        reply = self.call("POST", path, message)
        assert reply.status == 204, reply
        return reply.headers["stream-next-offset"]

    def events(self, path: str) -> list[Any]:
        messages = self.call("GET", path).body
        assert isinstance(messages, list)
        return messages

    # Subscriptions

    def sub(self, name: str, *rest: str) -> str:
        return "/".join(("__ds/subscriptions", quote(name, safe=""), *rest))

    def pull(self, name: str, pattern: str | None = "events/*", **more: object) -> Reply:
        """Create a pull-wake subscription."""
        body = {"type": "pull-wake", "wake_stream": "wake/pool", "lease_ttl_ms": LEASE_MS, **more}
        return self.call("PUT", self.sub(name), {**body, "pattern": pattern})

    def hook(self, name: str, url: str, pattern: str | None = "events/*", **more: object) -> Reply:
        """Create a webhook subscription."""
        body = {"type": "webhook", "webhook": {"url": url}, "lease_ttl_ms": LEASE_MS, **more}
        return self.call("PUT", self.sub(name), {**body, "pattern": pattern})

    def show(self, name: str) -> Any:
        reply = self.call("GET", self.sub(name))
        assert reply.status == 200, reply
        return reply.body

    def acked(self, name: str) -> dict[str, str]:
        return {item["path"]: item["acked_offset"] for item in self.show(name)["streams"]}

    def claim(self, name: str, worker: str = "one") -> Reply:
        return self.call("POST", self.sub(name, "claim"), {"worker": worker})

    def ack(
        self,
        name: str,
        wake: Any,
        *,
        acks: dict[str, str] | None = None,
        done: bool = True,
        how: str = "ack",
    ) -> Reply:
        """Ack a wake from a claim or from a webhook's body; by default everything that it lists."""
        if acks is None:
            acks = {item["path"]: item["tail_offset"] for item in wake["streams"]}
        body = {
            "wake_id": wake["wake_id"],
            "generation": wake["generation"],
            "acks": [{"stream": path, "offset": offset} for path, offset in acks.items()],
            "done": done,
        }
        token = wake.get("token") or wake.get("callback_token")
        return self.call("POST", self.sub(name, how), body, token)

    def release(self, name: str, wake: Any) -> Reply:
        body = {"wake_id": wake["wake_id"], "generation": wake["generation"]}
        return self.call("POST", self.sub(name, "release"), body, wake["token"])


def eventually(check: Callable[[], object]) -> Any:
    """Repeat a check until its result is true, and return the result."""
    found: object = None

    def holds() -> object:
        nonlocal found
        found = check()
        return found

    wait_until(holds, pause=0.01)
    return found


class Call(NamedTuple):
    """A call that a webhook has received."""

    at: float
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Webhook:
    """A local webhook with configurable responses."""

    def __init__(self, status: int = 200, body: object = None) -> None:
        self.status = status
        self.body: object = body if body is not None else {}
        self.gate = threading.Event()
        """While it is closed, responses are delayed."""
        self.gate.set()
        self.raw_answer: bytes | None = None
        self.calls: list[Call] = []
        self.taken: list[bytes] = []
        """Responses after which the server has closed the connection, so it has processed them."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.calls.append(Call(time.time(), self.path, headers, raw))
                outer.gate.wait(PATIENCE_SECONDS)
                if outer.raw_answer is not None:
                    self.wfile.write(outer.raw_answer)
                    return
                data = json.dumps(outer.body).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                with suppress(ConnectionError):
                    self.rfile.read(1)  # until the server closes the connection
                outer.taken.append(data)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

            def handle(self) -> None:
                with suppress(ConnectionError):  # the server may close the connection
                    super().handle()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?x=1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for(self, count: int) -> Call:
        """Wait for a number of calls, and return the last one."""
        eventually(lambda: len(self.calls) >= count)
        return self.calls[count - 1]
