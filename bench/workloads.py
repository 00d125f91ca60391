"""The workloads, as one table: how each is prepared, what it measures, and in which unit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, repeat
from typing import Literal

from bench.catchup import count_messages, read_repeatedly
from bench.live import flood, paced
from bench.loadgen import drive
from bench.longpoll import deliver_repeatedly
from bench.measure import Effort, Measurement, Stopwatch, no_garbage_collection, percentile
from bench.subscribed import share_left
from bench.wire import BINARY, JSON, Client, WireError, build_request

Setup = Callable[[int], None]
Run = Callable[[int, Effort], Measurement]

_STREAMS = 64
_BATCH_SIZE = 100
_LONG_STREAM_BATCHES = 500


def _message(size: int) -> bytes:
    head, tail = b'{"kind":"event","text":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


_SMALL = _message(100)
_BATCH = b"[" + b",".join([_message(200)] * _BATCH_SIZE) + b"]"
_BLOB = bytes(range(256)) * 4
# What a JSON stream of these batches holds: the messages, and a separator behind each.
_LONG_STREAM_BYTES = _LONG_STREAM_BATCHES * _BATCH_SIZE * 201


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the comparison."""

    name: str
    title: str
    unit: str
    better: Literal["higher", "lower"]
    setup: Setup
    run: Run


def _no_setup(port: int) -> None:
    """Start from an empty server."""


def _create(streams: int, content_type: str = JSON) -> Setup:
    def setup(port: int) -> None:
        with Client(port) as client:
            for number in range(streams):
                client.create_stream(f"s{number}", content_type)

    return setup


def _fill(batches: int, batch: bytes, messages: int) -> Setup:
    """Create a stream of equal appends and check that it reads back as that many messages."""

    def setup(port: int) -> None:
        with Client(port) as client:
            client.create_stream("s0")
            append = build_request("POST", port, "s0", JSON, batch)
            for _ in range(batches):
                client.expect_ok(append)
            found = count_messages(client, "s0")
            if found != messages:
                raise WireError(f"{messages} messages were appended and {found} read back")

    return setup


def _append(connections: int, streams: int, body: bytes, content_type: str = JSON) -> Run:
    def run(port: int, effort: Effort) -> Measurement:
        requests = [
            build_request("POST", port, f"s{number}", content_type, body)
            for number in range(streams)
        ]
        sources = [repeat(requests[number % streams]) for number in range(connections)]
        return drive(port, sources, warmup=effort.warmup, seconds=effort.seconds)

    return run


def _beside_subscriptions(port: int, effort: Effort) -> Measurement:
    return share_left(port, effort, _append(64, _STREAMS, _SMALL))


def _append_latency(port: int, effort: Effort) -> Measurement:
    append = build_request("POST", port, "s0", JSON, _SMALL)
    latencies: list[float] = []
    with Client(port) as client, no_garbage_collection():
        watch = Stopwatch()
        while watch.elapsed() < effort.warmup + effort.seconds:
            warm = watch.elapsed() >= effort.warmup
            sent = time.perf_counter()
            client.expect_ok(append)
            if warm:
                latencies.append(time.perf_counter() - sent)
        cpu = watch.generator_cpu()
    return Measurement(percentile(latencies, 0.5) * 1000, (), cpu)


def _read_small(port: int, effort: Effort) -> Measurement:
    read = build_request("GET", port, "s0?offset=-1")
    sources = [repeat(read) for _ in range(64)]
    return drive(port, sources, warmup=effort.warmup, seconds=effort.seconds)


def _read_long(port: int, effort: Effort) -> Measurement:
    return read_repeatedly(port, "s0", _LONG_STREAM_BYTES, effort)


def _fan_out(port: int, effort: Effort) -> Measurement:
    return flood(port, "s0", effort, appenders=4)


def _fan_out_one_writer(port: int, effort: Effort) -> Measurement:
    return flood(port, "s0", effort, appenders=1)


def _fan_out_paced(port: int, effort: Effort) -> Measurement:
    return paced(port, "s0", effort)


def _long_poll(port: int, effort: Effort) -> Measurement:
    return deliver_repeatedly(port, "s0", effort)


def _create_streams(port: int, effort: Effort) -> Measurement:
    # One source for all connections: no name is used twice.
    requests = (build_request("PUT", port, f"created-{number}", JSON) for number in count())
    return drive(port, [requests] * 64, warmup=effort.warmup, seconds=effort.seconds)


# A row of two lines per workload: the formatter would give every argument a line of its own.
# fmt: off
WORKLOADS: tuple[Workload, ...] = (
    Workload("A1", "append 100 B, 64 connections, 64 streams", "req/s", "higher",
             _create(_STREAMS), _append(64, _STREAMS, _SMALL)),
    Workload("A2", "append 100 B, 256 connections, 64 streams", "req/s", "higher",
             _create(_STREAMS), _append(256, _STREAMS, _SMALL)),
    Workload("A3", "append 100 B, 64 connections, one stream", "req/s", "higher",
             _create(1), _append(64, 1, _SMALL)),
    Workload("A4", "append 100 B, one connection, p50", "ms", "lower",
             _create(1), _append_latency),
    Workload("A5", "append batches of 100 x 200 B, 64 connections", "req/s", "higher",
             _create(_STREAMS), _append(64, _STREAMS, _BATCH)),
    Workload("A6", "append 1 KiB binary, 64 connections", "req/s", "higher",
             _create(_STREAMS, BINARY), _append(64, _STREAMS, _BLOB, BINARY)),
    Workload("R1", "read a 10 MB JSON stream through", "MB/s", "higher",
             _fill(_LONG_STREAM_BATCHES, _BATCH, _LONG_STREAM_BATCHES * _BATCH_SIZE), _read_long),
    Workload("R2", "read a 1 KB stream, 64 connections", "req/s", "higher",
             _fill(10, _SMALL, 10), _read_small),
    Workload("L1", "SSE fan-out at full speed", "deliveries/s", "higher",
             _create(1), _fan_out),
    Workload("L2", "SSE fan-out at 20 appends/s, p99", "ms", "lower",
             _create(1), _fan_out_paced),
    Workload("L3", "append to long-poll reader, p50", "ms", "lower",
             _create(1), _long_poll),
    Workload("L4", "SSE fan-out, one writer that waits for each response", "deliveries/s", "higher",
             _create(1), _fan_out_one_writer),
    Workload("C1", "create streams, 64 connections", "streams/s", "higher",
             _no_setup, _create_streams),
    Workload("S1", "A1 beside 10,000 subscriptions, 100,000 streams", "% of none", "higher",
             _create(_STREAMS), _beside_subscriptions),
)
# fmt: on
