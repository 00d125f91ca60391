"""Requests on a connection of one's own, and what came back."""

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, Final, NamedTuple, Self

ROOT: Final = "/v1/stream/"
JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"


class Lost(Exception):
    """The connection broke, or there was none: whether the request was carried out is unknown."""


class Answer(NamedTuple):
    """One response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def next_offset(self) -> str:
        return self.headers["stream-next-offset"]

    @property
    def code(self) -> str:
        """The code of a problem document."""
        return str(self.problem()["code"]) if self.body else ""

    def problem(self) -> dict[str, Any]:
        """Give the problem document that the answer must be."""
        assert self.headers["content-type"] == "application/problem+json"
        found = json.loads(self.body)
        assert isinstance(found, dict)
        assert found["status"] == self.status
        return found


class Wire:
    """A connection to a server on loopback."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def call(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        """Send a request and read the whole answer."""
        try:
            self._connection.request(method, ROOT + path, body or None, dict(headers or {}))
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise Lost(repr(error)) from error
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, content)

    def events(self, path: str) -> Iterator[tuple[str, bytes]]:
        """Follow a stream by Server-Sent Events until the server ends it."""
        try:
            self._connection.request("GET", ROOT + path)
            response = self._connection.getresponse()
            if response.status != 200:
                response.read()
                return
            kind, lines = "", []
            while line := response.readline():
                name, _, value = line.rstrip(b"\n").partition(b": ")
                if name == b"event":
                    kind = value.decode()
                elif name == b"data":
                    lines.append(value)
                elif not name and lines:
                    yield kind, b"\n".join(lines)
                    kind, lines = "", []
        except (OSError, HTTPException) as error:
            raise Lost(repr(error)) from error
        finally:
            self.close()
