"""HTTP/1.1 without I/O: requests and responses as values, URLs, and both as bytes.

The synchronous and the asynchronous transport share this module and only move the bytes.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import httptools
from msgspec import Struct

from headwater.protocol.paths import DEFAULT_ROOT, RESERVED, url_path

_PATH_SAFE: Final = "/%~!$&'()*+,;=:@"
_QUERY_SAFE: Final = _PATH_SAFE + "?"


class Request(Struct, frozen=True):
    """One request with its whole body."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    repeatable: bool = True
    """Whether sending it twice has the effect of sending it once."""
    live: bool = False
    """Whether the server may wait for data before it responds."""


class Response(Struct, frozen=True):
    """One response; the body is empty if it is read as it arrives."""

    url: str
    method: str
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""
    attempt: int = 0
    """How often the same request was sent before without a usable response."""


def stream_url(base_url: str, stream: str, root: str = DEFAULT_ROOT) -> str:
    """Return the URL of a stream, which is named by a whole URL or by a path under the root."""
    if is_url(stream):
        return _clean(stream)
    if not stream:
        raise ValueError("a stream needs a path, such as chat/42")
    parts = _split(_clean(base_url))
    prefix = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    return prefix + url_path(stream.removeprefix("/"), root)


def control_url(base_url: str, resource: str, root: str) -> str:
    """Return the URL of a resource of the control API."""
    return stream_url(base_url, f"{RESERVED}/{resource}", root)


def is_url(stream: str) -> bool:
    """Return whether a stream is named by a whole URL rather than by a path."""
    return stream.lower().startswith(("http://", "https://"))


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def path_of(url: str) -> str:
    """Return the path of a URL, as the fork headers name it."""
    return _split(url).path


def target_of(url: str) -> str:
    """Return the path and query of a URL, as the request line names them."""
    parts = _split(url)
    return urlunsplit(("", "", parts.path or "/", parts.query, ""))


def with_query(url: str, *parameters: tuple[str, str]) -> str:
    """Add query parameters, sorted by name so that caches see one URL (PROTOCOL 10.1)."""
    parts = _split(url)
    pairs = sorted([*parse_qsl(parts.query, keep_blank_values=True), *parameters])
    return parts._replace(query=urlencode(pairs, quote_via=quote)).geturl()


def _clean(url: str) -> str:
    """Escape characters that a request line can't hold; escapes stay as they are."""
    parts = _split(url)
    return parts._replace(
        path=quote(parts.path, safe=_PATH_SAFE), query=quote(parts.query, safe=_QUERY_SAFE)
    ).geturl()


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)._replace(fragment="")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(
            f"'{url}' is not the URL of a server: it must look like http://127.0.0.1:4437"
        )
    _ = parts.port  # raises ValueError if it is not a port
    return parts


MAX_HEAD_BYTES: Final = 64 * 1024
_LARGE_BODY_BYTES: Final = 64 * 1024
"""A larger body is sent separately, since copying it costs more than another system call."""
_TEXT: Final = "latin-1"
_BREAKS: Final = frozenset("\r\n\0")


class Malformed(Exception):
    """What arrived is not an HTTP response; the message is the reason."""


def encode_request(request: Request) -> tuple[bytes, bytes]:
    """Return the bytes of a request: what to send first, and the rest of the body."""
    host = urlsplit(request.url).netloc.rpartition("@")[2]
    lines = [f"{request.method} {target_of(request.url)} HTTP/1.1\r\nHost: {host}\r\n"]
    for name, value in request.headers.items():
        if not _BREAKS.isdisjoint(name) or not _BREAKS.isdisjoint(value):
            raise ValueError(f"the header {name!r} contains a line break and can't be sent")
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
        raise ValueError(f"a header contains {wrong!r}, which HTTP can't carry") from None


class ResponseParser:
    """One response as it arrives."""

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
        """Whether the status and the headers are complete."""
        self.done = False
        """Whether the body is complete."""
        self.reusable = False
        """Whether the connection may carry another request."""
        self.begun = False
        """Whether anything has arrived."""

    def feed(self, data: bytes) -> None:
        """Parse what has arrived."""
        if self.done:
            # Input after the response belongs to no request of ours.
            self.reusable = False
            return
        self.begun = True
        if not self.has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.done:
                raise Malformed(f"the response is not HTTP ({error})") from None
            self.reusable = False
        if self.done:
            self.release()
        if not self.has_head and self._head_bytes > MAX_HEAD_BYTES:
            raise Malformed("the headers of the response are too long")

    def release(self) -> None:
        """Drop the parser, which refers back to this object, so that both are freed at once."""
        self._parser = None

    def end(self) -> None:
        """Process the end of the connection; raises if the response is incomplete."""
        self.reusable = False
        if self.done:
            return
        if not self.has_head:
            missing = "the response" if not self.begun else "its headers were complete"
            raise Malformed(f"it ended before {missing}")
        if self._is_delimited:
            raise Malformed("it ended in the middle of the response")
        if self.status == 200 and self._request.method == "GET" and not self._request.live:
            # Only the end of the connection would end the body: truncation could not be detected.
            raise Malformed("the response has neither Content-Length nor chunked encoding")
        self.done = True

    def response(self) -> Response:
        """Return the whole response."""
        return self._response(self.take())

    def head(self) -> Response:
        """Return the response without its body, which is taken as it arrives."""
        return self._response(b"")

    def take(self) -> bytes:
        """Return the part of the body that has arrived since the last call."""
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        return body

    def _response(self, body: bytes) -> Response:
        request = self._request
        return Response(
            request.url, request.method, self.status, self._headers, body, self._attempt
        )

    @property
    def has_data(self) -> bool:
        """Whether a part of the body has arrived and was not taken."""
        return bool(self._pieces)

    @property
    def _is_delimited(self) -> bool:
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self.done:
            # A second response to one request is dropped, and the connection with it.
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
            self._headers = {}  # an interim response: the final one follows
            return
        self.has_head = True
        # The parser's own `should_keep_alive` does not know that a response to HEAD has no body.
        closes = "close" in self._headers.get("connection", "").lower()
        self.reusable = not closes and self._parser.get_http_version() != "1.0"
        if self._request.method == "HEAD":
            # The parser waits for the body that the headers describe, which never arrives.
            self.done = True

    def on_body(self, data: bytes) -> None:
        if not self._surplus:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.has_head:
            self.done = True
