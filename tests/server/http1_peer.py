"""The other end of an HTTP/1.1 connection, in the test's own loop: a transport and an application.

A test decides when bytes arrive, when the client receives, and when a handler has finished, so that
any order of events can be had without waiting.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from headwater.server.admission import Admission
from headwater.server.handlers.live import EventStream
from headwater.server.messages import Request, Response
from headwater.server.settings import Settings
from headwater.storage.file_ranges import FileRange

HIGH_WATER: Final = 10_000
LARGE: Final = 20_000
"""Bytes of a body that fill the transport of a client that does not receive."""
MEDIUM: Final = 8_000
"""Bytes of a body of which two do, once they are written at the end of the turn."""


class Peer(asyncio.Transport):
    """A transport, and what the client at its other end has received."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._ours, self._theirs = socket.socketpair()
        for end in (self._ours, self._theirs):
            end.setblocking(False)
        # Files are sent to the socket itself: no more than this until the client receives.
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self._buffer = bytearray()
        self._is_full = False
        self._closing = False
        self.protocol: Any = None
        self.receives = True
        """Whether the client reads what was sent to it."""
        self.received = bytearray()
        self.reading = True
        """Whether the server reads what the client has sent."""
        self.ended = False
        """Whether the server has said that it will send no more."""
        self.aborted = False
        self.lost = False
        self.late_writes: list[bytes] = []
        """What was written to it when it was closing."""

    # What a connection calls

    def write(self, data: Any) -> None:
        if self._closing or self.ended:
            self.late_writes.append(bytes(data))
            return
        if self.receives:
            self._take_from_socket()
            self.received += data
            return
        self._buffer += data
        if len(self._buffer) > HIGH_WATER and not self._is_full:
            self._is_full = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._ours if name == "socket" else default

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._lose_when_sent()

    def abort(self) -> None:
        self._closing = self.aborted = True
        self._buffer.clear()
        self._loop.call_soon(self.lose)

    # What the client does

    def receive(self) -> None:
        """Read everything that was sent, and go on reading."""
        self.receives = True
        self._take_from_socket()
        self.received += self._buffer
        self._buffer.clear()
        if self._closing:
            self._lose_when_sent()
        if self._is_full:
            self._is_full = False
            self.protocol.resume_writing()

    def take_files(self) -> None:
        """Read what was sent to the socket, if the client is reading."""
        if self.receives:
            self._take_from_socket()

    def lose(self) -> None:
        """Lose the connection, unless that has happened already."""
        if not self.lost:
            self._closing = self.lost = True
            self.protocol.connection_lost(None)
            self._ours.close()
            self._take_from_socket()
            self._theirs.close()

    def _take_from_socket(self) -> None:
        if self._theirs.fileno() < 0:
            return
        try:
            while data := self._theirs.recv(1 << 16):
                self.received += data
        except BlockingIOError:
            pass

    def _lose_when_sent(self) -> None:
        if not self._buffer:
            self._loop.call_soon(self.lose)


class Feed:
    """The feed of an event stream that writes when the test has it write."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sink: Any = None
        self.stopped = False
        self.resumed = 0

    def start(self, sink: Any) -> None:
        self.sink = sink
        self.write(b"%d:" % self.number)

    def write(self, data: bytes) -> None:
        if self.sink is not None and not self.sink.full:
            frame = b"%x\r\n%b\r\n" % (len(data), data) if self.sink.chunked else data
            self.sink.write(frame)

    def resume(self) -> None:
        self.resumed += 1

    def end(self) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            self.stopped = True
            sink.end()

    def stop(self) -> None:
        self.sink = None
        self.stopped = True


class App:
    """An application that answers a path such as `/later/7` with its number.

    The first part of the path says how: `now`, `yield` in the next turn, `later` when the test has
    it finished, from a `file`, with a `medium` or `large` body, with `events`; `fail` raises.
    """

    def __init__(self, settings: Settings, file: Callable[[], FileRange] | None = None) -> None:
        self.settings = settings
        self.admission = Admission(
            settings.max_connections, settings.max_body_bytes, settings.max_buffered_bytes
        )
        self.common_headers: Sequence[tuple[bytes, bytes]] = ()
        self._file = file
        self.handled: list[str] = []
        """The paths of all requests that were handled, in order."""
        self.waiting: list[asyncio.Future[None]] = []
        self.feeds: list[Feed] = []
        self.running = 0
        """Handlers that have begun and neither finished nor been closed."""

    def drain(self) -> None:
        """End what waits for changes, as the server does when it stops."""
        for feed in self.feeds:
            feed.end()

    async def handle(self, request: Request) -> Response | EventStream:
        self.handled.append(request.head.url_path)
        self.running += 1
        try:
            return await self._answer(request.head.url_path)
        finally:
            self.running -= 1

    async def _answer(self, path: str) -> Response | EventStream:
        _, kind, name = path.split("/")
        start = b"%d:" % int(name)
        if kind == "later":
            self.waiting.append(asyncio.get_running_loop().create_future())
            await self.waiting[-1]
        elif kind == "yield":
            await asyncio.sleep(0)
        elif kind in {"medium", "large"}:
            return Response(200, [], [start, b"x" * (LARGE if kind == "large" else MEDIUM)])
        elif kind == "file" and self._file is not None:
            return Response(200, [], [start, self._file()])
        elif kind == "events":
            feed: Any = Feed(int(name))
            self.feeds.append(feed)
            return EventStream([], feed)
        elif kind == "fail":
            raise ValueError(path)
        return Response(200, [], [start])


class Reply(NamedTuple):
    """One response, as far as it was received."""

    status: int
    number: int | None
    """That of its request; None in a problem document."""
    closes: bool
    """Whether it says that the connection closes."""
    complete: bool
    body: bytes


def replies(received: bytes | bytearray, without_body: Sequence[bool] = ()) -> list[Reply]:
    """Read responses strictly; only the last one may be incomplete.

    `without_body` names the requests whose response has no body, as to HEAD.
    """
    found: list[Reply] = []
    data = bytes(received)
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        match = re.match(rb"HTTP/1\.1 (\d{3}) [^\r\n]+(\r\n[a-z-]+: [^\r\n]*)*", head)
        if not end:
            break
        assert match, head
        assert match.end() == len(head), head
        if match[1] == b"100":
            continue
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        if length:
            is_head = len(found) < len(without_body) and without_body[len(found)]
            size = 0 if is_head else int(length[1])
            body, data = data[:size], data[size:]
            complete = len(body) == size
        elif b"\r\ntransfer-encoding: chunked" in head:
            body, data, complete = _chunks(data)
        else:
            body, data, complete = data, b"", False
        closes = b"\r\nconnection: close" in head
        number = re.match(rb"(\d+):", body)
        found.append(
            Reply(int(match[1]), int(number[1]) if number else None, closes, complete, body)
        )
        assert complete or not data
    return found


def _chunks(data: bytes) -> tuple[bytes, bytes, bool]:
    body = b""
    while True:
        line, end, rest = data.partition(b"\r\n")
        if not end:
            return body, b"", False
        size = int(line, 16)
        chunk, data = rest[:size], rest[size:]
        body += chunk
        if len(data) < 2:
            return body, b"", False
        assert data.startswith(b"\r\n"), data[:20]
        data = data[2:]
        if not size:
            return body, data, True
