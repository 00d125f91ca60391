"""The application as an ASGI app, to be mounted in FastAPI, Starlette or any ASGI server.

    app.mount("/streams", asgi_app(store=MemoryStore()))

The host server speaks HTTP and applies its own timeouts. Admission is the application's: a request
in progress counts as a connection. The store is opened by the lifespan, or by the first request if
the host does not pass lifespan events to mounted apps.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from headwater.server.admission import Hold, Overload, TooLarge
from headwater.server.app import Application
from headwater.server.handlers.live import EventFeed, EventStream
from headwater.server.listener import open_store
from headwater.server.messages import Head, Request, Response
from headwater.server.problems import refuse
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
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:  # a websocket: closing it before it is accepted refuses it
            await send({"type": "websocket.close", "code": 1000})

    async def startup(self) -> None:
        """Open the store and start background work."""
        async with self._opening:
            if not self.store.ready:
                await self.store.open()
            if not self._started:
                await self.app.start()
                self._started = True

    async def shutdown(self) -> None:
        """End live readers and close the store."""
        self.app.drain()
        if self._started:
            self._started = False
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
        if not self._started:
            await self.startup()
        head = _head(scope)
        admission = self.app.admission
        overload = admission.connect()
        try:
            if overload is not None:
                await self._send(head, refuse(overload), send)
                return
            response = await self._respond(head, receive)
            if isinstance(response, EventStream):
                await self._stream(response, receive, send)
            elif response is not None:
                await self._send(head, response, send)
        finally:
            admission.disconnect()

    async def _respond(self, head: Head, receive: Receive) -> Response | EventStream | None:
        """Receive the body and handle the request; None if the client disconnected before."""
        hold = self.app.admission.hold()
        try:
            body = await _body(head, receive, hold)
            if isinstance(body, bytes):
                return await self.app.handle(Request(head, body, hold))
            return None if body is None else refuse(body)
        finally:
            hold.release()

    async def _send(self, head: Head, response: Response, send: Send) -> None:
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

    async def _stream(self, response: EventStream, receive: Receive, send: Send) -> None:
        headers = self.app.common_headers + response.headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sink = _Sink(response.feed, self.app.settings.write_buffer_bytes)
        response.feed.start(sink)
        gone = asyncio.create_task(_disconnected(receive))
        gone.add_done_callback(sink.abandon)
        try:
            while (frames := await sink.take()) is not None:
                await send({"type": "http.response.body", "body": frames, "more_body": True})
            if not gone.done():
                await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            response.feed.stop()


async def _body(head: Head, receive: Receive, hold: Hold) -> bytes | TooLarge | Overload | None:
    """Receive a body, or return why it is refused; None if the client disconnected before."""
    length = head.headers.get(b"content-length", b"")
    if length.isdigit() and (refusal := hold.expect(int(length[:18]))) is not None:
        return refusal
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        body += piece
        more = message.get("more_body", False)
        if (refusal := hold.add(len(piece))) is not None:
            return refusal
    return bytes(body)


class _Sink:
    """Queues frames for `send`, which waits for the client."""

    chunked = False

    def __init__(self, feed: EventFeed, limit: int) -> None:
        self._feed = feed
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
        """Drop queued frames, because the client has disconnected."""
        self._frames.clear()
        self.end()

    async def take(self) -> bytes | None:
        """Wait for frames and return all of them; None at the end."""
        await self._ready.wait()
        if not self._frames:
            return None
        frames = b"".join(self._frames)
        self._frames.clear()
        self._size = 0
        if not self._ended:
            self._ready.clear()
            self._feed.resume()
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
    # An application that is mounted under a prefix sees the path after it.
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
    """Return an ASGI application, by default with the settings of `headwater serve`."""
    settings = settings or Settings()
    return AsgiApp(store or open_store(settings), settings)
