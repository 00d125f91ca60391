"""Appends beside many subscriptions that have nothing to do with them."""

from __future__ import annotations

import json
from collections.abc import Callable

from bench.measure import Effort, Measurement
from bench.wire import JSON, Client, build_request

SUBSCRIPTIONS = 10_000
_TURNS = 6

Append = Callable[[int, Effort], Measurement]


def share_left(port: int, effort: Effort, append: Append) -> Measurement:
    """Measure appends without and with subscriptions in turns; gives with as a share of without.

    The turns follow each other on the same server, and the best of each counts: what else the
    machine does takes away from one turn or another, and never adds.
    """
    piece = Effort(effort.seconds / 3, effort.warmup / 3, effort.subscribers)
    without: list[Measurement] = []
    beside: list[Measurement] = []
    for _ in range(_TURNS):
        without.append(append(port, piece))
        _change(port, "PUT")
        beside.append(append(port, piece))
        _change(port, "DELETE")
    failures = tuple(reason for one in (*without, *beside) for reason in one.failures)
    before, after = (max(one.value for one in part) for part in (without, beside))
    cpu = max(one.generator_cpu for one in (*without, *beside))
    note = f"{after:,.0f} appends/s beside {SUBSCRIPTIONS:,} subscriptions, {before:,.0f} without"
    return Measurement(100 * after / max(before, 1e-9), failures, cpu, note)


def _change(port: int, method: str) -> None:
    """Make or drop all subscriptions; none of them matches what is appended to."""
    with Client(port) as client:
        for number in range(SUBSCRIPTIONS):
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
