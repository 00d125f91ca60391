"""A request and a response, as the application sees them, whatever wire they came over."""

from collections.abc import Sequence
from urllib.parse import unquote_plus

from headwater.protocol.framing import Buffer

Headers = list[tuple[bytes, bytes]]


class Request:
    """One request with its whole body."""

    __slots__ = ("body", "headers", "method", "query", "scheme", "url_path")

    def __init__(
        self,
        method: str,
        url_path: str,
        query: str,
        headers: dict[bytes, bytes],
        body: bytes = b"",
        scheme: str = "http",
    ) -> None:
        self.method = method
        self.url_path = url_path
        self.query = query
        self.headers = headers
        """Names in lower case; repeated ones joined with a comma."""
        self.body = body
        self.scheme = scheme

    def header(self, name: bytes) -> str | None:
        """Give a header's value as text, byte for byte."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def parameters(self) -> dict[str, list[str]]:
        """Split the query; a name may come more than once."""
        found: dict[str, list[str]] = {}
        if self.query:
            for item in self.query.split("&"):
                name, _, value = item.partition("=")
                if "%" in item or "+" in item:
                    name, value = unquote_plus(name), unquote_plus(value)
                found.setdefault(name, []).append(value)
        return found


class Response:
    """One response with its whole body, as buffers that are sent one after another."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Headers, body: Sequence[Buffer] = ()) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def length(self) -> int:
        return sum(map(len, self.body))
