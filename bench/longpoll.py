"""How long an append takes to reach a reader that waits in a long poll (L3)."""

from __future__ import annotations

import time

from bench.measure import Effort, Measurement, Stopwatch, percentile
from bench.wire import JSON, Client, WireError, build_request

# Long enough for every server to have parked the poll before the append is sent.
_PARK_SECONDS = 0.002
_MIN_SAMPLES = 20
_PAD = "x" * 80


def deliver_repeatedly(port: int, name: str, effort: Effort) -> Measurement:
    """Return the median milliseconds from sending an append to holding the reader's response."""
    latencies: list[float] = []
    with Client(port) as reader, Client(port) as writer:
        tail = reader.expect_ok(build_request("GET", port, f"{name}?offset=now"))
        offset, cursor = tail.header("Stream-Next-Offset"), None
        measure_from = time.perf_counter() + effort.warmup
        finish = measure_from + effort.seconds
        watch = Stopwatch()
        number = 0
        while time.perf_counter() < finish:
            number += 1
            query = f"{name}?offset={offset}&live=long-poll"
            if cursor is not None:
                query += f"&cursor={cursor}"
            reader.send(build_request("GET", port, query))
            time.sleep(_PARK_SECONDS)
            message = f'{{"n":{number},"pad":"{_PAD}"}}'.encode("ascii")
            append = build_request("POST", port, name, JSON, message)
            sent = time.perf_counter()
            writer.send(append)
            response = reader.receive()
            latency = time.perf_counter() - sent
            acknowledged = writer.receive()
            if not acknowledged.ok or response.status != 200:
                raise WireError(
                    f"append answered with {acknowledged.status}, long poll with {response.status}"
                )
            if f'"n":{number},'.encode("ascii") not in response.body:
                raise WireError(f"the long poll did not deliver message {number}")
            offset = response.header("Stream-Next-Offset")
            cursor = response.header("Stream-Cursor")
            if sent >= measure_from:
                latencies.append(latency)
        cpu = watch.generator_cpu()
    if len(latencies) < _MIN_SAMPLES:
        raise WireError(f"only {len(latencies)} deliveries in {effort.seconds:g} s")
    return Measurement(percentile(latencies, 0.5) * 1000, (), cpu)
