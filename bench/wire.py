"""HTTP/1.1 as far as a load generator needs it: build a request once, find where a response ends.

A connection of the generator never has more than one request under way, so the bytes received
are one response or the beginning of one; everything here works on that assumption.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Self

HOST = "127.0.0.1"
STREAM_ROOT = "/v1/stream/"
_RECEIVE_SIZE = 256 * 1024
REPLY_TIMEOUT_SECONDS = 30

JSON = "application/json"
BINARY = "application/octet-stream"

_HEAD_END = b"\r\n\r\n"
_CONTENT_LENGTH = b"\r\ncontent-length:"
_CHUNKED = b"\r\ntransfer-encoding: chunked"
# PROTOCOL 5.2 and RFC 9110: these statuses never carry a body.
_BODILESS = (b"204", b"304")


class WireError(Exception):
    """The server answered with something that is no usable response."""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response with its chunked framing removed."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str | None:
        """Return a header's value, the name being compared without case."""
        return find_header(self.head, name)

    @property
    def ok(self) -> bool:
        """Whether the status is a 2xx."""
        return 200 <= self.status < 300


def build_request(
    method: str, port: int, target: str, content_type: str | None = None, body: bytes = b""
) -> bytes:
    """Return the bytes of one request; `target` is a stream's name, perhaps with a query."""
    lines = [f"{method} {STREAM_ROOT}{target} HTTP/1.1", f"Host: {HOST}:{port}"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    if method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def find_header(head: bytes, name: str) -> str | None:
    """Return the value of a header inside a response head."""
    wanted = f"\r\n{name.lower()}:".encode("ascii")
    at = head.lower().find(wanted)
    if at < 0:
        return None
    start = at + len(wanted)
    return head[start : head.find(b"\r\n", start)].strip().decode("latin-1")


def response_end(data: bytes | bytearray) -> int | None:
    """Return the length of the response that `data` begins with, or None while it is incomplete."""
    blank = data.find(_HEAD_END)
    if blank < 0:
        return None
    body = blank + len(_HEAD_END)
    if data[9:12] in _BODILESS:
        return body
    head = data[:body].lower()
    at = head.find(_CONTENT_LENGTH)
    if at >= 0:
        start = at + len(_CONTENT_LENGTH)
        end = body + int(head[start : head.find(b"\r\n", start)])
        return end if len(data) >= end else None
    if _CHUNKED in head:
        return _chunked_end(data, body)
    raise WireError("the response has neither Content-Length nor chunked framing")


def _chunked_end(data: bytes | bytearray, at: int) -> int | None:
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(data[at:line_end], 16)
        at = line_end + 2 + size + 2
        if at > len(data):
            return None
        if size == 0:
            return at


def dechunk(data: bytes | bytearray) -> bytes:
    """Return the payload of every complete chunk, in order."""
    pieces: list[bytes] = []
    at = 0
    while (line_end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line_end], 16)
        start = line_end + 2
        if size == 0 or start + size > len(data):
            break
        pieces.append(bytes(data[start : start + size]))
        at = start + size + 2
    return b"".join(pieces)


def is_chunked(head: bytes) -> bool:
    """Whether a response head announces chunked framing."""
    return _CHUNKED in head.lower()


def connect(port: int) -> socket.socket:
    """Open a connection that sends small requests at once."""
    sock = socket.create_connection((HOST, port), timeout=REPLY_TIMEOUT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Client:
    """One blocking keep-alive connection, for preparing streams and for measuring latency."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._buffer = bytearray(_RECEIVE_SIZE)
        self._sock = connect(port)
        # A kernel timeout instead of Python's: the latter costs a poll() before each recv().
        self._sock.settimeout(None)
        self._sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", REPLY_TIMEOUT_SECONDS, 0)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, request: bytes) -> None:
        """Send a request whose response `receive` will fetch."""
        self._sock.sendall(request)

    def receive_into(self, buffer: bytearray) -> int:
        """Receive some bytes of a response and return how many there are."""
        try:
            count = self._sock.recv_into(buffer)
        except BlockingIOError:
            raise WireError(f"no reply within {REPLY_TIMEOUT_SECONDS} s") from None
        if count == 0:
            raise WireError("the server closed the connection before its response was complete")
        return count

    def receive(self) -> Response:
        """Wait for the complete response to the request under way."""
        buffer, data = self._buffer, bytearray()
        end = None
        while end is None:
            count = self.receive_into(buffer)
            data += buffer[:count]
            end = response_end(data)
        body_at = data.find(_HEAD_END) + len(_HEAD_END)
        head = bytes(data[:body_at])
        framed = data[body_at:end]
        body = dechunk(framed) if is_chunked(head) else bytes(framed)
        return Response(int(data[9:12]), head, body)

    def exchange(self, request: bytes) -> Response:
        """Send one request and wait for its response."""
        self.send(request)
        return self.receive()

    def expect_ok(self, request: bytes) -> Response:
        """Exchange a request that must succeed, as every request of a preparation must."""
        response = self.exchange(request)
        if not response.ok:
            line = request.split(b"\r\n", 1)[0].decode("ascii")
            raise WireError(f"{line} was answered with status {response.status}")
        return response

    def create_stream(self, name: str, content_type: str = JSON) -> None:
        """Create a stream."""
        self.expect_ok(build_request("PUT", self.port, name, content_type))
