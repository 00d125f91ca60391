"""A crowd of SSE subscribers on one stream, each counting the messages it is sent.

Every message carries the byte MARK exactly once and nothing else of a response does, so counting
that byte counts messages, wherever recv() happens to cut the stream. Two members also keep all
they receive: their events are parsed afterwards, which shows that the counted bytes are messages.
"""

from __future__ import annotations

import json
import select
import socket
import time

from bench.wire import WireError, build_request, connect, dechunk, is_chunked

MARK = b"~"
_BUFFER_SIZE = 256 * 1024
_OPEN_SECONDS = 20.0
_PAD = "x" * 64


def message_body(number: int) -> bytes:
    """Return a JSON message of about 100 B that carries its number and the mark."""
    return f'{{"n":"{number:08d}","mark":"~","pad":"{_PAD}"}}'.encode("ascii")


class Audience:
    """The subscribers' sockets, registered with an epoll that the caller polls."""

    def __init__(self, port: int, name: str, size: int, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._socks: dict[int, socket.socket] = {}
        self._buffer = bytearray(_BUFFER_SIZE)
        self._kept: dict[int, bytearray] = {}
        self.seen: dict[int, int] = {}
        # From the start of an empty stream: no message can slip in before a subscription.
        self._request = build_request("GET", port, f"{name}?offset=-1&live=sse")
        for _ in range(size):
            self._join(port)
        for fd in (min(self._socks), max(self._socks)):
            self._kept[fd] = bytearray()
        self._await_heads()

    def _join(self, port: int) -> None:
        sock = connect(port)
        sock.setblocking(False)
        sock.send(self._request)
        fd = sock.fileno()
        self._socks[fd] = sock
        self.seen[fd] = 0
        self._epoll.register(fd, select.EPOLLIN)

    def _await_heads(self) -> None:
        waiting = set(self._socks)
        deadline = time.perf_counter() + _OPEN_SECONDS
        while waiting and time.perf_counter() < deadline:
            for fd, _ in self._epoll.poll(0.1):
                count = self._receive(fd)
                if fd in waiting and self._buffer[9:12] != b"200":
                    status = bytes(self._buffer[9:12]).decode("latin-1")
                    raise WireError(f"a subscription was answered with status {status}")
                if self._buffer.count(MARK, 0, count):
                    raise WireError("the mark occurs in a response that carries no message")
                waiting.discard(fd)
        if waiting:
            raise WireError(f"{len(waiting)} subscriptions were not answered")

    def _receive(self, fd: int) -> int:
        count = self._socks[fd].recv_into(self._buffer)
        if count == 0:
            raise WireError("the server closed a subscription")
        if fd in self._kept:
            self._kept[fd] += self._buffer[:count]
        return count

    def __contains__(self, fd: int) -> bool:
        return fd in self._socks

    def receive(self, fd: int) -> int:
        """Take what has arrived for one subscriber and return how many messages that were."""
        messages = self._buffer.count(MARK, 0, self._receive(fd))
        self.seen[fd] += messages
        return messages

    def delivered(self) -> int:
        """Return the number of messages received by all subscribers together."""
        return sum(self.seen.values())

    def verify(self, sent: int) -> None:
        """Check that every subscriber got every message, and two of them the right ones."""
        short = [count for count in self.seen.values() if count != sent]
        if short:
            raise WireError(
                f"{len(short)} of {len(self.seen)} subscribers did not get exactly {sent} messages"
                f" (the first got {short[0]})"
            )
        orders = [message_numbers(bytes(kept)) for kept in self._kept.values()]
        if any(sorted(order) != list(range(sent)) for order in orders):
            raise WireError("a subscriber was sent other messages than were appended")
        if any(order != orders[0] for order in orders):
            raise WireError("two subscribers were sent the messages in different orders")

    def close(self) -> None:
        """Leave, all at once."""
        for sock in self._socks.values():
            sock.close()
        self._socks.clear()


def message_numbers(received: bytes) -> list[int]:
    """Return the numbers of the messages in one whole SSE response, in the order sent."""
    body_at = received.find(b"\r\n\r\n") + 4
    body = received[body_at:]
    if is_chunked(received[:body_at]):
        body = dechunk(body)
    numbers: list[int] = []
    for event in body.decode("utf-8").replace("\r\n", "\n").split("\n\n"):
        lines = event.split("\n")
        if lines[0].removeprefix("event:").strip() != "data":
            continue
        data = "\n".join(line.removeprefix("data:") for line in lines if line.startswith("data:"))
        numbers += [int(message["n"]) for message in json.loads(data)]
    return numbers
