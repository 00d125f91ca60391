"""The asynchronous transport: kept-alive connections of one event loop.

Only asynchronous clients and producers import this module, since importing asyncio takes longer
than importing all of the synchronous client.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast
from urllib.parse import urlsplit

from headwater.client._http1 import (
    Malformed,
    Request,
    Response,
    ResponseParser,
    encode_request,
    origin_of,
)
from headwater.client._transport import (
    BaseExchange,
    IdleConnections,
    Timeouts,
    default_tls,
    has_input,
    reason_of,
)
from headwater.errors import ClientClosed, Unreachable

_MAX_WAITING_BYTES: Final = 1024 * 1024
"""An open response is not read any further if its reader has not taken this many bytes."""


class AsyncConnection(asyncio.Protocol):
    """One connection: passes what arrives to the parser of the expected response."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport  # set in `connection_made`, before any other call
        self._parser: ResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ready: Callable[[], bool] = bool
        self._timer: asyncio.TimerHandle
        self._last_input = 0.0
        self._error: Exception | None = None
        self._paused = False
        self._waiting_bytes = 0
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self.abort()  # no request was sent
            return
        try:
            parser.feed(data)
        except Malformed as error:
            self._error = error
        if self._waiter is not None:
            self._last_input = self._waiter.get_loop().time()
            self._wake()
        elif not parser.done:
            self._limit_buffer(len(data))

    def _limit_buffer(self, size: int) -> None:
        """Stop reading a response whose reader does not keep up."""
        self._waiting_bytes += size
        if self._waiting_bytes > _MAX_WAITING_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        if self._parser is not None and self._error is None and not self._parser.done:
            try:
                self._parser.end()
            except Malformed as error:
                self._error = exc or error
        self._wake()

    def send(self, first: bytes, rest: bytes, parser: ResponseParser) -> None:
        """Send a request and expect its response."""
        self._parser, self._error, self._waiting_bytes = parser, None, 0
        self._transport.write(first)
        if rest:
            self._transport.write(rest)

    async def until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready` returns True; raises if the connection breaks or times out."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._waiting_bytes = 0
        if not self._settled(ready):
            loop = asyncio.get_running_loop()
            self._waiter, self._ready, self._last_input = loop.create_future(), ready, loop.time()
            self._timer = loop.call_later(seconds, self._check_silence, seconds)
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
        """Break the connection."""
        self.ended = True
        self._transport.abort()

    def is_stale(self) -> bool:
        """Return whether an idle connection has ended or has input, perhaps unseen by the loop."""
        sock = self._transport.get_extra_info("socket")
        return self.ended or sock is None or has_input(sock.fileno())

    def forget(self) -> None:
        """Expect no response until the next request."""
        self._parser = None

    def _check_silence(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        silent = loop.time() - self._last_input
        if silent < seconds:
            self._timer = loop.call_later(seconds - silent, self._check_silence, seconds)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done() and self._settled(self._ready):
            waiter.set_result(None)


class AsyncTransport:
    """Connections to any number of origins, all of one event loop."""

    def __init__(self, timeouts: Timeouts, tls: ssl.SSLContext | None = None) -> None:
        self.timeouts = timeouts
        self.closed = False
        self._tls = tls
        self._idle: IdleConnections[AsyncConnection] = IdleConnections(
            AsyncConnection.is_stale, AsyncConnection.abort
        )
        self._busy: set[AsyncConnection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(
        self, request: Request, attempt: int = 0, scope: "AsyncScope | None" = None
    ) -> Response:
        """Send a request and wait for the whole response."""
        exchange = await self.start(request, attempt, scope)
        try:
            return await exchange.receive_all()
        finally:
            if scope is not None:
                scope.release()
            else:
                exchange.finish()

    async def start(
        self, request: Request, attempt: int = 0, scope: "AsyncScope | None" = None
    ) -> "AsyncExchange":
        """Send a request; the caller receives the response and finishes the exchange."""
        data = encode_request(request)
        connection = await self._connect(request)
        exchange = AsyncExchange(self, connection, request, attempt)
        connection.send(*data, exchange.parser)
        if scope is not None:
            scope.hold(exchange)
        return exchange

    async def close(self) -> None:
        """Close all connections; a task that waits for a response stops waiting."""
        self.closed = True
        for connection in list(self._busy):
            connection.abort()
        self._idle.close()
        # Transports close in the next turn of the loop, and would leak if it were closed now.
        await asyncio.sleep(0)

    def release(self, connection: AsyncConnection, request: Request, *, reusable: bool) -> None:
        """Keep a connection for the next request, or close it."""
        self._busy.discard(connection)
        connection.forget()
        is_usable = reusable and not self.closed and not connection.ended
        if not is_usable or not self._idle.add(request, connection):
            connection.abort()

    async def _connect(self, request: Request) -> AsyncConnection:
        self._check_loop(request)
        connection = self._idle.take(request)
        if connection is None:
            connection = await self._dial(request)
        self._busy.add(connection)
        return connection

    def _check_loop(self, request: Request) -> None:
        if self.closed:
            raise ClientClosed(request.url)
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("an AsyncClient belongs to one event loop: create one in each loop")

    async def _dial(self, request: Request) -> AsyncConnection:
        parts = urlsplit(request.url)
        secure = parts.scheme == "https"
        tls = (self._tls or default_tls()) if secure else None
        port = parts.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeouts.plain):
                _, connection = await loop.create_connection(
                    AsyncConnection, parts.hostname or "", port, ssl=tls
                )
        except OSError as error:  # TimeoutError is one, too
            raise Unreachable(request.url, origin_of(request.url), reason_of(error)) from None
        if self.closed:
            connection.abort()
            raise ClientClosed(request.url)
        return connection


class AsyncExchange(BaseExchange[AsyncConnection]):
    """One request on a connection, and its response as it arrives."""

    async def receive_all(self) -> Response:
        """Wait for the whole response."""
        await self._until(lambda: self.parser.done, None)
        return self.parser.response()

    async def open(self, patience: float | None = None) -> Response | None:
        """Wait for the head of a 200 response, or for all of another one.

        Returns None if nothing arrived for `patience` seconds.
        """
        if not await self._until(lambda: self.parser.has_head, patience):
            return None
        return self.parser.head() if self.parser.status == 200 else await self.receive_all()

    async def receive_more(self, patience: float | None = None) -> bytes | None:
        """Wait for more of the body and return it: empty at the end.

        Returns None if nothing arrived for `patience` seconds.
        """
        if not await self._until(lambda: self.parser.has_data or self.parser.done, patience):
            return None
        return self.parser.take()

    def abort(self) -> None:
        """Break the connection; a task that waits for it stops waiting."""
        self._connection.abort()

    async def _until(self, ready: Callable[[], bool], patience: float | None) -> bool:
        """Wait until `ready` returns True; False if nothing arrived for `patience` seconds."""
        seconds = self._timeout if patience is None else patience
        try:
            await self._connection.until(ready, seconds)
        except TimeoutError as error:
            if patience is not None:
                return False
            raise self._failed(error) from None
        except (OSError, Malformed) as error:
            raise self._failed(error) from None
        return True


class AsyncScope:
    """The open exchange of one reader, so that another task or thread can end it."""

    def __init__(self) -> None:
        self._exchange: AsyncExchange | None = None
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopped = False

    @property
    def exchange(self) -> AsyncExchange:
        """The open exchange."""
        if self._exchange is None:
            raise LookupError("no exchange is open")
        return self._exchange

    def enter(self) -> None:
        """Record the loop of the reader."""
        self._loop = asyncio.get_running_loop()

    def hold(self, exchange: AsyncExchange) -> None:
        """Record the open exchange; it is aborted if the reader was already stopped."""
        self._exchange = exchange
        if self.stopped:
            exchange.abort()

    def release(self) -> None:
        """Finish the open exchange, if there is one."""
        if self._exchange is not None:
            self._exchange.finish()
            self._exchange = None

    def stop(self) -> None:
        """End the reader, even while it waits; may be called from another thread."""
        self.stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    async def wait(self, seconds: float) -> None:
        """Wait some seconds, or until the reader is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return

    def _end(self) -> None:
        self._ended.set()
        if self._exchange is not None:
            self._exchange.abort()
