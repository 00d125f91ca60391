"""Appends beside many subscriptions, over many streams, that have nothing to do with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.measure import Effort, Measurement
from bench.wire import JSON, Client, build_request

SUBSCRIPTIONS = 10_000
STREAMS_EACH = 10
_CLIENTS = 16
_TURNS = 4
_TICKS = os.sysconf("SC_CLK_TCK")

Append = Callable[[int, Effort], Measurement]


def share_left(port: int, effort: Effort, append: Append) -> Measurement:
    """Measure appends without and with subscriptions in turns; gives with as a share of without.

    Both take turns on one server that has a core to itself, so the processor time that it takes for
    an append says how many of them it can do; unlike the clock, it leaves out what other processes
    do meanwhile. The best turn of each counts, since what disturbs a turn only makes it worse.
    """
    _create_streams(port)
    piece = Effort(effort.seconds / 2, 0.0, effort.subscribers)
    append(port, Effort(0.2, effort.warmup, effort.subscribers))
    without: list[float] = []
    beside: list[float] = []
    failures: list[str] = []
    cpu = 0.0
    for _ in range(_TURNS):
        for method, rates in (("DELETE", without), ("PUT", beside)):
            if method == "PUT" or beside:
                _change(port, method)
            before = _server_seconds()
            measured = append(port, piece)
            rates.append(measured.value * piece.seconds / max(_server_seconds() - before, 1e-9))
            failures += measured.failures
            cpu = max(cpu, measured.generator_cpu)
    note = (
        f"in a second of its core {max(beside):,.0f} appends beside {SUBSCRIPTIONS:,} "
        f"subscriptions over {SUBSCRIPTIONS * STREAMS_EACH:,} streams, {max(without):,.0f} without"
    )
    return Measurement(100 * max(beside) / max(without), tuple(failures), cpu, note)


def _server_seconds() -> float:
    """Give the processor time of the server, which is the only child of this process."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def _create_streams(port: int) -> None:
    """Make the streams that the subscriptions are over."""

    def create(client: Client, number: int) -> None:
        for each in range(STREAMS_EACH):
            target = f"tenant-{number}/{each}/events/log"
            client.expect_ok(build_request("PUT", port, target, JSON))

    _for_all(port, create)


def _change(port: int, method: str) -> None:
    """Make or drop all subscriptions; none of them matches what is appended to."""

    def change(client: Client, number: int) -> None:
        body = b""
        if method == "PUT":
            body = json.dumps(
                {
                    "type": "pull-wake",
                    "pattern": f"tenant-{number}/*/events/**",
                    "wake_stream": "wake/pool",
                }
            ).encode()
        target = f"__ds/subscriptions/sub-{number}"
        client.expect_ok(build_request(method, port, target, JSON, body))

    _for_all(port, change)


def _for_all(port: int, act: Callable[[Client, int], None]) -> None:
    """Do something for each subscription, on a few connections at once."""

    def work(first: int) -> None:
        with Client(port) as client:
            for number in range(first, SUBSCRIPTIONS, _CLIENTS):
                act(client, number)

    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(work, range(_CLIENTS)))
