"""How fast the Python client is: `python -m bench.client`.

The server runs on disk in a process and on a core of its own; the client has the other core. Both
clients take turns at each kind of work; figures are medians, and so is the ratio of the two, which
is taken turn by turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from statistics import median

from bench.servers import Cores, headwater, running
from headwater.client import AsyncClient, AsyncProducer, Client, Producer

ITEMS = 300_000
TARGETS = {"producer, items/s": 200_000, "read, MB/s": 150, "read, items/s": 300_000}
MAX_DIFFERENCE = 0.2
WORK = {
    "producer, items/s": "produce",
    "read, MB/s": "read_bytes",
    "read, items/s": "read_items",
    "append, p50 us": "append",
}
_TURNS = 11
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


class Sync:
    """The synchronous client at work on one stream."""

    def __init__(self, client: Client, name: str, items: int) -> None:
        self.items = items
        self.stream = client.stream(name)
        self.stream.create()

    def produce(self) -> float:
        """Send all items, and give how many a second."""
        began = time.perf_counter()
        with Producer(self.stream, "bench") as producer:
            for n in range(self.items):
                producer.append(_item(n))
        return self.items / (time.perf_counter() - began)

    def read_bytes(self) -> float:
        """Read the stream some times, and give megabytes a second."""
        began = time.perf_counter()
        size = 0
        for _ in range(_READS):
            for piece in self.stream.read().bytes():
                size += len(piece)
        return size / 1e6 / (time.perf_counter() - began)

    def read_items(self) -> float:
        """Read the stream as parsed items, and give how many a second."""
        began = time.perf_counter()
        count = 0
        for _item in self.stream.read().items():
            count += 1
        return _all_of(count, self.items) / (time.perf_counter() - began)

    def append(self) -> float:
        """Append one by one, and give the median time."""
        times = []
        for number in range(_APPENDS):
            began = time.perf_counter()
            self.stream.append(number)
            times.append(time.perf_counter() - began)
        return median(times) * 1e6


class Async:
    """The asynchronous client at the same work."""

    def __init__(self, client: AsyncClient, name: str, items: int) -> None:
        self.items = items
        self.stream = client.stream(name)

    async def produce(self) -> float:
        """Send all items, and give how many a second."""
        await self.stream.create()
        began = time.perf_counter()
        async with AsyncProducer(self.stream, "bench") as producer:
            for n in range(self.items):
                await producer.append(_item(n))
        return self.items / (time.perf_counter() - began)

    async def read_bytes(self) -> float:
        """Read the stream some times, and give megabytes a second."""
        began = time.perf_counter()
        size = 0
        for _ in range(_READS):
            async for piece in self.stream.read().bytes():
                size += len(piece)
        return size / 1e6 / (time.perf_counter() - began)

    async def read_items(self) -> float:
        """Read the stream as parsed items, and give how many a second."""
        began = time.perf_counter()
        count = 0
        async for _item in self.stream.read().items():
            count += 1
        return _all_of(count, self.items) / (time.perf_counter() - began)

    async def append(self) -> float:
        """Append one by one, and give the median time."""
        times = []
        for number in range(_APPENDS):
            began = time.perf_counter()
            await self.stream.append(number)
            times.append(time.perf_counter() - began)
        return median(times) * 1e6


def _all_of(count: int, items: int) -> int:
    if count != items:
        raise AssertionError(f"{count} items were read of {items}")
    return count


Turn = dict[str, tuple[float, float]]
"""By kind of work, the figures of both clients."""


def take_turn(url: str, items: int, turn: int) -> Turn:
    """Have both clients do each kind of work, right after one another."""
    figures: Turn = {}
    with Client(url) as client, asyncio.Runner() as loop:
        awaited_client = AsyncClient(url)
        blocking = Sync(client, f"bench/sync/{turn}", items)
        awaited = Async(awaited_client, f"bench/async/{turn}", items)
        for name, work in WORK.items():
            # A machine gets faster and slower: neither client is always the first.
            if turn % 2:
                second = loop.run(getattr(awaited, work)())
                first = getattr(blocking, work)()
            else:
                first = getattr(blocking, work)()
                second = loop.run(getattr(awaited, work)())
            figures[name] = (first, second)
        loop.run(awaited_client.close())
    return figures


def main() -> int:
    """Measure, print a table, and say whether the targets are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--items", type=int, default=ITEMS, help="messages in each run")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    cores = Cores.choose()
    print("Measuring the client, about half a minute ...", flush=True)
    with running(headwater("disk"), cores, None) as port:
        cores.pin_generator()
        url = f"http://127.0.0.1:{port}"
        turns = [take_turn(url, arguments.items, turn) for turn in range(_TURNS)]
    print(f"{'':20}{'sync':>12}{'async':>12}{'async/sync':>12}{'target':>12}")
    missed = []
    for name in WORK:
        target = TARGETS.get(name)
        figure, other = (median(turn[name][which] for turn in turns) for which in (0, 1))
        # Of pairs that were measured within a second: the machine is about the same to both.
        ratio = median(turn[name][1] / turn[name][0] for turn in turns)
        print(f"{name:20}{figure:>12,.0f}{other:>12,.0f}{ratio:>12.2f}{target or '':>12}")
        if target is not None and min(figure, other) < target:
            missed.append(name)
        if not 1 - MAX_DIFFERENCE <= ratio <= 1 / (1 - MAX_DIFFERENCE):
            missed.append(f"{name} (sync and async differ by more than a fifth)")
    print(f"Missed: {', '.join(missed)}." if missed else "Every target is met.")
    return 1 if arguments.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
