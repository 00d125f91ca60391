"""A connection: an `asyncio.Protocol` that answers the requests of one client, in their order.

Requests that a client pipelines wait in a short queue. The application runs in place, without a
task, and most of the time has answered before `data_received` returns.

A connection ends in one way: it *drains*. Nothing more is taken in, because the client has sent all
(EOF, `Connection: close`), because it sent what can't be understood, or because the server stops.
What has arrived whole by then is answered, the last answer says `Connection: close`, and then the
connection closes as soon as the client has taken what was sent.
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
from headwater.server.handlers.live import EventStream, Feed
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
_GOES_ON: Final = b"\r\n"
_GOES_ON_1_0: Final = b"connection: keep-alive\r\n\r\n"
_CLOSES: Final = b"connection: close\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_PIPELINED: Final = 32
_LINGER_SECONDS: Final = 2.0
_INLINE_BYTES: Final = 16 * 1024


class Connection:
    """One client; has what `asyncio.Protocol` has."""

    __slots__ = (
        "_call",
        "_draining",
        "_ended",
        "_endpoint",
        "_eof",
        "_files",
        "_parser",
        "_queue",
        "_reading_paused",
        "_refusal",
        "_request",
        "_send_queue",
        "_started",
        "_starting",
        "_subscriber",
        "_transport",
        "_unsent",
        "chunked",
        "deadline",
        "full",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set at once
        self._send_queue: SendQueue = None  # type: ignore[assignment] # set at once
        self._parser = RequestParser(endpoint, self)
        self._queue: deque[Request] = deque()
        self._request: Request | None = None
        self._call: InlineTask | None = None
        self._subscriber: Feed | None = None
        self._refusal: Problem | None = None
        """What is answered behind all requests that have arrived whole."""
        self._starting = False
        self._draining = False
        self._ended = False
        """Whether the last answer is on its way."""
        self._eof = False
        self._reading_paused = False
        self._started = 0.0
        self._unsent: list[Buffer] = []
        self._files: FileSender | None = None
        self.deadline = TO_BE_SET
        self.full = False
        self.chunked = True

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        endpoint = self._endpoint
        self._transport = transport  # type: ignore[assignment] # TCP gives a full transport
        self._send_queue = SendQueue(self._transport)
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
        if self._subscriber is not None:
            self._subscriber.stop()
            self._subscriber = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)

    def eof_received(self) -> bool:
        # The client may still read: what has arrived whole is answered, then the connection closes.
        self._eof = self._draining = True
        if not self._ended and self._request is None and self._is_last():
            self._close()
        return not self._ended

    def pause_writing(self) -> None:
        self.full = True
        self._watch_sending()

    def resume_writing(self) -> None:
        self.full = False
        if self._subscriber is not None:
            self.deadline = NEVER
            self._subscriber.resume()
        elif self._request is not None:
            self.deadline = NEVER
        else:
            self._next()

    # What the incoming side calls

    def accept(self, head: Head, body: bytes, hold: Hold | None) -> None:
        """Answer a request that has arrived whole, or queue it behind those before it."""
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
        """Answer what never reaches the application, behind the requests before it, and close."""
        if self._ended or self._refusal is not None:
            return
        self._refusal = problem
        self._draining = True
        self._parser.stop()
        self._next()

    def expect_more(self) -> None:
        """Have the time measured in which the rest of a request must come."""
        if self._request is None and not self.full:
            self.deadline = TO_BE_SET

    def send_continue(self) -> None:
        """Send `100 Continue`, unless an answer is to come before."""
        if self._request is None:
            self.write(_CONTINUE)

    # Answering

    def _start(self, request: Request) -> None:
        self._request = request
        self.deadline = NEVER
        if self._endpoint.log_access:
            self._started = self._endpoint.loop.time()
        call = start(self._endpoint.handle(request), self._answered)
        if call is not None:  # otherwise it is answered already
            self._call = call

    def _answered(self, response: Response | EventStream | None, error: Exception | None) -> None:
        self._call = None
        request = self._request
        if request is None:  # the connection was lost while the call ran
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
        end = _CLOSES if last else _GOES_ON if head.chunked else _GOES_ON_1_0
        if response.body and response.from_files and head.method != "HEAD":
            if last:
                self._parser.stop()  # nothing may follow what is said to be the last
            self._write_files(response, end)
            return
        self._write(response, end, head_only=head.method == "HEAD")
        self._finish(last=last)

    def _is_last(self) -> bool:
        """Tell whether nothing follows what is under way, given that the connection drains."""
        return (
            not self._queue and self._refusal is None and (self._eof or not self._parser.receiving)
        )

    def _write(self, response: Response, end: bytes, *, head_only: bool = False) -> None:
        body = in_memory(response.body) if response.body and not head_only else []
        self.write(self._head(response, end))
        if body:
            self._unsent += body
            if sum(map(len, body)) > _INLINE_BYTES:
                self.flush()  # so that the transport can say when it is full

    def _head(self, response: Response, end: bytes) -> bytes:
        return b"%b%b%b%b" % (
            _STATUS_LINE[response.status],
            self._endpoint.common,
            response.head,
            end,
        )

    def _write_files(self, response: Response, end: bytes) -> None:
        """Send an answer from its files; its request is under way until the last byte is sent."""
        self.flush()
        sender = self._file_sender()
        if sender is None:
            try:
                self._write(response, end)
            except OSError as error:
                self._cut_off(error)
            else:
                self._finish(last=self._draining and self._is_last())
            return
        self._files = sender
        sender.start([self._head(response, end), *response.body], self._files_sent)
        if sender.left:
            self.full = True
            self._watch_sending()

    def _file_sender(self) -> FileSender | None:
        """Give what sends past the transport, where that overtakes nothing."""
        if self._transport.get_write_buffer_size():
            return None
        try:
            return FileSender(self._endpoint.loop, self._transport)
        except OSError:  # there is no descriptor left for it
            return None

    def _files_sent(self, error: OSError | None) -> None:
        self.full = False
        if self._files is not None:
            self._files.close()
            self._files = None
        if error is None:
            self._finish(last=self._draining and self._is_last())
        else:
            self._cut_off(error)

    def _cut_off(self, error: OSError) -> None:
        """Give up an answer that can't be finished."""
        if isinstance(error, Truncated):
            log.error("a segment file was truncated while it was sent, connection aborted")
        elif not isinstance(error, ConnectionError | TimeoutError):
            log.error("could not send a file, connection aborted", extra={"error": error})
        self._transport.abort()

    def _finish(self, *, last: bool) -> None:
        """One request is answered: close, or go on with the next."""
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
        """Go on with what waits, as far as it can be answered and sent."""
        if self._starting:
            return
        self._starting = True  # a request that is answered at once comes back here: no deeper
        try:
            while self._queue and self._request is None and not self.full:
                self._start(self._queue.popleft())
        finally:
            self._starting = False
        if len(self._queue) < _MAX_PIPELINED:
            self._resume_reading()
        if self._ended or self._request is not None or self.full:
            return
        if self._refusal is not None:
            if self._endpoint.log_access:
                access_log.debug(
                    "refused", extra={"status": self._refusal.status, "code": self._refusal.code}
                )
            self._write(problem_response(self._refusal), _CLOSES)
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
        else:  # only closing can tell that such a response has ended, so nothing follows it
            self._draining = True
            self._parser.stop()
            self._drop_queue()
        lines.append(_CLOSES if self._draining and self._is_last() else _GOES_ON)
        self.write(b"".join(lines))
        self._subscriber = response.subscriber
        response.subscriber.start(self)

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn: an answer's head, or a frame of the subscriber's."""
        if not self._unsent:
            self._endpoint.send_soon(self)
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
        self._finish(last=self._draining and self._is_last())

    # Ending

    def close_when_idle(self) -> None:
        """Close now, or once what has arrived is answered."""
        self._draining = True
        if not self._ended and self._request is None and self._is_last():
            self._close()

    def _hang_up(self) -> None:
        """Close so that the client gets the answer even while it still sends."""
        if self._eof or not self._transport.can_write_eof():
            self._close()
            return
        self._end()
        if not self._transport.is_closing():  # as it is where sending has failed
            self._transport.write_eof()

    def _close(self) -> None:
        """Close once everything is sent."""
        self._end()
        self._transport.close()

    def _end(self) -> None:
        self._ended = True
        self._parser.stop()
        self._resume_reading()
        self.flush()
        self._watch_sending()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._transport.abort()

    # Time limits

    def allowance(self) -> float:
        """Say how many seconds the present state of the connection may last."""
        settings = self._endpoint.settings
        if self.full:
            return self._look_seconds()
        if self._parser.in_head:
            return settings.header_timeout
        return settings.body_timeout if self._parser.receiving else settings.idle_timeout

    def timed_out(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self.full or self._ended:
            self._look_at_sending(now)
        elif self._parser.receiving:
            self.refuse(TOO_SLOW)
        else:
            self._close()

    def _watch_sending(self) -> None:
        """From now on look whether the client takes what was sent to it."""
        now = self._endpoint.loop.time()
        self._send_queue.watch(now, self._left_in_files())
        self.deadline = now + self._look_seconds()

    def _look_seconds(self) -> float:
        return min(self._endpoint.settings.write_timeout, _LINGER_SECONDS)

    def _left_in_files(self) -> int:
        return 0 if self._files is None else self._files.left

    def _look_at_sending(self, now: float) -> None:
        standing = self._send_queue.look(now, self._left_in_files())
        if standing and not self._send_queue.untaken:
            # It has everything, and had time to see that the connection ends.
            self._transport.abort()
        elif standing >= self._endpoint.settings.write_timeout:
            peer = self._transport.get_extra_info("peername")
            log.warning("dropped a slow client", extra={"peer": peer})
            self._transport.abort()
        else:
            self.deadline = now + self._look_seconds()

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


# What was sent to a client that it has not taken yet, and whether it takes any of it.
#
# The transport knows what the system has not accepted. What the system has accepted waits in the
# socket, by the megabyte, and a transport hears of room there only once a third of it is free: a
# slow reader would seem to stand still for minutes. Linux tells that part as well.

if sys.platform == "linux":
    from fcntl import ioctl
    from termios import TIOCOUTQ

    def _in_socket(transport: asyncio.Transport) -> int:
        sock = transport.get_extra_info("socket")
        try:
            count: int = struct.unpack("i", ioctl(sock.fileno(), TIOCOUTQ, bytes(4)))[0]
        except (AttributeError, OSError):  # no socket, not of this kind, or closed already
            return 0
        return count
else:

    def _in_socket(_: asyncio.Transport) -> int:
        return 0


class SendQueue:
    """What lies between the server and one client, looked at from time to time."""

    __slots__ = ("_moved", "_transport", "untaken")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._moved = 0.0
        self.untaken = 0
        """Bytes that waited at the last look."""

    def watch(self, now: float, more: int = 0) -> None:
        """Begin to look; `more` bytes are on their way past the transport."""
        self.untaken = self._count() + more
        self._moved = now

    def look(self, now: float, more: int = 0) -> float:
        """Look again, and say for how many seconds the client has taken nothing."""
        untaken = self._count() + more
        if untaken < self.untaken:
            self._moved = now
        self.untaken = untaken
        return now - self._moved

    def _count(self) -> int:
        return self._transport.get_write_buffer_size() + _in_socket(self._transport)
