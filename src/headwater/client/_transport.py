"""The blocking transport: kept-alive sockets, any number of threads."""

import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from headwater.client._http1 import (
    Incoming,
    Malformed,
    Request,
    Response,
    encode_request,
    origin_of,
)
from headwater.errors import ClientClosed, ClientError, ConnectionLost, Unreachable

if TYPE_CHECKING:
    import ssl

PIECE_BYTES: Final = 256 * 1024
MAX_IDLE: Final = 16
FRESH_SECONDS: Final = 4.0
"""Servers close connections that were idle for some seconds (Node after 5). What must not be sent
twice is not sent on one that may be closing just now."""
IN_DOUBT: Final = (
    "It may or may not have been carried out: look at the end of the stream before sending again."
)


class Timeouts:
    """How long to wait: for a connection or an answer, and for a live read to say something."""

    def __init__(self, usual: float, live: float) -> None:
        if usual <= 0 or live <= 0:
            raise ValueError("timeout and live_timeout are seconds and must be more than 0")
        self.usual = usual
        self.live = live

    def of(self, request: Request) -> float:
        """Say how long a request may stay without a sign of life."""
        return self.live if request.live else self.usual


class Transport:
    """Connections to any number of origins; may be used from several threads."""

    def __init__(self, timeouts: Timeouts, tls: "ssl.SSLContext | None" = None) -> None:
        self._timeouts = timeouts
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[socket.socket, float]]] = {}
        self._busy: set[socket.socket] = set()
        self._closed = False

    def send(self, request: Request, attempt: int = 0, scope: "Scope | None" = None) -> Response:
        """Send a request and wait for the whole answer."""
        exchange = self.start(request, attempt, scope)
        try:
            exchange.whole()
            return exchange.incoming.answer()
        finally:
            if scope is not None:
                scope.let_go()
            else:
                exchange.finish()

    def start(self, request: Request, attempt: int = 0, scope: "Scope | None" = None) -> "Exchange":
        """Send a request; whoever calls receives the answer and finishes the exchange."""
        data = encode_request(request)
        sock = self._connect(request, fresh=not request.repeatable)
        exchange = Exchange(self, sock, request, attempt)
        if scope is not None and not scope.hold(exchange):
            scope.let_go()
            raise ClientClosed(request.url)
        exchange.send(*data)
        return exchange

    def close(self) -> None:
        """Close all connections, also those that a thread waits on: its read ends at once."""
        with self._lock:
            self._closed = True
            idle = [sock for kept in self._idle.values() for sock, _ in kept]
            busy = list(self._busy)
            self._idle = {}
        for sock in idle:
            sock.close()
        for sock in busy:
            shut(sock)

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._closed

    def timeout_of(self, request: Request) -> float:
        """Say how long a request may stay without a sign of life."""
        return self._timeouts.of(request)

    def release(self, sock: socket.socket, request: Request, *, reusable: bool) -> None:
        """Take a connection back, to keep it for the next request or to close it."""
        with self._lock:
            self._busy.discard(sock)
            if reusable and not self._closed:
                kept = self._idle.setdefault(origin_of(request.url), [])
                if len(kept) < MAX_IDLE:
                    kept.append((sock, time.monotonic()))
                    return
        sock.close()

    def _connect(self, request: Request, *, fresh: bool) -> socket.socket:
        """Take an idle connection, or make one."""
        origin = origin_of(request.url)
        while True:
            with self._lock:
                if self._closed:
                    raise ClientClosed(request.url)
                kept = self._idle.get(origin)
                sock, since = kept.pop() if kept else (None, 0.0)
                if sock is not None:
                    self._busy.add(sock)
            if sock is None:
                return self._dial(request, origin)
            too_old = fresh and time.monotonic() - since > FRESH_SECONDS
            if not too_old and not has_something_to_say(sock.fileno()):
                return sock
            self.release(sock, request, reusable=False)

    def _dial(self, request: Request, origin: str) -> socket.socket:
        parts = urlsplit(request.url)
        secure = parts.scheme == "https"
        host = parts.hostname or ""
        try:
            sock = socket.create_connection(
                (host, parts.port or (443 if secure else 80)), self._timeouts.usual
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
            if not self._closed:
                self._busy.add(sock)
                return sock
        sock.close()
        raise ClientClosed(request.url)


class Exchange:
    """One request on its way, and the answer as it comes."""

    def __init__(
        self, transport: Transport, sock: socket.socket, request: Request, attempt: int
    ) -> None:
        self._transport = transport
        self._sock = sock
        self._request = request
        self._finished = False
        self.incoming = Incoming(request, attempt)

    def send(self, first: bytes, rest: bytes) -> None:
        """Send the request."""
        try:
            self._sock.settimeout(self._transport.timeout_of(self._request))
            self._sock.sendall(first)
            if rest:
                self._sock.sendall(rest)
        except (BrokenPipeError, ConnectionResetError):
            return  # a server may refuse before it has read the whole body: its answer says why
        except OSError as error:
            raise self._failed(error) from None

    def whole(self) -> None:
        """Wait for the whole answer."""
        while not self.incoming.done:
            self._receive(None)

    def head(self, patience: float | None = None) -> bool:
        """Wait for the head of the answer; False where it took longer than `patience`."""
        while not self.incoming.has_head:
            if not self._receive(patience):
                return False
        return True

    def more(self, patience: float | None = None) -> bool:
        """Wait for more of the body; False where it was silent for longer than `patience`."""
        while not self.incoming.waiting and not self.incoming.done:
            if not self._receive(patience):
                return False
        return True

    def _receive(self, patience: float | None) -> bool:
        usual = self._transport.timeout_of(self._request)
        try:
            self._sock.settimeout(usual if patience is None else patience)
            data = self._sock.recv(PIECE_BYTES)
            if data:
                self.incoming.feed(data)
            else:
                self.incoming.end()
        except TimeoutError as error:
            if patience is not None:
                return False
            raise self._failed(error) from None
        except (OSError, Malformed) as error:
            raise self._failed(error) from None
        return True

    def take_more(self, patience: float | None) -> bytes | None:
        """Wait for more of the body and take it: empty at the end, None for silence."""
        return self.incoming.take() if self.more(patience) else None

    def cut(self) -> None:
        """Break it off, also from another thread: whoever waits for it stops waiting."""
        shut(self._sock)

    def finish(self) -> None:
        """Give the connection back."""
        if self._finished:
            return
        self._finished = True
        reusable = self.incoming.done and self.incoming.reusable
        self.incoming.forget()
        self._transport.release(self._sock, self._request, reusable=reusable)

    def _failed(self, error: Exception) -> ClientError:
        self.finish()
        if self._transport.closed:
            return ClientClosed(self._request.url)
        return lost(self._request, error)


class Scope:
    """What one reader has open, so that another thread can end it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exchange: Exchange | None = None
        self._stopped = threading.Event()

    @property
    def exchange(self) -> Exchange:
        """What is open now."""
        if self._exchange is None:
            raise LookupError("nothing is open")
        return self._exchange

    def hold(self, exchange: Exchange) -> bool:
        """Remember what is open now; False where the reader was stopped meanwhile."""
        with self._lock:
            self._exchange = exchange
            return not self._stopped.is_set()

    def let_go(self) -> None:
        """Give back what is open."""
        with self._lock:
            exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish()

    def stop(self) -> None:
        """End whatever the reader waits for."""
        with self._lock:
            self._stopped.set()
            if self._exchange is not None:
                self._exchange.cut()

    @property
    def stopped(self) -> bool:
        """Whether the reader was stopped."""
        return self._stopped.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, or until the reader is stopped."""
        return self._stopped.wait(seconds)


def default_tls() -> "ssl.SSLContext":
    """Trust what the system trusts; loading that takes time, so only who needs it does."""
    import ssl  # noqa: PLC0415 - a tenth of the time that a plain client takes to start

    return ssl.create_default_context()


def lost(request: Request, error: Exception) -> ConnectionLost:
    """Make the error of a connection that broke."""
    advice = "Try again." if request.repeatable else IN_DOUBT
    return ConnectionLost(request.url, origin_of(request.url), reason_of(error), advice)


def reason_of(error: Exception) -> str:
    """Say in a few words why a connection failed."""
    if isinstance(error, TimeoutError):
        return "no answer came in time"
    untrusted = getattr(error, "verify_message", None)  # of ssl.SSLCertVerificationError
    if untrusted:
        return f"its certificate is not trusted ({untrusted})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def shut(sock: socket.socket) -> None:
    """Break a connection without closing it: its number must not be given to another yet."""
    with suppress(OSError, ValueError):
        # The kernel's own call: the one of `ssl` would also forget the session under the reader.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def has_something_to_say(number: int) -> bool:
    """Look at an idle connection: one that speaks unasked has ended, or says a thing twice."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))
