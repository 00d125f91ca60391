"""SSE fan-out: the most deliveries per second (L1, L4), and the latency at a calm pace (L2)."""

from __future__ import annotations

import select
import time
from collections import Counter, deque
from itertools import count

from bench.audience import Audience, message_body
from bench.loadgen import Connection, describe_errors
from bench.measure import Effort, Measurement, Stopwatch, no_garbage_collection, percentile
from bench.wire import JSON, WireError, build_request

_RECEIVED_BETWEEN_APPENDS = 16
"""How many subscribers are served between two looks at the appenders."""
_PACE_SECONDS = 1 / 20
_DRAIN_SECONDS = 20.0


class Fanout:
    """One stream, its audience, and the connections that append to it, on one epoll.

    The appenders have an epoll of their own, which is registered in the common one: an appender
    stands for another client, so it must not wait until 500 subscribers have been served.
    """

    def __init__(self, port: int, name: str, subscribers: int, appenders: int) -> None:
        self.epoll = select.epoll()
        self.sent = 0
        self.acknowledged = 0
        self.errors: Counter[str] = Counter()
        requests = (build_request("POST", port, name, JSON, message_body(n)) for n in count())
        self.audience = Audience(port, name, subscribers, self.epoll)
        self._appenders: dict[int, Connection] = {}
        self._responses = select.epoll()
        self.epoll.register(self._responses.fileno(), select.EPOLLIN)
        self._idle: deque[Connection] = deque()
        for _ in range(appenders):
            # One source of numbers for all of them: a message is never sent twice.
            connection = Connection(port, requests)
            self._appenders[connection.sock.fileno()] = connection
            self._idle.append(connection)
            self._responses.register(connection.sock.fileno(), select.EPOLLIN)

    def append(self) -> bool:
        """Send the next message if an appender is idle."""
        if not self._idle:
            return False
        self._idle.popleft().send_next()
        self.sent += 1
        return True

    def append_all(self) -> None:
        """Send a message on each idle appender."""
        while self.append():
            pass

    def take_responses(self) -> None:
        """Take the responses to appends that have arrived."""
        for fd, _ in self._responses.poll(0):
            self._take_response(self._appenders[fd])

    def _take_response(self, connection: Connection) -> None:
        response = connection.completed()
        if response is None:
            return
        if response[9:10] != b"2":
            self.errors[f"status {response[9:12].decode('latin-1')}"] += 1
        self.acknowledged += 1
        self._idle.append(connection)

    def drained(self) -> bool:
        """Whether every append is acknowledged and every subscriber has every message."""
        return self.acknowledged == self.sent and min(self.audience.seen.values()) >= self.sent

    def close(self) -> None:
        """Close every connection."""
        self.audience.close()
        for connection in self._appenders.values():
            connection.sock.close()
        self._responses.close()
        self.epoll.close()


def flood(port: int, name: str, effort: Effort, appenders: int) -> Measurement:
    """Return the deliveries per second while each appender appends after every response."""
    fanout = Fanout(port, name, effort.subscribers, appenders)
    try:
        with no_garbage_collection():
            _flood_until(fanout, time.perf_counter() + effort.warmup)
            before = fanout.audience.delivered()
            watch = Stopwatch()
            _flood_until(fanout, time.perf_counter() + effort.seconds)
            # The drain belongs to the time: a server that acknowledges first and delivers later
            # has not delivered faster.
            _drain(fanout)
            rate = (fanout.audience.delivered() - before) / watch.elapsed()
            cpu = watch.generator_cpu()
        fanout.audience.verify(fanout.sent)
    finally:
        fanout.close()
    return Measurement(rate, describe_errors(fanout.errors), cpu)


def _flood_until(fanout: Fanout, deadline: float) -> None:
    audience, poll = fanout.audience, fanout.epoll.poll
    while time.perf_counter() < deadline:
        fanout.append_all()
        for number, (fd, _) in enumerate(poll(0.1)):
            if fd in audience:
                audience.receive(fd)
            if number % _RECEIVED_BETWEEN_APPENDS == 0:
                fanout.take_responses()
                fanout.append_all()


def _drain(fanout: Fanout) -> None:
    deadline = time.perf_counter() + _DRAIN_SECONDS
    while not fanout.drained():
        if time.perf_counter() > deadline:
            raise WireError(f"messages missing {_DRAIN_SECONDS:g} s after the last append")
        for fd, _ in fanout.epoll.poll(0.1):
            if fd in fanout.audience:
                fanout.audience.receive(fd)
            else:
                fanout.take_responses()


def paced(port: int, name: str, effort: Effort) -> Measurement:
    """Return the 99th percentile of delivery latency, in milliseconds, at 20 appends a second."""
    # One appender only, so that the k-th message of every subscriber is the k-th append.
    fanout = Fanout(port, name, effort.subscribers, 1)
    pace = _Pace(fanout, effort)
    try:
        with no_garbage_collection():
            watch = Stopwatch()
            pace.run()
            cpu = watch.generator_cpu()
        fanout.audience.verify(fanout.sent)
    finally:
        fanout.close()
    if not pace.latencies:
        raise WireError("nothing was delivered in the measured time")
    note = ""
    if fanout.sent < pace.total:
        note = (
            f"could not keep the pace, {fanout.sent} of {pace.total} appends were sent in time;"
            " the figure grows with the length of the run"
        )
    p99 = percentile(pace.latencies, 0.99) * 1000
    return Measurement(p99, describe_errors(fanout.errors), cpu, note)


class _Pace:
    """Appends on a fixed schedule and the latency of each of their deliveries."""

    def __init__(self, fanout: Fanout, effort: Effort) -> None:
        self.fanout = fanout
        self.total = max(1, round((effort.warmup + effort.seconds) / _PACE_SECONDS))
        self._warmup = effort.warmup
        self._measure_from = 0.0
        self.latencies: list[float] = []
        self._began: list[float] = []

    def run(self) -> None:
        """Append until the schedule ends, then wait for what is still under way."""
        start = now = time.perf_counter()
        end = start + self.total * _PACE_SECONDS
        self._measure_from = start + self._warmup
        late = False
        while now < end and self.fanout.sent < self.total:
            due = start + self.fanout.sent * _PACE_SECONDS
            wait = max(0.0, due - now)
            if not wait and self.fanout.append():
                # An append that had to wait for the one before it counts from when it was due:
                # a slow server would otherwise slow the generator down and look better for it.
                self._began.append(due if late else now)
                late = False
            elif not wait:
                late = True
                wait = _PACE_SECONDS
            self._serve(wait)
            now = time.perf_counter()
        give_up = now + _DRAIN_SECONDS
        while not self.fanout.drained():
            if time.perf_counter() > give_up:
                raise WireError(f"messages missing {_DRAIN_SECONDS:g} s after the last append")
            self._serve(_PACE_SECONDS)

    def _serve(self, wait: float) -> None:
        audience = self.fanout.audience
        for fd, _ in self.fanout.epoll.poll(wait):
            if fd not in audience:
                self.fanout.take_responses()
                continue
            already = audience.seen[fd]
            messages = audience.receive(fd)
            arrived = time.perf_counter()
            if arrived >= self._measure_from:
                began = self._began[already : already + messages]
                self.latencies += [arrived - moment for moment in began]
