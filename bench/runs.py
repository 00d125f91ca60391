"""The run stores side by side: `python -m bench.runs` prints appends a second and projection lag.

Events are those of steps, about 500 bytes each. `one` is a single writer that
waits for each commit, `many` are 16 writers of single events at once, `batch` is one writer of
batches of 500. The lag is measured from an event's `persistedAt` to the moment at which a snapshot
with it is kept, while events come at a steady rate over 100 runs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from headwater.runs import NewEvent, RunStore, new_event, run_store
from headwater.runs.projector import Options, Projector
from tests.support.engines.postgres import start_postgres
from tests.support.engines.redis import start_redis

BATCH = 500
WRITERS = 16
RUNS = 100
TARGETS = {"sqlite": (2_000, 20_000), "postgresql": (0, 5_000)}
"""Events a second one by one (with many writers), and in batches."""
LAG_TARGET = 1.0


class Row(NamedTuple):
    """What was measured of one store."""

    store: str
    one: float
    many: float
    batch: float
    lag_p50: float
    lag_p99: float
    rate: float
    """Events a second that really came while the lag was measured."""


def make_event(run: int, number: int) -> NewEvent:
    """Make an event as engines send it: a step starts, then it completes."""
    moment = "2026-02-11T10:00:01.123Z"
    artifact = {"uri": f"s3://lake/orders/{number}.parquet", "kind": "table", "sizeBytes": 1234}
    completes = number % 2 == 1
    return new_event(
        f"bench-{run}",
        "StepCompleted" if completes else "StepStarted",
        {"completedAt": moment, "artifactRefs": [artifact], "durationMs": 1042}
        if completes
        else {"startedAt": moment},
        plan_version="1.2.0",
        step_id=f"model.orders.{number // 2}",
        logical_attempt_id=1,
    )


async def rate(store: RunStore, seconds: float, writers: int, batch: int, first_run: int) -> float:
    """Measure events a second of so many writers, each with a run of its own.

    What it takes to make the events is not counted where one writer waits for the store.
    """
    done = 0
    in_store = 0.0
    until = time.perf_counter() + seconds

    async def write(run: int) -> None:
        nonlocal done, in_store
        number = 0
        while time.perf_counter() < until:
            events = [make_event(run, number + place) for place in range(batch)]
            number += batch
            begun = time.perf_counter()
            await store.append_events(events)
            in_store += time.perf_counter() - begun
            done += batch

    begun = time.perf_counter()
    await asyncio.gather(*(write(first_run + place) for place in range(writers)))
    return done / (in_store if writers == 1 else time.perf_counter() - begun)


async def lag(store: RunStore, seconds: float, wanted: int) -> tuple[float, float, float]:
    """Measure the lag (p50, p99) while events come at a steady rate; gives the real rate too."""
    # What the other measurements wrote is not part of this: not in the figures, nor as alerts.
    await Projector(store, Options(lag_alert_seconds=3600, lag_resync_seconds=3600)).catch_up()
    projector = Projector(store)
    await projector.catch_up()
    task = asyncio.create_task(projector.run())
    begun = time.perf_counter()
    sent = 0
    waiting: set[asyncio.Task[object]] = set()
    while (now := time.perf_counter()) < begun + seconds:
        while sent < (now - begun) * wanted:
            event = make_event(1_000_000 + sent % RUNS, sent // RUNS)
            call = asyncio.ensure_future(store.append_event(event))
            waiting.add(call)
            call.add_done_callback(waiting.discard)
            sent += 1
        await asyncio.sleep(0.005)
    if waiting:
        await asyncio.gather(*waiting)
    took = time.perf_counter() - begun
    await asyncio.sleep(0.5)
    projector.stop()
    await task
    metrics = projector.metrics()
    return metrics.p50_seconds, metrics.p99_seconds, sent / took


async def measure(name: str, url: str, seconds: float, lag_seconds: float, wanted: int) -> Row:
    """Measure one store."""
    async with run_store(url) as store:
        size = min(BATCH, store.max_batch)
        one = await rate(store, seconds, 1, 1, 0)
        many = await rate(store, seconds, WRITERS, 1, 100)
        batch = await rate(store, seconds, 1, size, 1000)
        p50, p99, came = await lag(store, lag_seconds, wanted)
    return Row(name, one, many, batch, p50, p99, came)


def table(rows: list[Row]) -> str:
    """Write the rows for people."""
    lines = [
        "| store | one writer | 16 writers | in batches | lag p50 | lag p99 |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.store} | {row.one:,.0f}/s | {row.many:,.0f}/s | {row.batch:,.0f}/s "
        f"| {row.lag_p50 * 1000:.0f} ms | {row.lag_p99 * 1000:.0f} ms |"
        for row in rows
    ]
    return "\n".join(lines)


def missed(rows: list[Row], wanted: int) -> list[str]:
    """Name the targets that were missed."""
    found = []
    for row in rows:
        one, batch = TARGETS.get(row.store, (0, 0))
        if row.many < one:
            found.append(f"{row.store}: {row.many:,.0f} one by one, wanted {one:,}")
        if row.batch < batch:
            found.append(f"{row.store}: {row.batch:,.0f} in batches, wanted {batch:,}")
        if row.lag_p99 > LAG_TARGET or row.rate < wanted * 0.95:
            found.append(f"{row.store}: lag {row.lag_p99:.2f} s at {row.rate:,.0f} events a second")
    return found


def local_stores(engines: ExitStack) -> list[tuple[str, str]]:
    """Name the stores that run on one machine, with their engines started."""
    folder = Path(engines.enter_context(tempfile.TemporaryDirectory()))
    postgres = engines.enter_context(start_postgres())
    redis = engines.enter_context(start_redis(folder))
    counter = quote(redis.fresh_url())
    return [
        ("memory", "memory:"),
        ("sqlite", f"sqlite:{folder / 'runs.db'}"),
        ("postgresql", postgres.run_store_url()),
        ("postgresql, sequence", postgres.run_store_url("postgresql+sequence")),
        ("postgresql, redis", postgres.run_store_url("postgresql+redis", redis=counter)),
    ]


def main() -> int:
    """Measure the stores that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.runs", description=__doc__)
    parser.add_argument("--store", action="append", metavar="NAME=URL", help="another store")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--lag-seconds", type=float, default=60.0, help="of the lag's")
    parser.add_argument("--rate", type=int, default=1000, help="events a second for the lag")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on a missed target")
    arguments = parser.parse_args()
    with ExitStack() as engines:
        stores = [text.partition("=")[::2] for text in arguments.store or ()]
        stores = stores or local_stores(engines)
        rows = []
        for name, url in stores:
            print(f"Measuring {name} …", file=sys.stderr, flush=True)
            rows.append(
                asyncio.run(
                    measure(name, url, arguments.seconds, arguments.lag_seconds, arguments.rate)
                )
            )
    print(table(rows))
    misses = missed(rows, arguments.rate)
    for miss in misses:
        print(f"Missed: {miss}.")
    if not misses:
        print("Every target was met.")
    return 1 if arguments.strict and misses else 0


if __name__ == "__main__":
    sys.exit(main())
