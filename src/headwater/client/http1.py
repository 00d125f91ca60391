"""HTTP/1.1 as bytes: a request written down, and an answer put together from what arrives.

No I/O here: the synchronous and the asynchronous transport share it and only move the bytes.
"""

from typing import Any, Final
from urllib.parse import urlsplit

import httptools

from headwater.client.messages import Answer, Request, target_of

MAX_HEAD_BYTES: Final = 64 * 1024
_LARGE_BODY_BYTES: Final = 64 * 1024
"""A larger body is sent by itself: copying it would cost more than another system call."""
_TEXT: Final = "latin-1"
_BREAKS: Final = frozenset("\r\n\0")


class Malformed(Exception):
    """What arrived is not an HTTP answer; the message says why."""


def encode_request(request: Request) -> tuple[bytes, bytes]:
    """Write a request: what to send first, and what is left of the body."""
    host = urlsplit(request.url).netloc.rpartition("@")[2]
    lines = [f"{request.method} {target_of(request.url)} HTTP/1.1\r\nHost: {host}\r\n"]
    for name, value in request.headers.items():
        if not _BREAKS.isdisjoint(name) or not _BREAKS.isdisjoint(value):
            raise ValueError(f"the header {name!r} holds a line break: it can't be sent")
        lines.append(f"{name}: {value}\r\n")
    if request.body or request.method in {"POST", "PUT"}:
        lines.append(f"Content-Length: {len(request.body)}\r\n")
    lines.append("\r\n")
    head = _encoded("".join(lines))
    if len(request.body) > _LARGE_BODY_BYTES:
        return head, request.body
    return head + request.body, b""


def _encoded(head: str) -> bytes:
    try:
        return head.encode(_TEXT)
    except UnicodeEncodeError as error:
        wrong = head[error.start : error.end]
        raise ValueError(f"a header holds {wrong!r}, which HTTP can't carry") from None


class Incoming:
    """One answer as it arrives."""

    def __init__(self, request: Request, attempt: int = 0) -> None:
        self._request = request
        self._attempt = attempt
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self.status = 0
        self.has_head = False
        """Whether the status and the headers are there."""
        self.done = False
        """Whether the whole body is there."""
        self.reusable = False
        """Whether the connection may carry another request."""
        self.begun = False
        """Whether anything has arrived."""

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        if self.done:
            # More than was asked for: whatever it answers, it is nothing of ours.
            self.reusable = False
            return
        self.begun = True
        if not self.has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.done:
                raise Malformed(f"what came is not HTTP ({error})") from None
            self.reusable = False
        if self.done:
            self.forget()
        if not self.has_head and self._head_bytes > MAX_HEAD_BYTES:
            raise Malformed("the headers of the answer don't end")

    def forget(self) -> None:
        """Let go of the parser, which refers back to this: else both stay until the collector."""
        self._parser = None

    def end(self) -> None:
        """Take the end of the connection; raises where it cuts the answer short."""
        self.reusable = False
        if self.done:
            return
        if not self.has_head:
            raise Malformed("it ended before the answer" if not self.begun else "it broke off")
        if self._is_delimited:
            raise Malformed("it ended in the middle of the answer")
        if self.status == 200 and self._request.method == "GET" and not self._request.live:
            # The end of the connection would be the end of the data: a break would go unseen.
            raise Malformed("the answer does not tell its length")
        self.done = True

    def answer(self) -> Answer:
        """Give the whole answer."""
        return self._answer(self.take())

    def head(self) -> Answer:
        """Give the answer without its body, which is to be taken as it comes."""
        return self._answer(b"")

    def take(self) -> bytes:
        """Take the part of the body that has arrived since the last time."""
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        return body

    def _answer(self, body: bytes) -> Answer:
        request = self._request
        return Answer(request.url, request.method, self.status, self._headers, body, self._attempt)

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._pieces)

    @property
    def _is_delimited(self) -> bool:
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode(_TEXT).lower()] = value.decode(_TEXT)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self._headers = {}  # an interim answer: the real one follows
            return
        self.has_head = True
        # The parser's own `should_keep_alive` does not know that HEAD is answered without a body.
        closes = "close" in self._headers.get("connection", "").lower()
        self.reusable = not closes and self._parser.get_http_version() != "1.0"
        if self._request.method == "HEAD":
            # The parser waits for the body that the headers describe, and that never comes.
            self.done = True

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.has_head:
            self.done = True
