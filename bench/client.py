"""How fast the Python client is: `python -m bench.client`.

The server runs on disk in a process and on a core of its own; the client has the other core. Each
figure is the best of several runs, because other load on the machine only ever slows one down.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from bench.servers import Cores, headwater, running
from headwater.client import AsyncClient, AsyncProducer, Client, Producer

ITEMS = 300_000
TARGETS = {"producer, items/s": 200_000, "read, MB/s": 150, "read, items/s": 300_000}
MAX_DIFFERENCE = 0.2
_RUNS = 8


def _item(number: int) -> dict[str, object]:
    return {"n": number, "text": "hello world"}


def _best(runs: int, once: Callable[[int], float]) -> float:
    return max(once(number) for number in range(runs))


def measure_sync(url: str, items: int, runs: int) -> dict[str, float]:
    """Measure the synchronous client."""
    with Client(url) as client:

        def produce(number: int) -> float:
            stream = client.stream(f"bench/sync/{number}")
            stream.create()
            began = time.perf_counter()
            with Producer(stream, "bench") as producer:
                for n in range(items):
                    producer.append(_item(n))
            return items / (time.perf_counter() - began)

        def read_bytes(_: int) -> float:
            began = time.perf_counter()
            size = sum(map(len, client.stream("bench/sync/0").read().bytes()))
            return size / 1e6 / (time.perf_counter() - began)

        def read_items(_: int) -> float:
            began = time.perf_counter()
            count = 0
            for _item in client.stream("bench/sync/0").read().items():
                count += 1
            if count != items:
                raise AssertionError(f"{count} items were read of {items}")
            return count / (time.perf_counter() - began)

        kinds = (produce, read_bytes, read_items)
        return {name: _best(runs, once) for name, once in zip(TARGETS, kinds, strict=True)} | {
            "append, p50 us": _median_append_us(client)
        }


def _median_append_us(client: Client) -> float:
    stream = client.stream("bench/sync/single")
    stream.create()
    times = []
    for number in range(500):
        began = time.perf_counter()
        stream.append(number)
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2] * 1e6


async def measure_async(url: str, items: int, runs: int) -> dict[str, float]:
    """Measure the asynchronous client."""
    async with AsyncClient(url) as client:

        async def produce(number: int) -> float:
            stream = client.stream(f"bench/async/{number}")
            await stream.create()
            began = time.perf_counter()
            async with AsyncProducer(stream, "bench") as producer:
                for n in range(items):
                    await producer.append(_item(n))
            return items / (time.perf_counter() - began)

        async def read_bytes(_: int) -> float:
            began = time.perf_counter()
            size = 0
            async for piece in client.stream("bench/async/0").read().bytes():
                size += len(piece)
            return size / 1e6 / (time.perf_counter() - began)

        async def read_items(_: int) -> float:
            began = time.perf_counter()
            count = 0
            async for _item in client.stream("bench/async/0").read().items():
                count += 1
            if count != items:
                raise AssertionError(f"{count} items were read of {items}")
            return count / (time.perf_counter() - began)

        kinds: tuple[Callable[[int], Awaitable[float]], ...] = (produce, read_bytes, read_items)
        figures = {}
        for name, once in zip(TARGETS, kinds, strict=True):
            figures[name] = max([await once(number) for number in range(runs)])
        stream = client.stream("bench/async/single")
        await stream.create()
        times = []
        for number in range(500):
            began = time.perf_counter()
            await stream.append(number)
            times.append(time.perf_counter() - began)
        return figures | {"append, p50 us": sorted(times)[len(times) // 2] * 1e6}


def main() -> int:
    """Measure, print a table, and say whether the targets are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--items", type=int, default=ITEMS, help="messages in each run")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    cores = Cores.choose()
    print("Measuring the client, about ten seconds ...", flush=True)
    with running(headwater("disk"), cores, None) as port:
        cores.pin_generator()
        url = f"http://127.0.0.1:{port}"
        blocking = measure_sync(url, arguments.items, _RUNS)
        awaited = asyncio.run(measure_async(url, arguments.items, _RUNS))
    print(f"{'':20}{'sync':>12}{'async':>12}{'target':>12}")
    missed = []
    for name, figure in blocking.items():
        target = TARGETS.get(name)
        other = awaited[name]
        print(f"{name:20}{figure:>12,.0f}{other:>12,.0f}{target or '':>12}")
        if target is not None and min(figure, other) < target:
            missed.append(name)
        if min(figure, other) < (1 - MAX_DIFFERENCE) * max(figure, other):
            missed.append(f"{name} (sync and async differ by more than a fifth)")
    print(f"Missed: {', '.join(missed)}." if missed else "Every target is met.")
    return 1 if arguments.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
