"""Connections: the pool of idle ones, which both transports use, and the blocking transport.

The blocking transport keeps sockets open between requests. Any number of threads may share it.
"""

import select
import socket
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from headwater.client._http1 import (
    Malformed,
    Request,
    Response,
    ResponseParser,
    encode_request,
    origin_of,
)
from headwater.errors import ClientClosed, ClientError, ConnectionLost, Unreachable

if TYPE_CHECKING:
    import ssl

C = TypeVar("C", bound=Hashable)
C_contra = TypeVar("C_contra", contravariant=True)

PIECE_BYTES: Final = 256 * 1024
MAX_IDLE: Final = 16
FRESH_SECONDS: Final = 4.0
"""Servers close connections that were idle for some seconds (Node after 5). A request that must not
be sent twice is only sent on a connection that was idle for less than this."""
IN_DOUBT: Final = (
    "It may or may not have been executed: check the end of the stream before you send it again."
)


class Timeouts:
    """Seconds to wait for a connection or a response, and for data of a live read."""

    def __init__(self, plain: float, live: float) -> None:
        if plain <= 0 or live <= 0:
            raise ValueError("timeout and live_timeout are seconds and must be more than 0")
        self.plain = plain
        self.live = live

    def of(self, request: Request) -> float:
        """Return how long the server may be silent after a request."""
        return self.live if request.live else self.plain


class IdleConnections(Generic[C]):
    """Kept-alive connections, by origin; the caller holds the lock if there is one."""

    def __init__(self, is_stale: Callable[[C], bool], close: Callable[[C], object]) -> None:
        self._is_stale = is_stale
        self._close = close
        self._idle: dict[str, list[tuple[C, float]]] = {}

    def add(self, request: Request, connection: C) -> bool:
        """Keep a connection for the next request; False if the origin has enough of them."""
        idle = self._idle.setdefault(origin_of(request.url), [])
        if len(idle) >= MAX_IDLE:
            return False
        idle.append((connection, time.monotonic()))
        return True

    def take(self, request: Request) -> C | None:
        """Return a connection that is usable for a request; the others are closed."""
        idle = self._idle.get(origin_of(request.url))
        while idle:
            connection, since = idle.pop()
            is_old = not request.repeatable and time.monotonic() - since > FRESH_SECONDS
            if not is_old and not self._is_stale(connection):
                return connection
            self._close(connection)
        return None

    def close(self) -> None:
        """Close all connections."""
        for idle in self._idle.values():
            for connection, _ in idle:
                self._close(connection)
        self._idle = {}


class BaseTransport(Protocol[C_contra]):
    """What an exchange needs of its transport."""

    timeouts: Timeouts
    closed: bool

    def release(self, connection: C_contra, request: Request, *, reusable: bool) -> None:
        """Keep a connection for the next request, or close it."""


