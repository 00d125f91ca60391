"""A connection: an `asyncio.Protocol` that answers the requests of one client in order.

Pipelined requests wait in a short queue. The application runs inline, without a task, and has
usually answered before `data_received` returns.

A connection ends by *draining*. No more input is accepted: the client has sent everything (EOF or
`Connection: close`), its input can't be parsed, or the server stops. Complete requests are still
answered, the last response has `Connection: close`, and the connection closes as soon as the
client has received it.
"""

import asyncio
import logging
import struct
import sys
from collections import deque
from http import HTTPStatus
from typing import Final

from headwater.protocol.byte_requests import Buffer
from headwater.server.admission import Hold
from headwater.server.handlers.live import EventFeed, EventStream
from headwater.server.http1.endpoint import NEVER, TO_BE_SET, Endpoint, access_log
from headwater.server.http1.file_sender import FileSender
from headwater.server.http1.inline_tasks import InlineTask, start
from headwater.server.http1.request_parser import RequestParser
from headwater.server.messages import Head, Request, Response
from headwater.server.problems import (
    INTERNAL,
    TOO_SLOW,
    Problem,
    problem_of,
    problem_response,
)
from headwater.storage.file_ranges import Truncated, in_memory

log: Final = logging.getLogger("headwater.http")

_STATUS_LINE: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_KEEPS_ALIVE: Final = b"\r\n"
_KEEPS_ALIVE_1_0: Final = b"connection: keep-alive\r\n\r\n"
_CLOSES: Final = b"connection: close\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_PIPELINED: Final = 32
_LINGER_SECONDS: Final = 2.0
_INLINE_BYTES: Final = 16 * 1024


