"""The parser of HTTP/1.1 requests: httptools, with limits on heads and bodies.

A `RequestParser` belongs to one connection. It passes on each request once it is complete, and the
problem of one that can't be completed. After a problem, or the last request of a connection,
further input is ignored.

It keeps the receiving half of the connection's state::

    IDLE ──first byte──▶ HEAD ──empty line──▶ BODY ──last byte──▶ IDLE
    any ──the last request or a problem──▶ DONE        any ──the client's EOF──▶ EOF

Long input is not parsed at once: it is `pending`, and the connection has one piece after another
parsed when it has room for more requests. A piece ends with a head, or is a body of known length,
or has 4 KiB.
"""

import logging
import re
from typing import Any, Final, Protocol

import httptools

from headwater.protocol.byte_requests import Buffer
from headwater.server.admission import Hold
from headwater.server.http1.endpoint import Endpoint
from headwater.server.messages import Head
from headwater.server.problems import (
    EXPECTATION_FAILED,
    HEADERS_TOO_LARGE,
    MALFORMED,
    Problem,
    problem_of,
)

log: Final = logging.getLogger("headwater.http")

_MAX_LENGTH_DIGITS: Final = 18
_LINE_OVERHEAD: Final = len(b":\r\n")
_END_OF_HEAD: Final = b"\r\n\r\n"
_PIECE_BYTES: Final = 4096
"""Input up to this length is parsed at once: the requests in it are few, however short."""
_ABSOLUTE: Final = re.compile(rb"(https?)://(?:[^/?#@]*@)?([^/?#@]+)", re.IGNORECASE)


class ReceiveState:
    """What the parser expects next: integers, which are also compared by their order."""

    IDLE: Final = 0
    """A request, or nothing more."""
    HEAD: Final = 1
    BODY: Final = 2
    DONE: Final = 3
    """Nothing: further input is ignored."""
    EOF: Final = 4
    """Nothing: the client has sent everything."""


class Receiver(Protocol):
    """Receives the requests of a connection."""

    def accept(self, head: Head, body: bytes, hold: Hold | None) -> None:
        """Accept a complete request; the receiver releases the hold of its body."""

    def refuse(self, problem: Problem) -> None:
        """Accept a problem instead of a request; nothing follows it."""

    def expect_more(self) -> None:
        """React to a head or a body of which only a part has arrived."""

    def send_continue(self) -> None:
        """Invite the client to send its body (100-continue)."""

    def abort(self) -> None:
        """Abort the connection after an internal failure."""


class _StopParsing(Exception):
    """Raised in a callback to stop the parser: later input is ignored."""


