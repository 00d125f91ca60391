"""HTTP/1.1 as bytes: a request written down, and an answer put together from what arrives.

No I/O here: the synchronous and the asynchronous transport share it and only move the bytes.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import httptools
from msgspec import Struct

from headwater.protocol.paths import url_path

ROOT: Final = "/v1/stream/"
"""Where the streams live under a base URL."""

_PATH_SAFE: Final = "/%~!$&'()*+,;=:@"
_QUERY_SAFE: Final = _PATH_SAFE + "?"


class Request(Struct, frozen=True):
    """One request with its whole body."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    repeatable: bool = True
    """Whether sending it twice leaves the stream as sending it once does."""
    live: bool = False
    """Whether the server may hold the answer back until there is something to say."""


class Response(Struct, frozen=True):
    """One answer; the body is empty where it is read as it comes."""

    url: str
    method: str
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""
    attempt: int = 0
    """How many times the same request was sent before, without an answer to rely on."""


def stream_url(base_url: str, stream: str, root: str = ROOT) -> str:
    """Find the URL of a stream: a whole URL as it is, a path under the base URL's streams."""
    if is_url(stream):
        return _clean(stream)
    if not stream:
        raise ValueError("a stream needs a path, such as chat/42")
    parts = _split(_clean(base_url))
    prefix = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    return prefix + url_path(stream.removeprefix("/"), root)


def is_url(stream: str) -> bool:
    """Tell a whole URL from a path."""
    return stream.lower().startswith(("http://", "https://"))


def origin_of(url: str) -> str:
    """Give the part of a URL that says where to connect."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def path_of(url: str) -> str:
    """Give the path of a URL, as the fork headers want it."""
    return _split(url).path


def target_of(url: str) -> str:
    """Give what a request line names: path and query."""
    parts = _split(url)
    return urlunsplit(("", "", parts.path or "/", parts.query, ""))


def with_query(url: str, *parameters: tuple[str, str]) -> str:
    """Add query parameters, sorted by name so that caches see one URL (PROTOCOL 10.1)."""
    parts = _split(url)
    pairs = sorted([*parse_qsl(parts.query, keep_blank_values=True), *parameters])
    return parts._replace(query=urlencode(pairs, quote_via=quote)).geturl()


def _clean(url: str) -> str:
    """Escape what a person may type but a request line can't hold; escapes stay as they are."""
    parts = _split(url)
    return parts._replace(
        path=quote(parts.path, safe=_PATH_SAFE), query=quote(parts.query, safe=_QUERY_SAFE)
    ).geturl()


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)._replace(fragment="")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"'{url}' is no URL of a server: it must look like http://127.0.0.1:4437")
    _ = parts.port  # raises ValueError where it is no port
    return parts


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
        self._surplus = False
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

    def answer(self) -> Response:
        """Give the whole answer."""
        return self._answer(self.take())

    def head(self) -> Response:
        """Give the answer without its body, which is to be taken as it comes."""
        return self._answer(b"")

    def take(self) -> bytes:
        """Take the part of the body that has arrived since the last time."""
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        return body

    def _answer(self, body: bytes) -> Response:
        request = self._request
        return Response(
            request.url, request.method, self.status, self._headers, body, self._attempt
        )

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._pieces)

    @property
    def _is_delimited(self) -> bool:
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.done:
            # A second answer to one request: it is dropped, and the connection with it.
            self._surplus = True
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._surplus:
            return
        self._headers[name.decode(_TEXT).lower()] = value.decode(_TEXT)

    def on_headers_complete(self) -> None:
        if self._surplus:
            return
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
        if not self._surplus:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.has_head:
            self.done = True
