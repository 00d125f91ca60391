"""The thin layer that does the I/O: requests over kept-alive `http.client` connections."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    RemoteDisconnected,
)
from io import BufferedReader
from typing import Final
from urllib.parse import urlsplit

from headwater.client.messages import Answer, Request, origin_of, target_of
from headwater.errors import ClientClosed, ConnectionLost, Unreachable

_PIECE_BYTES: Final = 64 * 1024
_MAX_IDLE: Final = 8
_IN_DOUBT: Final = (
    "It may or may not have been carried out: look at the end of the stream before sending again."
)


class _Head:
    """The lines of an answer's head, watched for where they break off."""

    def __init__(self, file: BufferedReader) -> None:
        self.file = file
        self.whole = True

    def readline(self, limit: int = -1) -> bytes:
        line = self.file.readline(limit)
        self.whole = self.whole and line.endswith(b"\n")
        return line

    def close(self) -> None:
        self.file.close()


class _Response(HTTPResponse):
    """An answer with a whole head.

    `http.client` takes one that breaks off for one that ends. It may then lack the length of the
    body, or half an offset: data would be lost unseen.
    """

    def begin(self) -> None:
        head = _Head(self.fp)
        self.fp = head  # type: ignore[assignment] # only lines are read of it here
        try:
            super().begin()
        finally:
            if self.fp is not None:
                self.fp = head.file
        if not head.whole:
            self.close()
            raise RemoteDisconnected("the answer broke off")


class Transport:
    """Connections to any number of origins; may be used from several threads."""

    def __init__(self, timeout: float, live_timeout: float) -> None:
        self._timeout = timeout
        self._live_timeout = live_timeout
        self._lock = threading.Lock()
        self._idle: dict[str, list[HTTPConnection]] = {}
        self._busy: dict[HTTPConnection, socket.socket] = {}
        """With the socket, which a connection lets go of while its last answer is still read."""
        self._closed = False

    def send(self, request: Request, attempt: int = 0) -> Answer:
        """Send a request and wait for the whole answer."""
        with self._exchange(request) as (connection, response):
            if request.method == "GET" and response.status == 200:
                _check_length(response)
            body = response.read()
            self._keep(request, connection, response)
        return _answer(request, response, body, attempt)

    @contextmanager
    def open(self, request: Request) -> Iterator[tuple[Answer, Iterator[bytes]]]:
        """Send a request and give the answer's body as it comes, whole for anything but 200."""
        with self._exchange(request) as (connection, response):
            body = b"" if response.status == 200 else response.read()
            yield _answer(request, response, body), self._pieces(request, response)
            if response.isclosed():
                self._keep(request, connection, response)

    def close(self) -> None:
        """Close all connections, also those that a thread waits on: its read ends at once."""
        with self._lock:
            self._closed = True
            idle = [connection for kept in self._idle.values() for connection in kept]
            busy = tuple(self._busy.values())
            self._idle.clear()
        for connection in idle:
            connection.close()
        for sock in busy:
            # Of the plain socket, also under TLS: the thread that reads owns the rest. One that has
            # just ended by itself refuses, which is as good.
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    @contextmanager
    def _exchange(self, request: Request) -> Iterator[tuple[HTTPConnection, HTTPResponse]]:
        """Send a request over a connection that is ours until the block ends."""
        connection = self._connect(request)
        try:
            with self._reading(request), closing(self._ask(connection, request)) as response:
                yield connection, response
        finally:
            with self._lock:
                kept = self._busy.pop(connection, None) is None
            if not kept:
                connection.close()

    def _connect(self, request: Request) -> HTTPConnection:
        origin = origin_of(request.url)
        timeout = self._live_timeout if request.live else self._timeout
        while True:
            with self._lock:
                if self._closed:
                    raise ClientClosed(request.url)
                kept = self._idle.get(origin)
                connection = kept.pop() if kept else None
                if connection is not None:
                    self._busy[connection] = connection.sock
            if connection is None:
                return self._dial(request, origin, timeout)
            if not _has_ended(connection):
                connection.sock.settimeout(timeout)
                return connection
            with self._lock:
                self._busy.pop(connection, None)
            connection.close()

    def _dial(self, request: Request, origin: str, timeout: float) -> HTTPConnection:
        parts = urlsplit(request.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._timeout)
        connection.response_class = _Response
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise Unreachable(request.url, origin, _reason(error)) from None
        connection.sock.settimeout(timeout)
        with self._lock:
            if not self._closed:
                self._busy[connection] = connection.sock
                return connection
        connection.close()
        raise ClientClosed(request.url)

    @contextmanager
    def _reading(self, request: Request) -> Iterator[None]:
        try:
            yield
        except (OSError, HTTPException) as error:
            if self._closed:
                raise ClientClosed(request.url) from None
            advice = "Try again." if request.repeatable else _IN_DOUBT
            raise ConnectionLost(
                request.url, origin_of(request.url), _reason(error), advice
            ) from None

    def _ask(self, connection: HTTPConnection, request: Request) -> HTTPResponse:
        try:
            connection.request(
                request.method,
                target_of(request.url),
                request.body or None,
                dict(request.headers),
            )
        except (BrokenPipeError, ConnectionResetError):
            # A server may refuse before it has read the whole body: its answer says why.
            return connection.getresponse()
        return connection.getresponse()

    def _pieces(self, request: Request, response: HTTPResponse) -> Iterator[bytes]:
        with self._reading(request):
            while piece := response.read1(_PIECE_BYTES):
                yield piece
        if self._closed:
            raise ClientClosed(request.url)

    def _keep(self, request: Request, connection: HTTPConnection, response: HTTPResponse) -> None:
        """Keep a connection whose answer was read to its end for the next request."""
        if response.will_close or connection.sock is None:
            return
        with self._lock:
            kept = self._idle.setdefault(origin_of(request.url), [])
            if not self._closed and len(kept) < _MAX_IDLE:
                kept.append(connection)
                self._busy.pop(connection, None)


def _answer(request: Request, response: HTTPResponse, body: bytes, attempt: int = 0) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(request.url, request.method, response.status, headers, body, attempt)


def _check_length(response: HTTPResponse) -> None:
    """Refuse data whose end is only the connection's end: a break would go unseen."""
    if response.length is None and not response.chunked:
        raise HTTPException("the answer does not tell its length")


def _has_ended(connection: HTTPConnection) -> bool:
    """Tell whether the server has closed an idle connection: then it is readable."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _reason(error: OSError | HTTPException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer came in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
