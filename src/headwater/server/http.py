"""The wire: HTTP/1.1 over an `asyncio.Protocol`, parsed by httptools.

One `Connection` parses requests as they arrive and answers them in order; requests that a client
pipelines wait in a short queue. The application runs in place, without a task, and most of the time
has answered before `data_received` returns.

Time limits are deadlines that a regular sweep sets and looks at, not timers: a request that is
answered at once never touches the clock.
"""

import asyncio
import logging
from collections import deque
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

import httptools

from headwater.protocol.framing import Buffer
from headwater.server.app import Application
from headwater.server.eager import Eager, start
from headwater.server.known_heads import KnownHeads
from headwater.server.live import EventStream, Subscriber
from headwater.server.messages import Head, Request, Response
from headwater.server.problems import (
    EXPECTATION_FAILED,
    HEADERS_TOO_LARGE,
    INTERNAL,
    MALFORMED,
    TOO_LARGE,
    TOO_SLOW,
    Overload,
    Problem,
    problem_of,
    problem_response,
)

log: Final = logging.getLogger("headwater.http")
access_log: Final = logging.getLogger("headwater.access")

_STATUS_LINE: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_MAX_PIPELINED: Final = 32
_LINGER_SECONDS: Final = 2.0
_INLINE_BYTES: Final = 16 * 1024
_MAX_LENGTH_DIGITS: Final = 18
_NEVER: Final = float("inf")
_TO_BE_SET: Final = 0.0
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Wire:
    """What all connections of one listening server share."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.settings = app.settings
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.heads = KnownHeads()
        self.buffered = 0
        self._unsent: list[Connection] = []
        self.stopping = False
        self.log_access = access_log.isEnabledFor(logging.DEBUG)
        self._fixed = b"".join(b"%b: %b\r\n" % item for item in app.common_headers)
        self.common = b""
        self.refresh_date()

    def refresh_date(self) -> None:
        """Write the header lines that all responses of this second share."""
        self.common = b"date: %b\r\n%b" % (formatdate(usegmt=True).encode(), self._fixed)

    def send_soon(self, connection: "Connection") -> None:
        """Have a connection's answers sent at the end of this turn of the loop.

        All requests that arrived together are answered first, then all answers go out together:
        clients on the same machine are woken once instead of once for each.
        """
        if not self._unsent:
            self.loop.call_soon(self._send_all)
        self._unsent.append(connection)

    def _send_all(self) -> None:
        unsent = self._unsent
        self._unsent = []
        for connection in unsent:
            connection.flush()

    def sweep(self) -> None:
        """Set the deadlines of what began since the last sweep, end what has passed its own."""
        self.refresh_date()
        now = self.loop.time()
        for connection in tuple(self.connections):
            if connection.deadline == _TO_BE_SET:
                connection.deadline = now + connection.allowance()
            elif connection.deadline <= now:
                connection.timed_out()

    def stop(self) -> None:
        """Close idle connections now, the others once they have answered."""
        self.stopping = True
        self.app.drain()
        for connection in tuple(self.connections):
            connection.close_when_idle()


class Connection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_call",
        "_close_after",
        "_completed",
        "_discarding",
        "_eof",
        "_head",
        "_head_bytes",
        "_headers",
        "_held",
        "_in_head",
        "_parser",
        "_queue",
        "_reading_paused",
        "_receiving",
        "_request",
        "_started",
        "_subscriber",
        "_transport",
        "_unsent",
        "_url",
        "_wire",
        "chunked",
        "deadline",
        "full",
    )

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set at once
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = False
        self._receiving = False
        self._queue: deque[tuple[Request, int]] = deque()
        """Requests with how many bytes of body each holds of the common limit."""
        self._head: Head | None = None
        self._completed = 0
        self._held = 0
        self._request: Request | None = None
        self._call: Eager[Response | EventStream] | None = None
        self._subscriber: Subscriber | None = None
        self._close_after = False
        self._discarding = False
        self._eof = False
        self._reading_paused = False
        self._started = 0.0
        self._unsent: list[Buffer] = []
        self.deadline = _TO_BE_SET
        self.full = False
        self.chunked = True

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = self._wire
        self._transport = transport  # type: ignore[assignment] # TCP gives a full transport
        self._transport.set_write_buffer_limits(high=wire.settings.write_buffer_bytes)
        wire.connections.add(self)
        if len(wire.connections) > wire.settings.max_connections:
            detail = "Too many connections are open; try again, or reuse a connection."
            self._refuse(problem_of(Overload("too-many-connections", detail)))

    def connection_lost(self, _: Exception | None) -> None:
        self._wire.connections.discard(self)
        self._wire.buffered -= self._body_bytes + self._held
        self._wire.buffered -= sum(held for _, held in self._queue)
        self._queue.clear()
        self._unsent = []
        self._request = None
        if self._subscriber is not None:
            self._subscriber.stop()
            self._subscriber = None
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._parser = None

    def eof_received(self) -> bool:
        # The client may still read: what is under way is answered, then the connection closes.
        self._eof = True
        self.flush()
        return self._busy or bool(self._queue) or self._transport.get_write_buffer_size() > 0

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        end = 0
        if not self._receiving:
            # A client that keeps its connection sends the same head again and again: one that was
            # parsed before, followed by just its body, needs no parsing.
            end = data.find(b"\r\n\r\n")
            if end > 0:
                end += 4
                known = self._wire.heads.find(data[:end], len(data) - end)
                if known is not None:
                    self._wire.buffered += len(data) - end
                    self._accept(known, data[end:])
                    return
        self._completed = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Upgrades (such as h2c) are not taken; the request itself is answered as it is.
            self._close_after = True
        except httptools.HttpParserCallbackError:
            log.exception("a connection failed")
            self._transport.abort()
        except httptools.HttpParserError:
            self._refuse(MALFORMED)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._wire.settings.max_header_bytes:
                self._refuse(HEADERS_TOO_LARGE)
        elif end > 0 and self._completed == 1 and not self._receiving and self._head is not None:
            self._wire.heads.keep(data[:end], len(data) - end, self._head)

    def pause_writing(self) -> None:
        self.full = True
        self.deadline = self._wire.loop.time() + self._wire.settings.write_timeout

    def resume_writing(self) -> None:
        self.full = False
        if self._subscriber is not None:
            self.deadline = _NEVER
            self._subscriber.resume()
        elif self._call is not None:
            self.deadline = _NEVER
        else:
            self._next()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._head_bytes = 0
        self._in_head = self._receiving = True
        if self._request is None:
            self.deadline = _TO_BE_SET

    def on_url(self, url: bytes) -> None:
        self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        headers = self._headers
        if name in headers:
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._discarding:
            return
        settings = self._wire.settings
        headers = self._headers
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            self._refuse(MALFORMED)
        elif len(length) > _MAX_LENGTH_DIGITS or int(length) > settings.max_body_bytes:
            self._refuse(TOO_LARGE)
        elif self._wire.buffered + int(length) > settings.max_buffered_bytes:
            self._refuse_buffering()
        elif b"expect" in headers:
            if headers[b"expect"].lower() != b"100-continue":
                self._refuse(EXPECTATION_FAILED)
            elif not self._busy:
                self.write(_CONTINUE)
        if self._request is None and not self._discarding:
            self.deadline = _TO_BE_SET

    def on_body(self, data: bytes) -> None:
        if self._discarding:
            return
        self._body.append(data)
        self._body_bytes += len(data)
        self._wire.buffered += len(data)
        if self._body_bytes > self._wire.settings.max_body_bytes:
            self._refuse(TOO_LARGE)
        elif self._wire.buffered > self._wire.settings.max_buffered_bytes:
            self._refuse_buffering()

    def on_message_complete(self) -> None:
        self._receiving = False
        self._completed += 1
        if self._discarding:
            return
        body = self._body
        data = b"" if not body else body[0] if len(body) == 1 else b"".join(body)
        if body:
            self._body = []
            self._body_bytes = 0
        path, _, query = self._url.decode("latin-1").partition("?")
        parser = self._parser
        self._head = Head(
            parser.get_method().decode("latin-1"),
            path,
            query,
            self._headers,
            keep_alive=parser.should_keep_alive(),
            chunked=parser.get_http_version() != "1.0",
        )
        self._accept(self._head, data)

    def _accept(self, head: Head, body: bytes) -> None:
        """Answer a request that has arrived whole, or queue it behind those before it."""
        if self._request is None and not self.full:
            self._start(Request(head, body), len(body))
            return
        self._queue.append((Request(head, body), len(body)))
        if len(self._queue) >= _MAX_PIPELINED and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    # Answering

    @property
    def _busy(self) -> bool:
        return self._request is not None

    def _start(self, request: Request, held: int) -> None:
        self._request = request
        self._held = held
        if not request.head.keep_alive or self._wire.stopping or (self._eof and not self._queue):
            self._close_after = True
        self.deadline = _NEVER
        if self._wire.log_access:
            self._started = self._wire.loop.time()
        call = start(self._wire.app.handle(request), self._answered)
        if call is not None:  # otherwise it is answered, and the next one may be under way
            self._call = call

    def _answered(self, response: Response | EventStream | None, error: Exception | None) -> None:
        self._call = None
        request = self._request
        if request is None:  # the connection was lost while the call ran
            return
        if error is not None or response is None:
            log.error("request failed path=%s", request.head.url_path, exc_info=error)
            response = problem_response(INTERNAL)
        if self._wire.log_access:
            self._log(request, response)
        if isinstance(response, EventStream):
            self._stream(response, request.head)
            return
        self._write(response, head_only=request.head.method == "HEAD")
        self._finish()

    def _write(self, response: Response, *, head_only: bool = False) -> None:
        head = b"%b%b%b%b" % (
            _STATUS_LINE[response.status],
            self._wire.common,
            response.head,
            b"connection: close\r\n\r\n" if self._close_after else b"\r\n",
        )
        body = response.body
        self.write(head)
        if body and not head_only:
            self._unsent += body

    def _finish(self) -> None:
        """One request is answered: go on with the next, or close."""
        self._wire.buffered -= self._held
        self._held = 0
        self._request = None
        if self._close_after:
            self._linger()
            return
        self.deadline = _TO_BE_SET
        if self._queue or self._reading_paused:
            self._next()

    def _next(self) -> None:
        while self._queue and not self._busy and not self.full and not self._close_after:
            self._start(*self._queue.popleft())
        if self._reading_paused and len(self._queue) < _MAX_PIPELINED:
            self._reading_paused = False
            self._transport.resume_reading()
        if not self._busy and not self.full:
            self.deadline = _TO_BE_SET

    def _linger(self) -> None:
        """Close so that the client gets the answer even while it still sends."""
        self._discarding = True
        self._release_body()
        transport = self._transport
        self.flush()
        if self._eof or not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        self.deadline = self._wire.loop.time() + _LINGER_SECONDS

    # SSE: this connection is the sink

    def _stream(self, response: EventStream, head: Head) -> None:
        lines = [_STATUS_LINE[200], self._wire.common]
        lines += [b"%b: %b\r\n" % item for item in response.headers]
        self.chunked = head.chunked
        if self.chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self._close_after = True
        if self._close_after:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self.write(b"".join(lines))
        self._subscriber = response.subscriber
        response.subscriber.start(self)

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn: an answer's head, or a frame of the subscriber's."""
        if not self._unsent:
            self._wire.send_soon(self)
        self._unsent.append(data)
        if len(data) > _INLINE_BYTES:
            self.flush()  # so that the transport can say when it is full

    def flush(self) -> None:
        """Hand what is to be sent to the transport."""
        unsent = self._unsent
        if not unsent:
            return
        self._unsent = []
        if len(unsent) == 1:
            self._transport.write(unsent[0])
        elif sum(map(len, unsent)) <= _INLINE_BYTES:
            self._transport.write(b"".join(unsent))
        else:
            self._transport.writelines(unsent)

    def end(self) -> None:
        """End the event stream after what was written."""
        self._subscriber = None
        if self.chunked:
            self.write(b"0\r\n\r\n")
        self._finish()

    # Ending

    def close_when_idle(self) -> None:
        """Close now, or once what is under way is answered."""
        self._close_after = True
        if not self._busy and not self._receiving and not self._discarding:
            self.flush()
            self._transport.close()

    def allowance(self) -> float:
        """Say how many seconds the present state of the connection may last."""
        settings = self._wire.settings
        if self._in_head:
            return settings.header_timeout
        return settings.body_timeout if self._receiving else settings.idle_timeout

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._transport.abort()

    def timed_out(self) -> None:
        """Act on a deadline that has passed."""
        if self.full:
            peer = self._transport.get_extra_info("peername")
            log.warning("dropped a client that does not read peer=%s", peer)
            self._transport.abort()
        elif self._discarding:
            self._transport.abort()
        elif self._receiving:
            self._refuse(TOO_SLOW)
        else:
            self._transport.close()

    def _refuse_buffering(self) -> None:
        detail = "Too many request bodies are in memory; send this one again."
        self._refuse(problem_of(Overload("too-much-buffered", detail)))

    def _refuse(self, problem: Problem) -> None:
        """Answer a request that never reaches the application, and close."""
        if self._discarding:
            return
        self._close_after = True
        if self._busy:
            # Requests are answered in order: the one under way goes first, then we close.
            self._discarding = True
            return
        if self._wire.log_access:
            access_log.debug("refused status=%d code=%s", problem.status, problem.code)
        self._write(problem_response(problem))
        self._linger()

    def _release_body(self) -> None:
        self._wire.buffered -= self._body_bytes
        self._body = []
        self._body_bytes = 0

    def _log(self, request: Request, response: Response | EventStream) -> None:
        access_log.debug(
            "request method=%s path=%s status=%d bytes_in=%d bytes_out=%d ms=%.2f",
            request.head.method,
            request.head.url_path,
            response.status,
            len(request.body),
            response.length if isinstance(response, Response) else 0,
            (self._wire.loop.time() - self._started) * 1000,
        )
