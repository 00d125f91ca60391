"""Requests and responses, independent of the transport."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_plus

from headwater.protocol.paths import BadPath, NotAStream
from headwater.server.admission import Hold
from headwater.storage.file_ranges import FileRange, Part, in_memory

Headers = list[tuple[bytes, bytes]]

_NO_BODY: Final = frozenset({204, 304})


class Head:
    """The request line and headers, and values parsed from them; equal requests share one."""

    __slots__ = (
        "_parameters",
        "chunked",
        "headers",
        "keep_alive",
        "method",
        "mount",
        "query",
        "scheme",
        "stream",
        "url_path",
    )

    def __init__(
        self,
        method: str,
        url_path: str,
        query: str,
        headers: dict[bytes, bytes],
        *,
        scheme: str = "http",
        mount: str = "",
        keep_alive: bool = True,
        chunked: bool = True,
    ) -> None:
        self.method = method
        self.url_path = url_path
        self.query = query
        self.headers = headers
        """Names are in lower case, and the values of repeated ones are joined with a comma."""
        self.scheme = scheme
        self.mount = mount
        """The URL path under which the application is mounted; `url_path` is the rest."""
        self.keep_alive = keep_alive
        self.chunked = chunked
        """Whether the client supports chunked coding: all except HTTP/1.0 clients do."""
        self.stream: str | BadPath | NotAStream | None = None
        """The stream that the path names; None until the application has parsed the path."""
        self._parameters: dict[str, list[str]] | None = None

    def header(self, name: bytes) -> str | None:
        """Return the value of a header as text, one character for each byte."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The values of each name in the query."""
        found = self._parameters
        if found is None:
            found = self._parameters = {}
            for item in self.query.split("&") if self.query else ():
                name, _, value = item.partition("=")
                if "%" in item or "+" in item:
                    name, value = unquote_plus(name), unquote_plus(value)
                found.setdefault(name, []).append(value)
        return found


class Request:
    """One request with its whole body, and the hold that counts the body, if there is one."""

    __slots__ = ("body", "head", "hold")

    def __init__(self, head: Head, body: bytes, hold: Hold | None = None) -> None:
        self.head = head
        self.body = body
        self.hold = hold

    def release(self) -> None:
        """Stop counting the body, because the request was answered or dropped."""
        if self.hold is not None:
            self.hold.release()


class Response:
    """One response with its whole body, as parts that are sent in order."""

    __slots__ = ("_head", "body", "headers", "omits_length", "status")

    def __init__(
        self,
        status: int,
        headers: Headers,
        body: Sequence[Part] = (),
        *,
        omits_length: bool = False,
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.omits_length = omits_length or status in _NO_BODY
        """Whether Content-Length is omitted: for 204, 304, and metadata for HEAD."""
        self._head: bytes | None = None

    @property
    def length(self) -> int:
        return sum(map(len, self.body)) if self.body else 0

    @property
    def from_files(self) -> bool:
        """Whether a part of the body is in a file."""
        return any(type(part) is FileRange for part in self.body)

    def joined(self) -> bytes:
        """Return the body in one piece."""
        return b"".join(in_memory(self.body))

    @property
    def head(self) -> bytes:
        """The header lines, encoded once; the response does not change after that."""
        head = self._head
        if head is None:
            lines = [b"%b: %b\r\n" % item for item in self.headers]
            if not self.omits_length:
                lines.append(b"content-length: %d\r\n" % self.length)
            head = self._head = b"".join(lines)
        return head
