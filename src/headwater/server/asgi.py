"""The same application as an ASGI app, to be mounted in FastAPI, Starlette or any ASGI server.

    app.mount("/streams", asgi_app(store=MemoryStore()))

The host server speaks HTTP, so its limits and timeouts apply; what is left to us is the body limit,
the buffered-bytes limit and slow SSE readers. The store is opened by the lifespan, or by the first
request where the host does not pass lifespan events on to mounted apps.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

from headwater.server.app import Application
from headwater.server.handlers.live import EventStream, Feed
from headwater.server.listener import open_store, reap
from headwater.server.messages import Head, Request, Response
from headwater.server.problems import (
    TOO_LARGE,
    Overload,
    problem_response,
    refuse,
)
from headwater.server.settings import Settings
from headwater.storage.file_ranges import pieces
from headwater.storage.store import Store

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]

_PIECE_BYTES: Final = 1024 * 1024


class AsgiApp:
    """An ASGI application over one store."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.app = Application(store, settings)
        self.store = store
        self._opening: asyncio.Lock = asyncio.Lock()
        self._reaper: asyncio.Task[None] | None = None
        self._buffered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:  # a websocket: refuse it as ASGI wants it refused
            await send({"type": "websocket.close", "code": 1000})

    async def startup(self) -> None:
        """Open the store and begin to remove expired streams."""
        async with self._opening:
            if not self.store.ready:
                await self.store.open()
            if self._reaper is None:
                await self.app.start()
                self._reaper = asyncio.create_task(reap(self.app))

    async def shutdown(self) -> None:
        """End live readers and close the store."""
        self.app.drain()
        if self._reaper is not None:
            self._reaper.cancel()
            with suppress(asyncio.CancelledError):
                await self._reaper
            self._reaper = None
            await self.app.stop()
        await self.store.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.startup()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.shutdown()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._reaper is None:
            await self.startup()
        head = _head(scope)
        held = 0
        response: Response | EventStream
        try:
            body, refusal = await self._body(head, receive)
            held = len(body)
            if refusal is None:
                response = await self.app.handle(Request(head, body))
            else:
                response = refusal
        except _Disconnected:
            return  # half a body is none
        finally:
            self._buffered -= held
        if isinstance(response, EventStream):
            await self._stream(response, receive, send)
            return
        headers = self.app.common_headers + response.headers
        if not response.omits_length:
            headers.append((b"content-length", b"%d" % response.length))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = b""
        if head.method != "HEAD":
            if response.from_files:
                for piece in pieces(response.body, _PIECE_BYTES):
                    await send(
                        {"type": "http.response.body", "body": bytes(piece), "more_body": True}
                    )
            else:
                body = response.joined()
        await send({"type": "http.response.body", "body": body})

    async def _body(self, head: Head, receive: Receive) -> tuple[bytes, Response | None]:
        """Receive a body, or as much of it as there is when it is refused.

        What is returned stays counted as buffered; the caller subtracts it.
        """
        settings = self.app.settings
        length = head.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > settings.max_body_bytes:
            return b"", problem_response(TOO_LARGE)
        body = bytearray()
        more = True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Disconnected  # noqa: TRY301 - handled like an error of `receive`
                piece = message.get("body", b"")
                body += piece
                self._buffered += len(piece)
                more = message.get("more_body", False)
                refusal = None
                if len(body) > settings.max_body_bytes:
                    refusal = problem_response(TOO_LARGE)
                elif self._buffered > settings.max_buffered_bytes:
                    detail = "Too many request bodies are in memory; send this one again."
                    refusal = refuse(Overload("too-much-buffered", detail))
                if refusal is not None:
                    return bytes(body), refusal
            return bytes(body), None
        except BaseException:  # disconnected, cancelled, or the host's `receive` failed
            self._buffered -= len(body)
            raise

    async def _stream(self, response: EventStream, receive: Receive, send: Send) -> None:
        headers = self.app.common_headers + response.headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sink = _Sink(response.subscriber, self.app.settings.write_buffer_bytes)
        response.subscriber.start(sink)
        gone = asyncio.create_task(_disconnected(receive))
        gone.add_done_callback(sink.abandon)
        try:
            while (frames := await sink.take()) is not None:
                await send({"type": "http.response.body", "body": frames, "more_body": True})
            if not gone.done():
                await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            response.subscriber.stop()


class _Disconnected(Exception):
    """The client went away before its body had arrived."""


class _Sink:
    """Frames between the fan-out and `send`, which waits for the client."""

    chunked = False

    def __init__(self, subscriber: Feed, limit: int) -> None:
        self._subscriber = subscriber
        self._limit = limit
        self._frames: list[bytes] = []
        self._size = 0
        self._ended = False
        self._ready = asyncio.Event()

    @property
    def full(self) -> bool:
        return self._size >= self._limit

    def write(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._size += len(frame)
        self._ready.set()

    def end(self) -> None:
        self._ended = True
        self._ready.set()

    def abandon(self, _: object) -> None:
        """Drop what waits: the client has gone."""
        self._frames.clear()
        self.end()

    async def take(self) -> bytes | None:
        """Wait for frames and take them all; None at the end."""
        await self._ready.wait()
        if not self._frames:
            return None
        frames = b"".join(self._frames)
        self._frames.clear()
        self._size = 0
        if not self._ended:
            self._ready.clear()
            self._subscriber.resume()
        return frames


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _head(scope: Scope) -> Head:
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers[name] = headers[name] + b", " + value if name in headers else value
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw_path.decode("latin-1").partition("?")[0]
    # Mounted under a prefix: what lies behind it is ours.
    mount = scope.get("root_path", "")
    path = path.removeprefix(mount)
    return Head(
        scope["method"],
        path,
        scope.get("query_string", b"").decode("latin-1"),
        headers,
        scheme=scope.get("scheme", "http"),
        mount=mount,
    )


def asgi_app(store: Store | None = None, settings: Settings | None = None) -> AsgiApp:
    """Make an ASGI application; without arguments it is what `headwater serve` would serve."""
    settings = settings or Settings()
    return AsgiApp(store or open_store(settings), settings)