class Connection:
    """One client; it implements `asyncio.Protocol` without inheriting from it."""

    __slots__ = (
        "_draining",
        "_ended",
        "_endpoint",
        "_eof",
        "_feed",
        "_files",
        "_handler",
        "_parser",
        "_problem",
        "_progress",
        "_queue",
        "_reading_paused",
        "_request",
        "_started",
        "_starting",
        "_transport",
        "_unsent",
        "chunked",
        "deadline",
        "full",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set at once
        self._progress: SendProgress = None  # type: ignore[assignment] # set at once
        self._parser = RequestParser(endpoint, self)
        self._queue: deque[Request] = deque()
        self._request: Request | None = None
        self._handler: InlineTask | None = None
        self._feed: EventFeed | None = None
        self._problem: Problem | None = None
        """The problem that is sent after the responses to all complete requests."""
        self._starting = False
        self._draining = False
        self._ended = False
        """Whether the last response was written."""
        self._eof = False
        self._reading_paused = False
        self._started = 0.0
        self._unsent: list[Buffer] = []
        self._files: FileSender | None = None
        self.deadline = TO_BE_SET
        self.full = False
        self.chunked = True

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        endpoint = self._endpoint
        self._transport = transport  # type: ignore[assignment] # TCP gives a full transport
        self._progress = SendProgress(self._transport)
        self._transport.set_write_buffer_limits(high=endpoint.settings.write_buffer_bytes)
        endpoint.connections.add(self)
        overload = endpoint.admission.connect()
        if endpoint.stopping:
            self._close()
        elif overload is not None:
            self.refuse(problem_of(overload))

    def connection_lost(self, _: Exception | None) -> None:
        self._endpoint.connections.discard(self)
        self._endpoint.admission.disconnect()
        self._parser.close()
        self._drop_queue()
        self._unsent = []
        if self._request is not None:
            self._request.release()
            self._request = None
        if self._files is not None:
            self._files.close()
            self._files = None
        if self._feed is not None:
            self._feed.stop()
            self._feed = None
        if self._handler is not None:
            self._handler.cancel()
            self._handler = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)

    def eof_received(self) -> bool:
        # The client may still read: complete requests are answered before the connection closes.
        self._eof = self._draining = True
        if not self._ended and self._request is None and self._is_last():
            self._close()
        return not self._ended

    def pause_writing(self) -> None:
        self.full = True
        self._start_checking()

    def resume_writing(self) -> None:
        self.full = False
        if self._feed is not None:
            self.deadline = NEVER
            self._feed.resume()
        elif self._request is not None:
            self.deadline = NEVER
        else:
            self._next()

    # Callbacks of the request parser

    def accept(self, head: Head, body: bytes, hold: Hold | None) -> None:
        """Handle a complete request, or queue it after those before it."""
        if not head.keep_alive:
            self._draining = True
            self._parser.stop()
        if self._request is None and not self.full:
            self._start(Request(head, body, hold))
            return
        self._queue.append(Request(head, body, hold))
        if len(self._queue) >= _MAX_PIPELINED:
            self._pause_reading()

    def refuse(self, problem: Problem) -> None:
        """Send a problem after the responses to earlier requests, and close."""
        if self._ended or self._problem is not None:
            return
        self._problem = problem
        self._draining = True
        self._parser.stop()
        self._next()

    def expect_more(self) -> None:
        """Start the time limit of a request that has arrived in part."""
        if self._request is None and not self.full:
            self.deadline = TO_BE_SET

    def send_continue(self) -> None:
        """Send `100 Continue`, unless a response has to be sent first."""
        if self._request is None:
            self.write(_CONTINUE)

    # Responses

    def _start(self, request: Request) -> None:
        self._request = request
        self.deadline = NEVER
        if self._endpoint.log_access:
            self._started = self._endpoint.loop.time()
        call = start(self._endpoint.handle(request), self._answered)
        if call is not None:  # otherwise it has answered already
            self._handler = call

    def _answered(self, response: Response | EventStream | None, error: Exception | None) -> None:
        self._handler = None
        request = self._request
        if request is None:  # the connection was lost while the handler ran
            return
        if error is not None or response is None:
            log.error("request failed", exc_info=error, extra={"path": request.head.url_path})
            response = problem_response(INTERNAL)
        if self._endpoint.log_access:
            self._log(request, response)
        if isinstance(response, EventStream):
            self._stream(response, request.head)
            return
        head = request.head
        last = self._draining and self._is_last()
        end = _CLOSES if last else _KEEPS_ALIVE if head.chunked else _KEEPS_ALIVE_1_0
        if response.body and response.from_files and head.method != "HEAD":
            if last:
                self._parser.stop()  # nothing may follow the last response
            self._write_files(response, end)
            return
        self._write(response, end, head_only=head.method == "HEAD")
        self._finish(last=last)

    def _is_last(self) -> bool:
        """Return whether no request follows the current one, if the connection is draining."""
        return (
            not self._queue and self._problem is None and (self._eof or not self._parser.receiving)
        )

    def _write(self, response: Response, end: bytes, *, head_only: bool = False) -> None:
        body = in_memory(response.body) if response.body and not head_only else []
        self.write(self._head(response, end))
        if body:
            self._unsent += body
            if sum(map(len, body)) > _INLINE_BYTES:
                self.flush()  # so that the transport can report that it is full

    def _head(self, response: Response, end: bytes) -> bytes:
        return b"%b%b%b%b" % (
            _STATUS_LINE[response.status],
            self._endpoint.common,
            response.head,
            end,
        )

    def _write_files(self, response: Response, end: bytes) -> None:
        """Send a response from files; its request is in progress until the last byte is sent."""
        self.flush()
        sender = self._file_sender()
        if sender is None:
            try:
                self._write(response, end)
            except OSError as error:
                self._abort_response(error)
            else:
                self._finish(last=self._draining and self._is_last())
            return
        self._files = sender
        sender.start([self._head(response, end), *response.body], self._files_sent)
        if sender.left:
            self.full = True
            self._start_checking()

    def _file_sender(self) -> FileSender | None:
        """Return a sender that bypasses the transport, if no written bytes are waiting there."""
        if self._transport.get_write_buffer_size():
            return None
        try:
            return FileSender(self._endpoint.loop, self._transport)
        except OSError:  # no descriptor is left
            return None

    def _files_sent(self, error: OSError | None) -> None:
        self.full = False
        if self._files is not None:
            self._files.close()
            self._files = None
        if error is None:
            self._finish(last=self._draining and self._is_last())
        else:
            self._abort_response(error)

    def _abort_response(self, error: OSError) -> None:
        """Abort the connection: its response can't be completed."""
        if isinstance(error, Truncated):
            log.error("a segment file was truncated while it was sent, connection aborted")
        elif not isinstance(error, ConnectionError | TimeoutError):
            log.error("could not send a file, connection aborted", extra={"error": error})
        self._transport.abort()

    def _finish(self, *, last: bool) -> None:
        """Complete a request: close, or continue with the next one."""
        if self._request is not None:
            self._request.release()
            self._request = None
        if last:
            self._hang_up()
            return
        self.deadline = TO_BE_SET
        if self._queue or self._reading_paused or self._draining:
            self._next()

    def _next(self) -> None:
        """Handle queued requests while their responses can be sent; close after the last."""
        if self._starting:
            return
        self._starting = True  # a request that is answered at once calls this again
        try:
            while self._queue and self._request is None and not self.full:
                self._start(self._queue.popleft())
        finally:
            self._starting = False
        if len(self._queue) < _MAX_PIPELINED:
            self._resume_reading()
        if self._ended or self._request is not None or self.full:
            return
        if self._problem is not None:
            if self._endpoint.log_access:
                access_log.debug(
                    "refused", extra={"status": self._problem.status, "code": self._problem.code}
                )
            self._write(problem_response(self._problem), _CLOSES)
            self._hang_up()
        elif self._draining and self._is_last():
            self._hang_up()
        else:
            self.deadline = TO_BE_SET

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def _drop_queue(self) -> None:
        for request in self._queue:
            request.release()
        self._queue.clear()

    # SSE: this connection is the sink

    def _stream(self, response: EventStream, head: Head) -> None:
        lines = [_STATUS_LINE[200], self._endpoint.common]
        lines += [b"%b: %b\r\n" % item for item in response.headers]
        self.chunked = head.chunked
        if self.chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        else:  # HTTP/1.0: closing is what ends the response, so nothing can follow
            self._draining = True
            self._parser.stop()
            self._drop_queue()
        lines.append(_CLOSES if self._draining and self._is_last() else _KEEPS_ALIVE)
        self.write(b"".join(lines))
        self._feed = response.feed
        response.feed.start(self)

    def write(self, data: bytes) -> None:
        """Queue bytes for the end of this turn: the head of a response, or a frame of events."""
        if not self._unsent:
            self._endpoint.send_soon(self)
        self._unsent.append(data)
        if len(data) > _INLINE_BYTES:
            self.flush()  # so that the transport can report that it is full

    def flush(self) -> None:
        """Write what is queued to the transport."""
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
        self._feed = None
        if self.chunked:
            self.write(b"0\r\n\r\n")
        self._finish(last=self._draining and self._is_last())

    # Closing

    def close_when_idle(self) -> None:
        """Close now, or once every complete request is answered."""
        self._draining = True
        if not self._ended and self._request is None and self._is_last():
            self._close()

    def _hang_up(self) -> None:
        """Close so that the client receives the last response even while it is still sending."""
        if self._eof or not self._transport.can_write_eof():
            self._close()
            return
        self._end()
        if not self._transport.is_closing():  # as after a failed write
            self._transport.write_eof()

    def _close(self) -> None:
        """Close once everything is written."""
        self._end()
        self._transport.close()

    def _end(self) -> None:
        self._ended = True
        self._parser.stop()
        self._resume_reading()
        self.flush()
        self._start_checking()

    def abort(self) -> None:
        """Close at once, without finishing requests in progress."""
        self._transport.abort()

    # Time limits

    def allowance(self) -> float:
        """Return how many seconds the current state of the connection may last."""
        settings = self._endpoint.settings
        if self.full:
            return self._check_seconds()
        if self._parser.in_head:
            return settings.header_timeout
        return settings.body_timeout if self._parser.receiving else settings.idle_timeout

    def timed_out(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self.full or self._ended:
            self._check_progress(now)
        elif self._parser.receiving:
            self.refuse(TOO_SLOW)
        else:
            self._close()

    def _start_checking(self) -> None:
        """Start to check whether the client receives what was written."""
        now = self._endpoint.loop.time()
        self._progress.start(now, self._unsent_file_bytes())
        self.deadline = now + self._check_seconds()

    def _check_seconds(self) -> float:
        return min(self._endpoint.settings.write_timeout, _LINGER_SECONDS)

    def _unsent_file_bytes(self) -> int:
        return 0 if self._files is None else self._files.left

    def _check_progress(self, now: float) -> None:
        stalled = self._progress.stalled(now, self._unsent_file_bytes())
        if stalled and not self._progress.pending:
            # The client has received everything, and had time to see the end.
            self._transport.abort()
        elif stalled >= self._endpoint.settings.write_timeout:
            peer = self._transport.get_extra_info("peername")
            log.warning("dropped a slow client", extra={"peer": peer})
            self._transport.abort()
        else:
            self.deadline = now + self._check_seconds()

    def _log(self, request: Request, response: Response | EventStream) -> None:
        access_log.debug(
            "request",
            extra={
                "method": request.head.method,
                "path": request.head.url_path,
                "status": response.status,
                "bytes_in": len(request.body),
                "bytes_out": response.length if isinstance(response, Response) else 0,
                "ms": round((self._endpoint.loop.time() - self._started) * 1000, 2),
            },
        )


# Slow clients
#
# The transport knows which bytes the system has not accepted. The socket buffers megabytes more,
# and becomes writable only once a third of its buffer is free: a slow reader would seem to have
# stalled for minutes. Linux reports the bytes in the socket as well.

if sys.platform == "linux":
    from fcntl import ioctl
    from termios import TIOCOUTQ

    def _unacknowledged(transport: asyncio.Transport) -> int:
        sock = transport.get_extra_info("socket")
        try:
            count: int = struct.unpack("i", ioctl(sock.fileno(), TIOCOUTQ, bytes(4)))[0]
        except (AttributeError, OSError):  # no socket, not of this kind, or closed already
            return 0
        return count
else:

    def _unacknowledged(_: asyncio.Transport) -> int:
        return 0


class SendProgress:
    """The bytes on their way to one client, checked from time to time."""

    __slots__ = ("_moved_at", "_transport", "pending")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._moved_at = 0.0
        self.pending = 0
        """Bytes that were on their way at the last check."""

    def start(self, now: float, more: int = 0) -> None:
        """Start to check; `more` bytes bypass the transport."""
        self.pending = self._count() + more
        self._moved_at = now

    def stalled(self, now: float, more: int = 0) -> float:
        """Check again; return for how many seconds the client has received nothing."""
        pending = self._count() + more
        if pending < self.pending:
            self._moved_at = now
        self.pending = pending
        return now - self._moved_at

    def _count(self) -> int:
        return self._transport.get_write_buffer_size() + _unacknowledged(self._transport)
