"""The asynchronous transport: kept-alive connections of one event loop."""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Final, cast
from urllib.parse import urlsplit

from headwater.client._http1 import (
    Incoming,
    Malformed,
    Request,
    Response,
    encode_request,
    origin_of,
)
from headwater.client._transport import (
    FRESH_SECONDS,
    MAX_IDLE,
    Timeouts,
    default_tls,
    has_something_to_say,
    lost,
    reason_of,
)
from headwater.errors import ClientClosed, ClientError, Unreachable

_MAX_WAITING_BYTES: Final = 1024 * 1024
"""An open answer that nobody takes is not read further: the server has to wait."""


class Connection(asyncio.Protocol):
    """One connection: feeds what arrives to the answer that is expected."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport  # from `connection_made` on, before anyone else is here
        self._incoming: Incoming | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ready: Callable[[], bool] = bool
        self._timer: asyncio.TimerHandle
        self._last = 0.0
        self._error: Exception | None = None
        self._paused = False
        self._waiting_bytes = 0
        self.ended = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        if incoming is None:
            self.abort()  # nobody has asked for anything
            return
        try:
            incoming.feed(data)
        except Malformed as error:
            self._error = error
        if self._waiter is not None:
            self._last = self._waiter.get_loop().time()
            self._wake()
        elif not incoming.done:
            self._hold_back(len(data))

    def _hold_back(self, size: int) -> None:
        """Stop reading an answer that nobody takes."""
        self._waiting_bytes += size
        if self._waiting_bytes > _MAX_WAITING_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        if self._incoming is not None and self._error is None and not self._incoming.done:
            try:
                self._incoming.end()
            except Malformed as error:
                self._error = exc or error
        self._wake()

    def ask(self, first: bytes, rest: bytes, incoming: Incoming) -> None:
        """Send a request and expect its answer."""
        self._incoming, self._error, self._waiting_bytes = incoming, None, 0
        self._transport.write(first)
        if rest:
            self._transport.write(rest)

    async def until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until an answer is as far as wanted; raises where it broke or was silent."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._waiting_bytes = 0
        if not self._settled(ready):
            loop = asyncio.get_running_loop()
            self._waiter, self._ready, self._last = loop.create_future(), ready, loop.time()
            self._timer = loop.call_later(seconds, self._late, seconds)
            try:
                await self._waiter
            finally:
                self._timer.cancel()
                self._waiter = None
        if self._error is not None and not ready():
            raise self._error

    def _settled(self, ready: Callable[[], bool]) -> bool:
        return self._error is not None or ready()

    def abort(self) -> None:
        """Break the connection off."""
        self.ended = True
        self._transport.abort()

    @property
    def is_stale(self) -> bool:
        """Whether it has ended, or speaks unasked, perhaps before the loop has heard of it."""
        sock = self._transport.get_extra_info("socket")
        return self.ended or sock is None or has_something_to_say(sock.fileno())

    def let_go(self) -> None:
        """Expect nothing more for now."""
        self._incoming = None
        self.idle_since = time.monotonic()

    def _late(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        silent = loop.time() - self._last
        if silent < seconds:
            self._timer = loop.call_later(seconds - silent, self._late, seconds)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done() and self._settled(self._ready):
            waiter.set_result(None)


class AsyncTransport:
    """Connections to any number of origins, all of one event loop."""

    def __init__(self, timeouts: Timeouts, tls: ssl.SSLContext | None = None) -> None:
        self._timeouts = timeouts
        self._tls = tls
        self._idle: dict[str, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def send(self, request: Request, attempt: int = 0) -> Response:
        """Send a request and wait for the whole answer."""
        exchange = await self.start(request, attempt)
        try:
            await exchange.whole()
            return exchange.incoming.answer()
        finally:
            exchange.finish()

    async def start(self, request: Request, attempt: int = 0) -> "AsyncExchange":
        """Send a request; whoever calls receives the answer and finishes the exchange."""
        data = encode_request(request)
        connection = await self._connect(request)
        exchange = AsyncExchange(self, connection, request, attempt)
        connection.ask(*data, exchange.incoming)
        return exchange

    async def close(self) -> None:
        """Close all connections, also those that a task waits on."""
        self._closed = True
        for connection in [*self._busy, *(one for kept in self._idle.values() for one in kept)]:
            connection.abort()
        self._idle = {}
        # Transports close in the next turn; whoever closes the loop right away would leak them.
        await asyncio.sleep(0)

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._closed

    def timeout_of(self, request: Request) -> float:
        """Say how long a request may stay without a sign of life."""
        return self._timeouts.of(request)

    def release(self, connection: Connection, request: Request, *, reusable: bool) -> None:
        """Take a connection back, to keep it for the next request or to close it."""
        self._busy.discard(connection)
        connection.let_go()
        if reusable and not self._closed and not connection.ended:
            kept = self._idle.setdefault(origin_of(request.url), [])
            if len(kept) < MAX_IDLE:
                kept.append(connection)
                return
        connection.abort()

    async def _connect(self, request: Request) -> Connection:
        self._check_loop(request)
        origin = origin_of(request.url)
        kept = self._idle.get(origin)
        while kept:
            connection = kept.pop()
            age = time.monotonic() - connection.idle_since
            if connection.is_stale or (not request.repeatable and age > FRESH_SECONDS):
                connection.abort()
                continue
            self._busy.add(connection)
            return connection
        return await self._dial(request, origin)

    def _check_loop(self, request: Request) -> None:
        if self._closed:
            raise ClientClosed(request.url)
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("an AsyncClient belongs to one event loop: make one in each")

    async def _dial(self, request: Request, origin: str) -> Connection:
        parts = urlsplit(request.url)
        secure = parts.scheme == "https"
        tls = (self._tls or default_tls()) if secure else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.usual):
                _, connection = await loop.create_connection(
                    Connection, parts.hostname or "", parts.port or (443 if secure else 80), ssl=tls
                )
        except OSError as error:  # which TimeoutError is, too
            raise Unreachable(request.url, origin, reason_of(error)) from None
        if self._closed:
            connection.abort()
            raise ClientClosed(request.url)
        self._busy.add(connection)
        return connection


class AsyncExchange:
    """One request on its way, and the answer as it comes."""

    def __init__(
        self, transport: AsyncTransport, connection: Connection, request: Request, attempt: int
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._request = request
        self._finished = False
        self.incoming = Incoming(request, attempt)

    async def whole(self) -> None:
        """Wait for the whole answer."""
        await self._until(lambda: self.incoming.done, None)

    async def head(self, patience: float | None = None) -> bool:
        """Wait for the head of the answer; False where it took longer than `patience`."""
        return await self._until(lambda: self.incoming.has_head, patience)

    async def more(self, patience: float | None = None) -> bool:
        """Wait for more of the body; False where it was silent for longer than `patience`."""
        return await self._until(lambda: self.incoming.waiting or self.incoming.done, patience)

    async def take_more(self, patience: float | None) -> bytes | None:
        """Wait for more of the body and take it: empty at the end, None for silence."""
        return self.incoming.take() if await self.more(patience) else None

    def cut(self) -> None:
        """Break it off: whoever waits for it stops waiting."""
        self._connection.abort()

    async def _until(self, ready: Callable[[], bool], patience: float | None) -> bool:
        usual = self._transport.timeout_of(self._request)
        try:
            await self._connection.until(ready, usual if patience is None else patience)
        except TimeoutError as error:
            if patience is not None:
                return False
            raise self._failed(error) from None
        except (OSError, Malformed) as error:
            raise self._failed(error) from None
        return True

    def finish(self) -> None:
        """Give the connection back."""
        if self._finished:
            return
        self._finished = True
        reusable = self.incoming.done and self.incoming.reusable
        self.incoming.forget()
        self._transport.release(self._connection, self._request, reusable=reusable)

    def _failed(self, error: Exception) -> ClientError:
        self.finish()
        if self._transport.closed:
            return ClientClosed(self._request.url)
        return lost(self._request, error)


# How one asynchronous reader is ended by another task or thread.


class AsyncScope:
    """What one reader has open, so that another task can end it."""

    def __init__(self) -> None:
        self._exchange: AsyncExchange | None = None
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopped = False

    @property
    def exchange(self) -> AsyncExchange:
        """What is open now."""
        if self._exchange is None:
            raise LookupError("nothing is open")
        return self._exchange

    def enter(self) -> None:
        """Take note of the loop that the reader runs in."""
        self._loop = asyncio.get_running_loop()

    def hold(self, exchange: AsyncExchange) -> AsyncExchange:
        """Remember what is open now; it ends at once where the reader was stopped meanwhile."""
        self._exchange = exchange
        if self.stopped:
            exchange.cut()
        return exchange

    def let_go(self) -> None:
        """Give back what is open."""
        if self._exchange is not None:
            self._exchange.finish()
            self._exchange = None

    def stop(self) -> None:
        """End whatever the reader waits for; another thread may do so, too."""
        self.stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    async def wait(self, seconds: float) -> None:
        """Wait, or until the reader is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return

    def _end(self) -> None:
        self._ended.set()
        if self._exchange is not None:
            self._exchange.cut()