class BaseExchange(Generic[C]):
    """One request and its response as it arrives."""

    def __init__(
        self, transport: BaseTransport[C], connection: C, request: Request, attempt: int
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._request = request
        self._timeout = transport.timeouts.of(request)
        self._finished = False
        self.parser = ResponseParser(request, attempt)

    def finish(self) -> None:
        """Release the connection."""
        if self._finished:
            return
        self._finished = True
        reusable = self.parser.done and self.parser.reusable
        self.parser.release()
        self._transport.release(self._connection, self._request, reusable=reusable)

    def _failed(self, error: Exception) -> ClientError:
        self.finish()
        if self._transport.closed:
            return ClientClosed(self._request.url)
        advice = "Try again." if self._request.repeatable else IN_DOUBT
        url = self._request.url
        return ConnectionLost(url, origin_of(url), reason_of(error), advice)


class Transport:
    """Connections to any number of origins; may be used from several threads."""

    def __init__(self, timeouts: Timeouts, tls: "ssl.SSLContext | None" = None) -> None:
        self.timeouts = timeouts
        self.closed = False
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: IdleConnections[socket.socket] = IdleConnections(_is_stale, socket.socket.close)
        self._busy: set[socket.socket] = set()

    def send(self, request: Request, attempt: int = 0, scope: "Scope | None" = None) -> Response:
        """Send a request and wait for the whole response."""
        exchange = self.start(request, attempt, scope)
        try:
            return exchange.receive_all()
        finally:
            if scope is not None:
                scope.release()
            else:
                exchange.finish()

    def start(self, request: Request, attempt: int = 0, scope: "Scope | None" = None) -> "Exchange":
        """Send a request; the caller receives the response and finishes the exchange."""
        data = encode_request(request)
        exchange = Exchange(self, self._connect(request), request, attempt)
        if scope is not None and not scope.hold(exchange):
            scope.release()
            raise ClientClosed(request.url)
        exchange.send(*data)
        return exchange

    def close(self) -> None:
        """Close all connections; a thread that waits for a response stops waiting."""
        with self._lock:
            self.closed = True
            busy = list(self._busy)
            self._idle.close()
        for sock in busy:
            shut_down(sock)

    def release(self, connection: socket.socket, request: Request, *, reusable: bool) -> None:
        """Keep a connection for the next request, or close it."""
        with self._lock:
            self._busy.discard(connection)
            if reusable and not self.closed and self._idle.add(request, connection):
                return
        connection.close()

    def _connect(self, request: Request) -> socket.socket:
        """Return an idle connection or a new one."""
        with self._lock:
            if self.closed:
                raise ClientClosed(request.url)
            sock = self._idle.take(request)
            if sock is not None:
                self._busy.add(sock)
                return sock
        return self._dial(request)

    def _dial(self, request: Request) -> socket.socket:
        parts = urlsplit(request.url)
        secure = parts.scheme == "https"
        host = parts.hostname or ""
        origin = origin_of(request.url)
        try:
            sock = socket.create_connection(
                (host, parts.port or (443 if secure else 80)), self.timeouts.plain
            )
        except OSError as error:
            raise Unreachable(request.url, origin, reason_of(error)) from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure:
                context = self._tls or default_tls()
                sock = context.wrap_socket(sock, server_hostname=host)
        except OSError as error:
            sock.close()
            raise Unreachable(request.url, origin, reason_of(error)) from None
        with self._lock:
            if not self.closed:
                self._busy.add(sock)
                return sock
        sock.close()
        raise ClientClosed(request.url)


class Exchange(BaseExchange[socket.socket]):
    """One request on a socket, and its response as it arrives."""

    def send(self, first: bytes, rest: bytes) -> None:
        """Send the request."""
        try:
            self._connection.settimeout(self._timeout)
            self._connection.sendall(first)
            if rest:
                self._connection.sendall(rest)
        except (BrokenPipeError, ConnectionResetError):
            return  # a server may refuse before it has read the whole body: read its response
        except OSError as error:
            raise self._failed(error) from None

    def receive_all(self) -> Response:
        """Wait for the whole response."""
        while not self.parser.done:
            self._receive(None)
        return self.parser.response()

    def open(self, patience: float | None = None) -> Response | None:
        """Wait for the head of a 200 response, or for all of another one.

        Returns None if nothing arrived for `patience` seconds.
        """
        while not self.parser.has_head:
            if not self._receive(patience):
                return None
        return self.parser.head() if self.parser.status == 200 else self.receive_all()

    def receive_more(self, patience: float | None = None) -> bytes | None:
        """Wait for more of the body and return it: empty at the end.

        Returns None if nothing arrived for `patience` seconds.
        """
        while not self.parser.has_data and not self.parser.done:
            if not self._receive(patience):
                return None
        return self.parser.take()

    def abort(self) -> None:
        """Break the connection, from any thread; a thread that waits for it stops waiting."""
        shut_down(self._connection)

    def _receive(self, patience: float | None) -> bool:
        """Wait for some bytes; False if none came for `patience` seconds."""
        try:
            self._connection.settimeout(self._timeout if patience is None else patience)
            data = self._connection.recv(PIECE_BYTES)
            if data:
                self.parser.feed(data)
            else:
                self.parser.end()
        except TimeoutError as error:
            if patience is not None:
                return False
            raise self._failed(error) from None
        except (OSError, Malformed) as error:
            raise self._failed(error) from None
        return True


class Scope:
    """The open exchange of one reader, so that another thread can end it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exchange: Exchange | None = None
        self._stopped = threading.Event()

    @property
    def exchange(self) -> Exchange:
        """The open exchange."""
        if self._exchange is None:
            raise LookupError("no exchange is open")
        return self._exchange

    def hold(self, exchange: Exchange) -> bool:
        """Remember the open exchange; False if the reader was stopped in the meantime."""
        with self._lock:
            self._exchange = exchange
            return not self._stopped.is_set()

    def release(self) -> None:
        """Finish the open exchange, if there is one."""
        with self._lock:
            exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish()

    def stop(self) -> None:
        """End the reader, even while it waits for data or for its next attempt."""
        with self._lock:
            self._stopped.set()
            if self._exchange is not None:
                self._exchange.abort()

    @property
    def stopped(self) -> bool:
        """Whether the reader was stopped."""
        return self._stopped.is_set()

    def wait(self, seconds: float) -> None:
        """Wait some seconds, or until the reader is stopped."""
        self._stopped.wait(seconds)


def default_tls() -> "ssl.SSLContext":
    """Return a context that trusts the system's certificates; loading them takes time."""
    import ssl  # noqa: PLC0415 - a tenth of the start-up time of a client that does not need it

    return ssl.create_default_context()


def reason_of(error: Exception) -> str:
    """Describe in a few words why a connection failed."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    untrusted = getattr(error, "verify_message", None)  # of ssl.SSLCertVerificationError
    if untrusted:
        return f"its certificate is not trusted ({untrusted})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def shut_down(sock: socket.socket) -> None:
    """Break a connection without closing it, so that its descriptor is not reused yet."""
    with suppress(OSError, ValueError):
        # Of the plain socket: the method of an SSL socket would also drop the reader's session.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def has_input(number: int) -> bool:
    """Return whether an idle connection is readable: it has ended, or has unexpected input."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


def _is_stale(sock: socket.socket) -> bool:
    return has_input(sock.fileno())
