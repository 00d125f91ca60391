"""A connection: an `asyncio.Protocol` that answers the requests of one client in order.

Its state is what it receives, what it sends, and four facts. The request parser keeps the first
(`ReceiveState`: IDLE HEAD BODY DONE EOF), this class the second (`SendState`)::

                 request             from files             sent, or copied
          ┌────▶ IDLE ────▶ HANDLING ───────────▶ FILE ───────────┐
          │       │           │    │  event stream                │
          │       │           │    └───────────▶ EVENTS ──ended──▶┤
          │       │           └──────in memory───────────────────▶┤
          │       │                                               │
          └───────│──────────────────────next─────────────────────┘
                  ▼
               LINGER ──▶ CLOSED ◀── any state, if the connection is lost or aborted

The facts: `queue` has the complete requests that wait, `final` is a problem that is sent after all
responses, `full` means that the client has to receive something before more is written, `draining`
that no request follows those that have begun.

event             guard                          receive       send
----------------  -----------------------------  ------------  -----------------------------------
request complete  IDLE, not full, nothing waits  DONE if last  HANDLING: run the handler
request complete  otherwise                      DONE if last  queue it; at 32, pause reading
problem           receive not DONE, EOF          DONE          `final`, draining, next
client's EOF      LINGER; IDLE and none follows  EOF           CLOSED
client's EOF      otherwise                      EOF           draining
server stops      IDLE and none follows          DONE          CLOSED
server stops      otherwise                                    draining
response          HANDLING, in memory            DONE if last  write it, IDLE, next
response          HANDLING, from files           DONE if last  FILE: `sendfile`
response          HANDLING, event stream         DONE if last  EVENTS: start the feed
file sent         FILE                                         IDLE, next
feed ended        EVENTS                                       write the last chunk, IDLE, next
file failed       FILE, HANDLING                 DONE          CLOSED: abort
full              any                                          check progress
not full          EVENTS                                       resume the feed
not full          IDLE                                         next
deadline          IDLE, receive HEAD or BODY     DONE          `final` = 408, next
deadline          IDLE and none follows          DONE          CLOSED
deadline          full, FILE, LINGER or CLOSED   DONE          CLOSED: abort, if the client receives
                                                               nothing or has received everything
next turn         IDLE                                         next
connection lost   any                            DONE          CLOSED: release everything
*next*            queue, not full                              HANDLING: the first of the queue
*next*            no queue, `final`, not full                  LINGER: write it, end sending
*next*            draining, none follows         DONE          LINGER: end sending
*next*            otherwise                                    stay IDLE

*Next* is asked in IDLE. "None follows" and "last" mean: no queue, no `final`, no input that is not
parsed yet, nothing received of another request. "Nothing waits": no queue, no such input. LINGER
reads on until the client closes, so that it receives the last response even while it is sending;
where the client has sent EOF already, it is left for CLOSED at once.

In one turn of the event loop a connection handles at most 32 requests and parses about 64 KiB. If
there is more, it pauses reading and continues in the next turn, after other connections. Until
then a deadline that concerns what is received is not acted on.
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
from headwater.server.http1.request_parser import ReceiveState, RequestParser
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
_MAX_QUEUE: Final = 32
"""Requests in the queue that pause reading; the last piece that was parsed may have added more."""
_TURN_REQUESTS: Final = 32
_TURN_BYTES: Final = 64 * 1024
"""What a connection may handle and parse in one turn of the event loop."""
_LINGER_SECONDS: Final = 2.0
_INLINE_BYTES: Final = 16 * 1024


class SendState:
    """What is being sent: integers, as `ReceiveState`."""

    IDLE: Final = 0
    HANDLING: Final = 1
    """A handler runs."""
    FILE: Final = 2
    EVENTS: Final = 3
    LINGER: Final = 4
    """The last response is written, and what the client still sends is ignored."""
    CLOSED: Final = 5
    """The transport is closed, or will be once everything is written."""


_TRANSITIONS: Final[tuple[int, ...]] = (
    1 << SendState.HANDLING | 1 << SendState.LINGER | 1 << SendState.CLOSED,
    1 << SendState.IDLE | 1 << SendState.FILE | 1 << SendState.EVENTS | 1 << SendState.CLOSED,
    1 << SendState.IDLE | 1 << SendState.CLOSED,
    1 << SendState.IDLE | 1 << SendState.CLOSED,
    1 << SendState.CLOSED,
    0,
)
"""The states that may follow each state, as bits: every request changes the state twice."""


class Connection:
    """One client; it implements `asyncio.Protocol` without inheriting from it."""

    __slots__ = (
        "_advancing",
        "_draining",
        "_endpoint",
        "_feed",
        "_files",
        "_final",
        "_handler",
        "_parser",
        "_progress",
        "_queue",
        "_reading_paused",
        "_request",
        "_started",
        "_transport",
        "_turn_bytes",
        "_turn_requests",
        "_unsent",
        "chunked",
        "deadline",
        "full",
        "state",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set at once
        self._progress: SendProgress = None  # type: ignore[assignment] # set at once
        self._parser = RequestParser(endpoint, self)
        self.state = SendState.IDLE
        self._queue: deque[Request] = deque()
        self._final: Problem | None = None
        self.full = False
        self._draining = False
        self._advancing = False
        """Whether requests are being handled, or will be in the next turn of the loop."""
        self._turn_requests = 0
        self._turn_bytes = 0
        """What may still be handled and parsed in this turn."""
        self._reading_paused = False
        self._request: Request | None = None
        self._handler: InlineTask | None = None
        self._files: FileSender | None = None
        self._feed: EventFeed | None = None
        self._started = 0.0
        self._unsent: list[Buffer] = []
        self.deadline = TO_BE_SET
        self.chunked = True

    def _enter(self, state: int) -> None:
        assert _TRANSITIONS[self.state] & 1 << state  # noqa: S101 - the table in the module's docstring
        self.state = state

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
        self._release()
        self._parser.close()

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if self._advancing:  # the transport had more to deliver when reading was paused
            parser.feed(data)
            return
        self._advancing = True
        self._turn_requests = _TURN_REQUESTS
        self._turn_bytes = _TURN_BYTES
        parser.feed(data)
        if not parser.pending:
            self._turn_bytes -= len(data)
        if self._queue or self._draining or parser.pending or self._turn_bytes < 0:
            self._advance()
        else:
            self._advancing = False

    def eof_received(self) -> bool:
        # The client may still read: complete requests are answered before the connection closes.
        self._draining = True
        self._parser.end()
        if self.state == SendState.LINGER or (self.state == SendState.IDLE and self._is_last()):
            self._close()
        return self.state != SendState.CLOSED

    def pause_writing(self) -> None:
        self.full = True
        self._start_checking()

    def resume_writing(self) -> None:
        self.full = False
        if self.state == SendState.EVENTS:
            self.deadline = NEVER
            if self._feed is not None:
                self._feed.resume()
        elif self.state == SendState.HANDLING:
            self.deadline = NEVER
        elif self.state == SendState.IDLE:
            self.deadline = TO_BE_SET
            self._next()

    # Callbacks of the request parser

    def accept(self, head: Head, body: bytes, hold: Hold | None) -> None:
        """Handle a complete request, or queue it after those before it."""
        if not head.keep_alive:
            self._draining = True
            self._parser.stop()
        if (
            self.state == SendState.IDLE
            and not self.full
            and not self._queue
            and not self._parser.pending
            and self._turn_requests > 0
        ):
            self._handle(Request(head, body, hold))
        else:
            self._queue.append(Request(head, body, hold))

    def refuse(self, problem: Problem) -> None:
        """Send a problem after the responses to earlier requests, and close."""
        self._final = problem
        self._draining = True
        self._parser.stop()
        self._next()

    def expect_more(self) -> None:
        """Start the time limit of a request that has arrived in part."""
        if self.state == SendState.IDLE and not self.full:
            self.deadline = TO_BE_SET

    def send_continue(self) -> None:
        """Send `100 Continue`, unless a response has to be sent first."""
        if self.state == SendState.IDLE and not self._queue:
            self.write(_CONTINUE)

    # Which request is handled, and when the connection ends

    def _next(self) -> None:
        """Advance in a callback of the event loop, unless that is happening already."""
        if self._advancing:
            return
        self._advancing = True
        self._turn_requests = _TURN_REQUESTS
        self._turn_bytes = _TURN_BYTES
        self._advance()

    def _advance(self) -> None:
        """Handle requests and parse input while there is room, then do what the table says."""
        queue = self._queue
        parser = self._parser
        while True:
            is_due = bool(queue) and self.state == SendState.IDLE and not self.full
            if not is_due and (not parser.pending or len(queue) >= _MAX_QUEUE):
                break
            if self._turn_requests <= 0 or self._turn_bytes <= 0:
                self._continue_in_next_turn()
                return
            if is_due:
                self._handle(queue.popleft())
            else:
                self._turn_bytes -= parser.parse_piece()
        if self._turn_bytes < 0 and parser.state < ReceiveState.DONE:
            self._continue_in_next_turn()
            return
        self._advancing = False
        if len(queue) >= _MAX_QUEUE:
            self._pause_reading()
        else:
            self._resume_reading()
        if self.state != SendState.IDLE or self.full:
            return
        if self._final is not None:
            problem, self._final = self._final, None
            if self._endpoint.log_access:
                access_log.debug("refused", extra={"status": problem.status, "code": problem.code})
            self._write(problem_response(problem), _CLOSES)
            self._linger()
        elif self._draining and self._is_last():
            self._linger()

    def _continue_in_next_turn(self) -> None:
        self._pause_reading()
        self._endpoint.loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._advancing = False
        self._next()

    def _is_last(self) -> bool:
        """Return whether no request follows the current one, if the connection is draining."""
        parser = self._parser
        return (
            not self._queue
            and self._final is None
            and not parser.pending
            and not parser.is_receiving()
        )

    def _pause_reading(self) -> None:
        # After DONE there is no input to keep out.
        if (
            not self._reading_paused
            and self._parser.state < ReceiveState.DONE
            and not self._transport.is_closing()
        ):
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    # Responses

    def _handle(self, request: Request) -> None:
        self._enter(SendState.HANDLING)
        self._turn_requests -= 1
        self._request = request
        self.deadline = NEVER
        if self._endpoint.log_access:
            self._started = self._endpoint.loop.time()
        call = start(self._endpoint.handle(request), self._answered)
        if call is not None:  # otherwise it has answered already
            self._handler = call

    def _answered(self, response: Response | EventStream | None, error: Exception | None) -> None:
        request = self._request
        if request is None:  # the connection was lost while the handler ran
            return
        self._handler = None
        if error is not None or response is None:
            log.error("request failed", exc_info=error, extra={"path": request.head.url_path})
            response = problem_response(INTERNAL)
        if self._endpoint.log_access:
            self._log(request, response)
        if isinstance(response, EventStream):
            self._stream(response, request.head)
            return
        head = request.head
        end = self._end_of_head(_KEEPS_ALIVE if head.chunked else _KEEPS_ALIVE_1_0)
        if head.method == "HEAD" or not response.body:
            self.write(self._head(response, end))
        elif not response.from_files:
            self._write(response, end)
        elif not self._send_files(response, end):
            return
        self._finish()

    def _end_of_head(self, keeps_alive: bytes) -> bytes:
        """Return the end of the head of a response, after which nothing follows the last one."""
        if self._draining and self._is_last():
            self._parser.stop()
            return _CLOSES
        return keeps_alive

    def _finish(self) -> None:
        """Complete a response, and continue with the next request or the end."""
        self._enter(SendState.IDLE)
        if self._request is not None:
            self._request.release()
            self._request = None
        self.deadline = TO_BE_SET
        self._next()

    def _write(self, response: Response, end: bytes) -> None:
        body = in_memory(response.body)
        self.write(self._head(response, end))
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

    def _send_files(self, response: Response, end: bytes) -> bool:
        """Send a response from files; return whether it was read and written instead."""
        self.flush()
        sender = self._file_sender()
        if sender is None:
            try:
                self._write(response, end)
            except OSError as error:
                self._fail(error)
                return False
            return True
        self._enter(SendState.FILE)
        self._files = sender
        sender.start([self._head(response, end), *response.body], self._files_sent)
        if sender.left:
            self._start_checking()
        return False

    def _file_sender(self) -> FileSender | None:
        """Return a sender that bypasses the transport, if no written bytes are waiting there."""
        if self._transport.get_write_buffer_size():
            return None
        try:
            return FileSender(self._endpoint.loop, self._transport)
        except OSError:  # no descriptor is left
            return None

    def _files_sent(self, error: OSError | None) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None
        if error is None:
            self._finish()
        else:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Abort the connection: the response from files can't be completed."""
        if isinstance(error, Truncated):
            log.error("a segment file was truncated while it was sent, connection aborted")
        elif not isinstance(error, ConnectionError | TimeoutError):
            log.error("could not send a file, connection aborted", extra={"error": error})
        self.abort()

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
        lines.append(self._end_of_head(_KEEPS_ALIVE))
        self.write(b"".join(lines))
        self._enter(SendState.EVENTS)
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
        self._finish()

    # Closing

    def close_when_idle(self) -> None:
        """Close now, or once every complete request is answered."""
        self._draining = True
        if self.state == SendState.IDLE and self._is_last():
            self._close()

    def _linger(self) -> None:
        """Close so that the client receives the last response even while it is still sending."""
        transport = self._transport
        if self._parser.state == ReceiveState.EOF or not transport.can_write_eof():
            self._close()
            return
        self._end(SendState.LINGER)
        if not transport.is_closing():  # as after a failed write
            transport.write_eof()

    def _close(self) -> None:
        """Close once everything is written."""
        self._end(SendState.CLOSED)
        self._transport.close()

    def _end(self, state: int) -> None:
        self._enter(state)
        self._parser.stop()
        self._resume_reading()
        self.flush()
        self._start_checking()

    def abort(self) -> None:
        """Close at once, without finishing requests in progress."""
        self._release()
        self._transport.abort()

    def _release(self) -> None:
        """Release everything that a connection holds until its last response is written."""
        if self.state != SendState.CLOSED:
            self._enter(SendState.CLOSED)
        self._parser.stop()
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

    def _drop_queue(self) -> None:
        """Drop what would be sent after the current response."""
        self._final = None
        for request in self._queue:
            request.release()
        self._queue.clear()

    # Time limits

    def allowance(self) -> float:
        """Return how many seconds the current state of the connection may last."""
        settings = self._endpoint.settings
        if self._is_checked():
            return self._check_seconds()
        if self._parser.state == ReceiveState.HEAD:
            return settings.header_timeout
        if self._parser.state == ReceiveState.BODY:
            return settings.body_timeout
        return settings.idle_timeout

    def timed_out(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self._is_checked():
            self._check_progress(now)
        elif self._advancing:
            pass  # the rest of what has arrived is handled in the next turn, and checked after that
        elif self._parser.is_receiving():
            self.refuse(TOO_SLOW)
        elif self._is_last():
            self._close()

    def _is_checked(self) -> bool:
        """Return whether the client has to receive something for the connection to stay open."""
        return self.full or self.state in (SendState.FILE, SendState.LINGER, SendState.CLOSED)

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
            self.abort()
        elif stalled >= self._endpoint.settings.write_timeout:
            peer = self._transport.get_extra_info("peername")
            log.warning("dropped a slow client", extra={"peer": peer})
            self.abort()
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
