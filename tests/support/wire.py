"""A client that writes bytes and reads HTTP/1.1 responses strictly, one at a time.

A response that breaks the protocol fails an assertion; a connection that breaks raises `Lost`.
"""

import base64
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

ROOT: Final = "/v1/stream/"
JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"
TIMEOUT: Final = 60.0

Headers = Mapping[str, str]


class Lost(ConnectionError):
    """The connection broke, or was refused: whether the request was carried out is unknown."""


@contextmanager
def _lost_if_broken() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Lost(repr(error)) from error


class Answer(NamedTuple):
    """One response."""

    status: int
    headers: Headers
    body: bytes

    @property
    def next_offset(self) -> str:
        return self.headers["stream-next-offset"]

    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self, status: int, code: str) -> dict[str, Any]:
        """Check that this is a problem document (RFC 9457) of a kind, and return it."""
        assert self.status == status, (self.status, self.body)
        assert self.headers["content-type"] == "application/problem+json"
        document = json.loads(self.body)
        assert isinstance(document, dict)
        assert document["status"] == status
        assert document["code"] == code
        assert document["type"].endswith(code)
        assert document["title"]
        assert document["detail"].endswith((".", ")")), document["detail"]
        return document


class Event(NamedTuple):
    """One server-sent event."""

    kind: str
    data: str

    def json(self) -> Any:
        return json.loads(self.data)

    def decoded(self) -> bytes:
        return base64.b64decode(self.data, validate=True)


def build(method: str, target: str, headers: Headers | None = None, body: bytes = b"") -> bytes:
    """Write a request."""
    lines = [f"{method} {target} HTTP/1.1", "Host: test"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body or method in {"POST", "PUT"}:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Wire:
    """One connection; `ask_stream` opens another one where it has ended."""

    def __init__(
        self, port: int, receive_buffer: int | None = None, timeout: float = TIMEOUT
    ) -> None:
        self._port = port
        self._receive_buffer = receive_buffer
        self._timeout = timeout
        self._connect()

    def _connect(self) -> None:
        self.sock = socket.socket()
        if self._receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self.sock.settimeout(self._timeout)
        try:
            with _lost_if_broken():
                self.sock.connect(("127.0.0.1", self._port))
        except Lost:
            self.sock.close()
            raise
        self.file = self.sock.makefile("rb")
        self._is_reusable = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        with _lost_if_broken():
            self.sock.sendall(data)

    def end_sending(self) -> None:
        """Half-close: the client sends no more, but still reads."""
        self.sock.shutdown(socket.SHUT_WR)

    def ask(
        self, method: str, target: str, headers: Headers | None = None, body: bytes = b""
    ) -> Answer:
        """Send a request and read its answer."""
        self.send(build(method, target, headers, body))
        return self.answer(head_only=method == "HEAD")

    def ask_stream(
        self, method: str, name: str, headers: Headers | None = None, body: bytes = b""
    ) -> Answer:
        """Send a request to a stream and read its answer, if need be on a new connection."""
        if not self._is_reusable:
            self.close()
            self._connect()
        self._is_reusable = False  # until the whole answer has been read
        answer = self.ask(method, ROOT + name, headers, body)
        self._is_reusable = answer.headers.get("connection", "").lower() != "close"
        return answer

    def events(self, name: str) -> Iterator["Event"]:
        """Follow a stream by Server-Sent Events until the server ends it; ends the connection."""
        if not self._is_reusable:
            self.close()
            self._connect()
        self._is_reusable = False
        try:
            reader = EventReader(self, ROOT + name)
            while reader.status == 200 and (event := reader.next()) is not None:
                yield event
        finally:
            self.close()

    def answer(self, *, head_only: bool = False) -> Answer:
        """Read one response."""
        status, headers = self.answer_head()
        if head_only or status in {204, 304} or status < 200:
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, b"".join(self.chunks()))
        if "content-length" in headers:
            return Answer(status, headers, self._exactly(int(headers["content-length"])))
        with _lost_if_broken():
            return Answer(status, headers, self.file.read())

    def answer_head(self) -> tuple[int, Headers]:
        """Read the status line and the headers of a response."""
        version, status, _ = self._line().split(" ", 2)
        assert version == "HTTP/1.1"
        headers: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.partition(":")
            name = name.lower()
            value = value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return int(status), headers

    def chunks(self) -> Iterator[bytes]:
        """Read a chunked body; ends only at a proper end."""
        while True:
            size = int(self._line(), 16)
            data = self._exactly(size)
            assert self._exactly(2) == b"\r\n"
            if size == 0:
                return
            yield data

    def _line(self) -> str:
        with _lost_if_broken():
            line = self.file.readline()
        if not line.endswith(b"\n"):
            raise Lost(f"the server closed the connection before the answer's end: {line!r}")
        assert line.endswith(b"\r\n"), line
        return line[:-2].decode("latin-1")

    def _exactly(self, size: int) -> bytes:
        with _lost_if_broken():
            data = self.file.read(size)
        if len(data) < size:
            raise Lost(f"the response was cut short after {len(data)} of {size} bytes")
        return data

    def closed_by_server(self) -> bool:
        """Tell whether the server has ended the connection; waits until it does."""
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True


class EventReader:
    """Reads the events of an SSE response."""

    def __init__(
        self, wire: Wire, target: str, headers: Headers | None = None, version: str = "1.1"
    ) -> None:
        request = build("GET", target, headers).replace(b"HTTP/1.1", f"HTTP/{version}".encode(), 1)
        wire.send(request)
        self.wire = wire
        self.status, self.headers = wire.answer_head()
        self._bytes = self._pieces()
        self._text = ""

    def _pieces(self) -> Iterator[bytes]:
        if self.headers.get("transfer-encoding") == "chunked":
            yield from self.wire.chunks()
        else:
            while piece := self.wire.file.read(1):
                yield piece

    def next(self) -> Event | None:
        """Give the next event, None once the response has properly ended."""
        while "\n\n" not in self._text:
            piece = next(self._bytes, None)
            if piece is None:
                assert not self._text, f"the stream ended inside an event: {self._text!r}"
                return None
            self._text += piece.decode()
        block, _, self._text = self._text.partition("\n\n")
        kind, data = "message", []
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                kind = value
            elif field == "data":
                data.append(value)
        return Event(kind, "\n".join(data))

    def need(self, kind: str) -> Event:
        """Give the next event, which must be of a kind."""
        event = self.next()
        assert event is not None, "the stream ended"
        assert event.kind == kind, event
        return event

    def rest(self) -> list[Event]:
        """Give all events until the end."""
        found = []
        while (event := self.next()) is not None:
            found.append(event)
        return found


def eventually(condition: Any, seconds: float = 60.0, what: str = "it") -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)
