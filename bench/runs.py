"""The run stores side by side: `python -m bench.runs` prints appends a second and projection lag.

Events are those of steps, about 500 bytes each. `one` is a single writer that
waits for each commit, `many` are 16 writers of single events at once, `batch` is one writer of
batches of 500. The lag is measured from an event's `persistedAt` to the moment at which a snapshot
with it is kept, while single events come at a steady rate over 100 runs for a minute. They come
from a process of their own, but for the store in memory, which has only one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from bench.runs_load import RUNS, load, make_event
from headwater.runs import RunStore, run_store
from headwater.runs.projector import Options, Projector
from tests.support.engines.postgres import start_postgres
from tests.support.engines.redis import start_redis
from tests.support.server import ServerProcess

BATCH = 500
WRITERS = 16
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


async def lag(store: RunStore, url: str, seconds: float, wanted: int) -> tuple[float, float, float]:
    """Measure the lag (p50, p99) while events come at a steady rate; gives the real rate too."""
    # What the other measurements wrote is not part of this: not in the figures, nor as alerts.
    await Projector(store, Options(lag_alert_seconds=3600, lag_resync_seconds=3600)).catch_up()
    every = round(2 * seconds * wanted)
    projector = Projector(store, Options(measured_events=every))
    await projector.catch_up()
    task = asyncio.create_task(projector.run())
    try:
        if store.is_shared:
            came = await _load_from_outside(url, seconds, wanted)
        else:
            came = await load(store, seconds, wanted)
        for _ in range(300):  # what came last counts too
            if projector.metrics().events_applied >= round(came * seconds):
                break
            await asyncio.sleep(0.1)
    finally:
        projector.stop()
        await task
    metrics = projector.metrics()
    return metrics.p50_seconds, metrics.p99_seconds, came


async def _load_from_outside(url: str, seconds: float, wanted: int) -> float:
    """Have another process send the events; gives the rate that it reached."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.runs_load", url),
        *("--seconds", str(seconds), "--rate", str(wanted)),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the load on {url} ended with {process.returncode}; it said why above")
    return float(said.split()[-1])


async def measure(name: str, url: str, seconds: float, lag_seconds: float, wanted: int) -> Row:
    """Measure one store."""
    async with run_store(url) as store:
        size = min(BATCH, store.max_batch)
        one = many = batch = 0.0
        if seconds:
            one = await rate(store, seconds, 1, 1, 0)
            many = await rate(store, seconds, WRITERS, 1, 100)
            batch = await rate(store, seconds, 1, size, 1000)
        p50, p99, came = await lag(store, url, lag_seconds, wanted)
    return Row(name, one, many, batch, p50, p99, came)


def table(rows: list[Row], wanted: int, lag_seconds: float) -> str:
    """Write the rows for people."""
    load = f"{wanted:,} events a second over {RUNS} runs for {lag_seconds:g} s"
    lines = [
        f"Lag at {load}, to be at most {LAG_TARGET:g} s at p99.",
        "",
        "| store | one writer | 16 writers | in batches | came | lag p50 | lag p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.store} | {row.one:,.0f}/s | {row.many:,.0f}/s | {row.batch:,.0f}/s "
        f"| {row.rate:,.0f}/s | {row.lag_p50 * 1000:.0f} ms | {row.lag_p99 * 1000:.0f} ms |"
        for row in rows
    ]
    return "\n".join(lines)


def missed(rows: list[Row], wanted: int) -> list[str]:
    """Name the targets that were missed."""
    found = []
    for row in rows:
        one, batch = TARGETS.get(row.store, (0, 0))
        if 0 < row.many < one:
            found.append(f"{row.store}: {row.many:,.0f} one by one, wanted {one:,}")
        if 0 < row.batch < batch:
            found.append(f"{row.store}: {row.batch:,.0f} in batches, wanted {batch:,}")
        if row.lag_p99 > LAG_TARGET or row.rate < wanted * 0.95:
            found.append(f"{row.store}: lag {row.lag_p99:.2f} s at {row.rate:,.0f} events a second")
    return found


def memory(_: ExitStack) -> str:
    """Nothing to start."""
    return "memory:"


def sqlite(engines: ExitStack) -> str:
    """A file."""
    folder = Path(engines.enter_context(tempfile.TemporaryDirectory()))
    return f"sqlite:{folder / 'runs.db'}"


def postgresql(engines: ExitStack) -> str:
    """Numbered by the run's row."""
    return engines.enter_context(start_postgres()).run_store_url()


def sequence(engines: ExitStack) -> str:
    """Numbered by sequences."""
    return engines.enter_context(start_postgres()).run_store_url("postgresql+sequence")


def redis(engines: ExitStack) -> str:
    """Numbered by Redis."""
    folder = Path(engines.enter_context(tempfile.TemporaryDirectory()))
    counter = quote(engines.enter_context(start_redis(folder)).fresh_url())
    return engines.enter_context(start_postgres()).run_store_url("postgresql+redis", redis=counter)


def streams(engines: ExitStack) -> str:
    """A server of ours, on disk."""
    folder = engines.enter_context(tempfile.TemporaryDirectory())
    server = engines.enter_context(ServerProcess("--store", folder))
    return f"streams+{server.url}/runs"


LOCAL: dict[str, Callable[[ExitStack], str]] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgresql": postgresql,
    "postgresql-sequence": sequence,
    "postgresql-redis": redis,
    "streams": streams,
}
"""The stores that run on one machine; each starts what it needs and gives its URL."""


def main() -> int:
    """Measure the stores that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.runs", description=__doc__)
    parser.add_argument("--only", metavar="NAMES", help=f"of {','.join(LOCAL)}")
    parser.add_argument("--store", action="append", metavar="NAME=URL", help="another store")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each rate; 0 for none")
    parser.add_argument("--lag-seconds", type=float, default=60.0, help="of the lag's")
    parser.add_argument("--rate", type=int, default=1000, help="events a second for the lag")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on a missed target")
    arguments = parser.parse_args()
    others = dict(text.partition("=")[::2] for text in arguments.store or ())
    names = arguments.only.split(",") if arguments.only else [] if others else list(LOCAL)
    if unknown := set(names) - set(LOCAL):
        parser.error(f"there is no store {', '.join(unknown)}; there are {', '.join(LOCAL)}")
    rows = []
    for name in (*names, *others):
        print(f"Measuring {name} …", file=sys.stderr, flush=True)
        # One engine at a time: two of them would share the cores.
        with ExitStack() as engines:
            url = others[name] if name in others else LOCAL[name](engines)
            timing = (arguments.seconds, arguments.lag_seconds, arguments.rate)
            rows.append(asyncio.run(measure(name, url, *timing)))
    print(table(rows, arguments.rate, arguments.lag_seconds))
    misses = missed(rows, arguments.rate)
    for miss in misses:
        print(f"Missed: {miss}.")
    if not misses:
        print("Every target was met.")
    return 1 if arguments.strict and misses else 0


if __name__ == "__main__":
    sys.exit(main())
