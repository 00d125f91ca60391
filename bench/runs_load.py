"""The load of the lag's measurement: single events over many runs at a steady rate.

`python -m bench.runs_load URL` is that load from a process of its own, so that the projector that
is measured shares no interpreter with it. Its last line says how many events a second really came.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from headwater.runs import NewEvent, RunStore, new_event, run_store

RUNS = 100
FIRST_RUN = 1_000_000
"""Where the runs of the load begin: those of other measurements have lower numbers."""


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


async def load(store: RunStore, seconds: float, wanted: int) -> float:
    """Append at a steady rate, each event in a call of its own; gives the rate that was reached."""
    begun = time.perf_counter()
    sent = 0
    waiting: set[asyncio.Task[object]] = set()
    while (now := time.perf_counter()) < begun + seconds:
        while sent < (now - begun) * wanted:
            event = make_event(FIRST_RUN + sent % RUNS, sent // RUNS)
            call = asyncio.ensure_future(store.append_event(event))
            waiting.add(call)
            call.add_done_callback(waiting.discard)
            sent += 1
        await asyncio.sleep(0.005)
    if waiting:
        await asyncio.gather(*waiting)
    return sent / (time.perf_counter() - begun)


async def _main(url: str, seconds: float, wanted: int) -> None:
    async with run_store(url) as store:
        print(await load(store, seconds, wanted))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.runs_load", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=1000)
    arguments = parser.parse_args()
    asyncio.run(_main(arguments.url, arguments.seconds, arguments.rate))
    sys.exit(0)