class RequestParser:
    """Parses the input of one connection."""

    __deletable__ = ("_parser", "_receiver")
    __slots__ = (
        "_body",
        "_body_left",
        "_completed",
        "_endpoint",
        "_eof",
        "_extra_bytes",
        "_head",
        "_headers",
        "_hold",
        "_just_begun",
        "_line_bytes",
        "_max_head_bytes",
        "_parsed",
        "_parser",
        "_piece_bytes",
        "_receiver",
        "_split",
        "_url",
        "pending",
        "state",
    )

    def __init__(self, endpoint: Endpoint, receiver: Receiver) -> None:
        self._endpoint = endpoint
        self._receiver = receiver
        self._max_head_bytes = endpoint.settings.max_header_bytes
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._extra_bytes = 0
        """Bytes of lines that are not in `_headers`: repeated names, and trailers."""
        self._piece_bytes = 0
        self._split = False
        """Whether the current head came in more than one piece."""
        self._line_bytes = 0
        """Bytes received of the current head, or of lines after it that are not part of a body."""
        self._body: bytes | bytearray = b""
        self._body_left = 0
        """Bytes of a body of known length that have not arrived yet."""
        self._hold: Hold | None = None
        self._head: Head | None = None
        self._completed = 0
        """Requests that were completed by the last input."""
        self._just_begun = False
        self._eof = False
        self._parsed = 0
        """Bytes of `pending` that are parsed already."""
        self.pending = b""
        """Input that is not parsed, or only in part; a piece belongs to it until it is parsed."""
        self.state = ReceiveState.IDLE

    def feed(self, data: bytes) -> None:
        """Parse what has arrived; if it is long, it is pending instead."""
        if self.state >= ReceiveState.DONE:
            return
        if self.pending:  # the transport had more to deliver when reading was paused
            self.pending = self.pending[self._parsed :] + data
            self._parsed = 0
            return
        end = 0
        if self.state == ReceiveState.IDLE:
            # A client that keeps its connection open repeats its heads: one that was parsed
            # before, followed by exactly its body, is not parsed again.
            end = data.find(_END_OF_HEAD)
            if end > 0:
                end += len(_END_OF_HEAD)
                size = len(data) - end
                endpoint = self._endpoint
                known = endpoint.heads.find(data[:end], size)
                if known is not None:
                    hold: Hold | None = None
                    if size:
                        hold = endpoint.admission.hold()
                        refusal = hold.add(size)
                        if refusal is not None:
                            hold.release()
                            self._receiver.refuse(problem_of(refusal))
                            return
                    self._receiver.accept(known, data[end:], hold)
                    return
        if len(data) > _PIECE_BYTES and len(data) > self._body_left:
            self.pending = data
            self._parsed = 0
            return
        self._parse(data)
        if end > 0 and self._completed == 1:
            self._cache_head(data, end)

    def is_receiving(self) -> bool:
        """Return whether a request has begun and is not complete."""
        return ReceiveState.IDLE < self.state < ReceiveState.DONE

    def parse_piece(self) -> int:
        """Parse the next piece of the pending input; return how many bytes that were."""
        data = self.pending
        start = self._parsed
        is_new = self.state == ReceiveState.IDLE
        if self._body_left:
            size = min(len(data) - start, self._body_left)
        else:
            size = min(len(data) - start, _PIECE_BYTES)
            if self.state <= ReceiveState.HEAD:
                end_of_head = data.find(_END_OF_HEAD, start, start + size)
                if end_of_head >= 0:
                    size = end_of_head + len(_END_OF_HEAD) - start
        end = self._parsed = start + size
        self._parse(memoryview(data)[start:end])
        if is_new and not start and self._body_left == len(data) - end:
            # The input is one request, and this was its head.
            size = len(data)
            completed = self._completed
            if self._body_left:
                self._parse(memoryview(data)[end:])
                completed += self._completed
            if completed == 1:
                self._cache_head(data, end)
        if start + size == len(data):
            self.pending = b""
            if self._eof:
                self.stop()
        return size

    def end(self) -> None:
        """Accept no more input; an incomplete request is dropped once nothing is pending."""
        self._eof = True
        if not self.pending:
            self.stop()

    def stop(self) -> None:
        """Ignore further input, and drop an incomplete request."""
        self.state = ReceiveState.EOF if self._eof else ReceiveState.DONE
        self.pending = b""
        self._body = b""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def close(self) -> None:
        """Stop, and break the reference cycles of this object."""
        self.stop()
        del self._parser, self._receiver

    def _parse(self, data: Buffer) -> None:
        self._completed = 0
        rest: Buffer | None = data
        while rest is not None and self.state < ReceiveState.DONE:
            rest = self._feed(rest)

    def _feed(self, data: Buffer) -> bytes | None:
        """Feed data to httptools; return what it has to be fed next after an upgrade."""
        self._piece_bytes = len(data)
        self._line_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.state < ReceiveState.DONE:
                return self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._fail(error)
        if self.is_receiving():
            if self._just_begun:
                self._just_begun = False
                if self.state == ReceiveState.HEAD:
                    self._split = True
                    # the piece may hold requests before this one
                    self._line_bytes = self._head_bytes()
                self._receiver.expect_more()
            if self._line_bytes > self._max_head_bytes:
                # It may be one endless line, which the parser buffers without a callback.
                self._receiver.refuse(HEADERS_TOO_LARGE)
        return None

    def _cache_head(self, data: bytes, end: int) -> None:
        """Cache the head of the only request in some input, which is complete."""
        if self.state == ReceiveState.IDLE and self._head is not None:
            self._endpoint.heads.add(data[:end], len(data) - end, self._head)

    def _fail(self, error: httptools.HttpParserError) -> None:
        if not isinstance(error, httptools.HttpParserCallbackError):
            if self.state < ReceiveState.DONE:
                self._receiver.refuse(MALFORMED)
        elif not isinstance(error.__context__, _StopParsing):
            log.error("request parser failed, connection aborted", exc_info=error)
            self.stop()
            self._receiver.abort()

    def _without_upgrade(self, rest: Buffer) -> bytes:
        """Return a request without its upgrade header, to be parsed again with what follows it.

        An upgrade may be ignored (RFC 9110, 7.8), but the parser stops after such a head, where
        the other protocol would begin.
        """
        lines = [b"%b: %b" % item for item in self._headers.items() if item[0] != b"upgrade"]
        request_line = b"%b %b HTTP/%b" % (
            self._parser.get_method(),
            self._url,
            self._parser.get_http_version().encode(),
        )
        self._parser = httptools.HttpRequestParser(self)
        self.state = ReceiveState.IDLE
        return b"\r\n".join((request_line, *lines, b"", rest))

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if self.state >= ReceiveState.DONE:
            raise _StopParsing
        self._url = b""
        self._headers = {}
        self._extra_bytes = 0
        self._split = False
        self._body_left = 0
        self._just_begun = True
        self.state = ReceiveState.HEAD

    def on_url(self, url: bytes) -> None:
        self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.state != ReceiveState.HEAD:
            # A trailer: its bytes count, but it is not a header (RFC 9110, 6.5.1).
            self._extra_bytes += len(name) + len(value) + _LINE_OVERHEAD
            if self._extra_bytes > self._max_head_bytes:
                self._refuse(HEADERS_TOO_LARGE)
            return
        name = name.lower()
        value = value.rstrip()
        headers = self._headers
        if name in headers:
            value = headers[name] + b", " + value
            self._extra_bytes += len(name) + 1
            if len(value) > self._max_head_bytes:  # joining again and again is quadratic
                self._refuse(HEADERS_TOO_LARGE)
        headers[name] = value

    def _head_bytes(self) -> int:
        """Count the bytes of the current head, up to its last complete line."""
        lines = sum(len(name) + len(value) for name, value in self._headers.items())
        return len(self._url) + lines + _LINE_OVERHEAD * len(self._headers) + self._extra_bytes

    def on_headers_complete(self) -> None:
        self.state = ReceiveState.BODY
        self._just_begun = True
        may_be_large = self._split or self._piece_bytes > self._max_head_bytes
        if may_be_large and self._head_bytes() > self._max_head_bytes:
            self._refuse(HEADERS_TOO_LARGE)
        self._line_bytes = 0
        headers = self._headers
        length = headers.get(b"content-length")
        if length is not None:
            if not length.isdigit():
                self._refuse(MALFORMED)
            size = int(length[:_MAX_LENGTH_DIGITS])  # a longer one exceeds any limit
            if size:
                self._body_left = size
                hold = self._hold = self._endpoint.admission.hold()
                refusal = hold.expect(size)
                if refusal is not None:
                    self._refuse(problem_of(refusal))
        if b"expect" in headers and self._parser.get_http_version() != "1.0":
            if headers[b"expect"].lower() != b"100-continue":
                self._refuse(EXPECTATION_FAILED)
            # Otherwise it is parsed again, see _without_upgrade.
            if not self._parser.should_upgrade():
                self._receiver.send_continue()

    def on_body(self, data: bytes) -> None:
        if not self._body:
            self._body = data
        else:
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            # Not a list of pieces: a client may send its body byte by byte.
            self._body += data
        self._line_bytes = 0
        if self._body_left:
            self._body_left -= len(data)
        hold = self._hold
        if hold is None:
            hold = self._hold = self._endpoint.admission.hold()
        refusal = hold.add(len(data))
        if refusal is not None:
            self._refuse(problem_of(refusal))

    def on_message_complete(self) -> None:
        self._completed += 1
        parser = self._parser
        method = parser.get_method().decode("latin-1")
        tunnel = method == "CONNECT"
        if b"upgrade" in self._headers and not tunnel and parser.should_upgrade():
            return  # it is parsed again, see _without_upgrade
        body = self._body
        hold = self._hold
        if body:
            self._body = b""
            self._hold = None
        scheme = "http"
        url = self._url
        if not url.startswith(b"/") and (absolute := _ABSOLUTE.match(url)):
            # RFC 9112, 3.2.2: such a target overrides the Host header.
            scheme = absolute[1].decode().lower()
            self._headers[b"host"] = absolute[2]
            url = url[absolute.end() :]
            url = url if url.startswith(b"/") else b"/" + url
        path, _, query = url.decode("latin-1").partition("?")
        self._head = Head(
            method,
            path,
            query,
            self._headers,
            scheme=scheme,
            keep_alive=parser.should_keep_alive() and not tunnel,
            chunked=parser.get_http_version() != "1.0",
        )
        self.state = ReceiveState.IDLE
        self._receiver.accept(self._head, body if type(body) is bytes else bytes(body), hold)

    def _refuse(self, problem: Problem) -> None:
        self._receiver.refuse(problem)
        raise _StopParsing
