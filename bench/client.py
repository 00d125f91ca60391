"""How fast the Python client is: `python -m bench.client`.

The server runs on disk in a process and on a core of its own; the client has the other core. Both
clients take turns, and each figure is the median of their turns.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

from bench.servers import Cores, headwater, running
from headwater.client import AsyncClient, AsyncProducer, Client, Producer

ITEMS = 300_000
TARGETS = {"producer, items/s": 200_000, "read, MB/s": 150, "read, items/s": 300_000}
MAX_DIFFERENCE = 0.2
_TURNS = 7
_APPENDS = 200
_READS = 20
"""Of the whole stream: one takes only some milliseconds."""


def _item(number: int) -> dict[str, object]:
    """About 100 bytes, as in the other benchmarks."""
    return {
        "n": number,
        "user": "ada@example.com",
        "text": "a line that somebody wrote in a chat",
        "seen": False,
    }


def measure_sync(url: str, items: int, turn: int) -> dict[str, float]:
    """Measure the synchronous client once."""
    with Client(url) as client:
        stream = client.stream(f"bench/sync/{turn}")
        stream.create()

        def produce() -> float:
            began = time.perf_counter()
            with Producer(stream, "bench") as producer:
                for n in range(items):
                    producer.append(_item(n))
            return items / (time.perf_counter() - began)

        def read_bytes() -> float:
            began = time.perf_counter()
            size = 0
            for _ in range(_READS):
                for piece in stream.read().bytes():
                    size += len(piece)
            return size / 1e6 / (time.perf_counter() - began)

        def read_items() -> float:
            began = time.perf_counter()
            count = 0
            for _item in stream.read().items():
                count += 1
            if count != items:
                raise AssertionError(f"{count} items were read of {items}")
            return count / (time.perf_counter() - began)

        kinds = (produce, read_bytes, read_items)
        figures = {name: once() for name, once in zip(TARGETS, kinds, strict=True)}
        times = []
        for number in range(_APPENDS):
            began = time.perf_counter()
            stream.append(number)
            times.append(time.perf_counter() - began)
        return figures | {"append, p50 us": median(times) * 1e6}


async def measure_async(url: str, items: int, turn: int) -> dict[str, float]:
    """Measure the asynchronous client once."""
    async with AsyncClient(url) as client:
        stream = client.stream(f"bench/async/{turn}")
        await stream.create()

        async def produce() -> float:
            began = time.perf_counter()
            async with AsyncProducer(stream, "bench") as producer:
                for n in range(items):
                    await producer.append(_item(n))
            return items / (time.perf_counter() - began)

        async def read_bytes() -> float:
            began = time.perf_counter()
            size = 0
            for _ in range(_READS):
                async for piece in stream.read().bytes():
                    size += len(piece)
            return size / 1e6 / (time.perf_counter() - began)

        async def read_items() -> float:
            began = time.perf_counter()
            count = 0
            async for _item in stream.read().items():
                count += 1
            if count != items:
                raise AssertionError(f"{count} items were read of {items}")
            return count / (time.perf_counter() - began)

        kinds: tuple[Callable[[], Awaitable[float]], ...] = (produce, read_bytes, read_items)
        figures = {name: await once() for name, once in zip(TARGETS, kinds, strict=True)}
        times = []
        for number in range(_APPENDS):
            began = time.perf_counter()
            await stream.append(number)
            times.append(time.perf_counter() - began)
        return figures | {"append, p50 us": median(times) * 1e6}


def main() -> int:
    """Measure, print a table, and say whether the targets are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--items", type=int, default=ITEMS, help="messages in each run")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    cores = Cores.choose()
    print("Measuring the client, about twenty seconds ...", flush=True)
    blocking: list[dict[str, float]] = []
    awaited: list[dict[str, float]] = []
    with running(headwater("disk"), cores, None) as port:
        cores.pin_generator()
        url = f"http://127.0.0.1:{port}"
        for turn in range(_TURNS):
            blocking.append(measure_sync(url, arguments.items, turn))
            awaited.append(asyncio.run(measure_async(url, arguments.items, turn)))
    print(f"{'':20}{'sync':>12}{'async':>12}{'target':>12}")
    missed = []
    for name in blocking[0]:
        target = TARGETS.get(name)
        figure, other = (median(turn[name] for turn in turns) for turns in (blocking, awaited))
        print(f"{name:20}{figure:>12,.0f}{other:>12,.0f}{target or '':>12}")
        if target is not None and min(figure, other) < target:
            missed.append(name)
        if min(figure, other) < (1 - MAX_DIFFERENCE) * max(figure, other):
            missed.append(f"{name} (sync and async differ by more than a fifth)")
    print(f"Missed: {', '.join(missed)}." if missed else "Every target is met.")
    return 1 if arguments.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
