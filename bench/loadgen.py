"""The closed-loop load generator: N connections, each sending its next request on every response.

Sockets, epoll and prebuilt bytes only. An HTTP client library would spend more time on a request
than the servers under test do, and the benchmark would measure the library.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from bench.measure import Measurement, Stopwatch, no_garbage_collection
from bench.wire import WireError, connect, response_end

_RECEIVE_SIZE = 64 * 1024
# Larger than any request, so that a non-blocking send always takes all of it.
_SEND_BUFFER = 128 * 1024
_POLL_SECONDS = 0.1
_STALL_SECONDS = 10.0


class Connection:
    """A non-blocking connection that has at most one request under way."""

    __slots__ = ("partial", "recv", "requests", "send", "sock")

    def __init__(self, port: int, requests: Iterator[bytes]) -> None:
        self.sock: socket.socket = connect(port)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.requests = requests
        self.partial = b""
        # Bound once: these two are looked up for every request.
        self.recv = self.sock.recv
        self.send = self.sock.send

    def send_next(self) -> None:
        """Send the next request; it always fits into the send buffer."""
        request = next(self.requests)
        if self.send(request) != len(request):
            raise WireError("a request did not fit into the socket's send buffer")

    def completed(self) -> bytes | None:
        """Receive what is there and return the response once all of it has arrived."""
        data = self.recv(_RECEIVE_SIZE)
        if not data:
            raise WireError("connection closed by the server")
        if self.partial:
            data = self.partial + data
        # Most responses are a 204 in one piece: decided without searching through the head.
        if data[9:12] == b"204" and data[-4:] == b"\r\n\r\n":
            self.partial = b""
            return data
        if response_end(data) is None:
            self.partial = data
            return None
        self.partial = b""
        return data


class _Run:
    """The state of one closed loop: which connections are open and what has been counted."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.open: dict[int, Connection] = {}
        self.completed = 0
        self.errors: Counter[str] = Counter()

    def add(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        self.open[fd] = connection
        self.epoll.register(fd, select.EPOLLIN)
        connection.send_next()

    def drop(self, fd: int, reason: str) -> None:
        self.errors[reason] += 1
        connection = self.open.pop(fd)
        self.epoll.unregister(fd)
        connection.sock.close()

    def step(self) -> bool:
        """Serve the connections that are ready and tell whether there were any."""
        events = self.epoll.poll(_POLL_SECONDS)
        connections = self.open
        for fd, _ in events:
            connection = connections[fd]
            try:
                response = connection.completed()
                if response is None:
                    continue
                if response[9:10] == b"2":
                    self.completed += 1
                else:
                    self.errors[f"status {response[9:12].decode('latin-1')}"] += 1
                connection.send_next()
            except (OSError, WireError, ValueError) as error:
                self.drop(fd, str(error))
        return bool(events)

    def run_until(self, deadline: float) -> None:
        """Serve connections until the deadline, or until the server no longer answers."""
        progress = now = time.perf_counter()
        while now < deadline and self.open:
            active = self.step()
            now = time.perf_counter()
            if active:
                progress = now
            elif now - progress > _STALL_SECONDS:
                self.errors[f"no response for {_STALL_SECONDS:g} s"] += 1
                return

    def close(self) -> None:
        for connection in self.open.values():
            connection.sock.close()
        self.open.clear()
        self.epoll.close()


def drive(
    port: int, sources: Sequence[Iterator[bytes]], *, warmup: float, seconds: float
) -> Measurement:
    """Keep one request per source under way and return the successful responses per second."""
    run = _Run()
    try:
        for requests in sources:
            run.add(Connection(port, requests))
        with no_garbage_collection():
            run.run_until(time.perf_counter() + warmup)
            before = run.completed
            watch = Stopwatch()
            run.run_until(time.perf_counter() + seconds)
            rate = (run.completed - before) / watch.elapsed()
            cpu = watch.generator_cpu()
    finally:
        run.close()
    return Measurement(rate, describe_errors(run.errors), cpu)


def describe_errors(errors: Counter[str]) -> tuple[str, ...]:
    """Return one phrase per kind of error, the most frequent first."""
    return tuple(f"{count} x {reason}" for reason, count in errors.most_common())
