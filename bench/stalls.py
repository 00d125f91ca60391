"""How long the event loop stands still: cold reads, checkpoints, compaction, reaping, deletion.

`python -m bench.stalls` does each of them in a process of its own, beside a timer that is due every
millisecond. The figure is how late the timer was at most. With `--baseline SRC`, the `src` folder
of another checkout, the two take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from headwater.protocol.expiry import Expiry
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.offsets import START
from headwater.server.app import Application
from headwater.server.messages import Head, Request, Response
from headwater.server.settings import Settings
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import Chunk, Created

_BEAT = 0.001
_TOGETHER = 64
_PATIENCE_SECONDS = 600
_BODY = b'{"kind":"event","text":"' + b"x" * 74 + b'"}'
_JSON = "application/json"
_NOW = 1_800_000_000.0
_ROOT = Path(__file__).resolve().parents[1]


class Stall:
    """How late a timer of the loop was, at most, while something was done."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + _BEAT
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self._due)
        self._due = now + _BEAT
        self._timer = self._loop.call_at(self._due, self._beat)

    def stop(self) -> None:
        self._timer.cancel()


async def measured(work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """Do something; return the longest stall, and how long it took, in seconds."""
    stall = Stall()
    begun = time.perf_counter()
    await asyncio.sleep(2 * _BEAT)
    await work()
    await asyncio.sleep(2 * _BEAT)
    stall.stop()
    return {"stall": stall.longest, "seconds": time.perf_counter() - begun}


async def _for_all(work: Callable[[int], Awaitable[object]], count: int) -> None:
    for first in range(0, count, _TOGETHER):
        numbers = range(first, min(first + _TOGETHER, count))
        await asyncio.gather(*(work(number) for number in numbers))


def _roomy(count: int, **more: float) -> DiskOptions:
    """Return options with which a checkpoint begins at the end, or for so many streams."""
    values = {"max_dirty_streams": 2 * count, "checkpoint_seconds": 3600.0, **more}
    return DiskOptions(
        durability="os",
        tail_budget=1 << 30,
        journal_bytes=1 << 28,
        journal_records=1 << 30,
        max_dirty_streams=int(values["max_dirty_streams"]),
        checkpoint_seconds=values["checkpoint_seconds"],
    )


async def _open(folder: Path, options: DiskOptions | None = None) -> DiskStore:
    store = DiskStore(folder, options or DiskOptions(durability="os"))
    await store.open()
    return store


async def _fill(store: DiskStore, count: int, ttl: int | None = None) -> None:
    async def create(number: int) -> None:
        request = Create(_JSON, Expiry(ttl=ttl), _BODY)
        assert isinstance(await store.create(f"s/{number}", request, _NOW), Created)

    await _for_all(create, count)


async def _filled(folder: Path, count: int, ttl: int | None = None) -> None:
    store = await _open(folder, _roomy(count))
    await _fill(store, count, ttl)
    await store.close()


async def cold_reads(folder: Path, count: int) -> dict[str, float]:
    """Read each stream once, 64 at a time, none of them in memory."""
    await _filled(folder, count)
    store = await _open(folder)

    async def read(number: int) -> None:
        chunk = await store.read(f"s/{number}", START, 65536, _NOW)
        assert isinstance(chunk, Chunk)

    found = await measured(lambda: _for_all(read, count))
    await store.close()
    return found


async def checkpoint(folder: Path, count: int) -> dict[str, float]:
    """Save all streams at once."""
    store = await _open(folder, _roomy(count, max_dirty_streams=count))
    await _fill(store, count - 1)

    async def save() -> None:
        request = Create(_JSON, body=_BODY)
        await store.create("last", request, _NOW)
        await _until(lambda: store.metrics.checkpoints > 0)

    found = await measured(save)
    await store.close()
    return found


async def compaction(folder: Path, count: int) -> dict[str, float]:
    """Append to a tenth of the streams again and again, and save every 0.2 s, for two rounds."""
    await _filled(folder, count)
    store = await _open(folder, _roomy(count, checkpoint_seconds=0.2))
    few = max(1, count // 10)

    async def append(number: int) -> None:
        await store.append(f"s/{number}", Append(_JSON, _BODY), _NOW)

    await _for_all(append, few)

    async def compact() -> None:
        while store.metrics.compactions < 2:
            await _for_all(append, few)

    found = await measured(compact)
    await store.close()
    return found


async def reaping(folder: Path, count: int) -> dict[str, float]:
    """Delete all streams, none of them in memory, because they have expired."""
    await _filled(folder, count, ttl=1)
    store = await _open(folder)

    async def reap() -> None:
        removed = 0
        while found := await store.expire(_NOW + 10, 1000):
            removed += found
            await asyncio.sleep(0)
        assert removed == count

    found = await measured(reap)
    await store.close()
    return found


async def deletion(folder: Path, count: int) -> dict[str, float]:
    """Delete a subscription with a link for each stream."""
    store = await _open(folder, _roomy(count))
    await _fill(store, count)
    app = Application(store, Settings(store="memory"))
    await app.start()
    path = "/v1/stream/__ds/subscriptions/all"
    headers = {b"content-type": b"application/json", b"host": b"x"}
    body = b'{"type": "pull-wake", "pattern": "s/*", "wake_stream": "wake"}'

    async def ask(method: str, content: bytes = b"") -> None:
        response = await app.handle(Request(Head(method, path, "", headers), content))
        assert isinstance(response, Response)
        assert response.status in {201, 204}

    await ask("PUT", body)
    found = await measured(lambda: ask("DELETE"))
    await app.stop()
    await store.close()
    return found


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(int(_PATIENCE_SECONDS / _BEAT)):
        if holds():
            return
        await asyncio.sleep(_BEAT)
    raise TimeoutError


ROWS = {
    "cold reads": cold_reads,
    "checkpoint": checkpoint,
    "compaction": compaction,
    "reaping": reaping,
    "deletion of a subscription": deletion,
}


def _measure_here(row: str, folder: Path, count: int) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(ROWS[row](folder, count))))


def _measure(row: str, source: Path, count: int, data_root: Path | None) -> dict[str, float]:
    """Measure a row in a process of its own, with the package in a folder."""
    with tempfile.TemporaryDirectory(prefix="headwater-stalls-", dir=data_root) as folder:
        command = [sys.executable, "-m", "bench.stalls", "--measure", row, "--data", folder]
        done = subprocess.run(
            [*command, "--streams", str(count)],
            capture_output=True,
            text=True,
            check=False,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{_ROOT}"},
        )
    if done.returncode:
        raise SystemExit(f"{row} with {source} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _compare(arguments: argparse.Namespace) -> None:
    sources = [_ROOT / "src"]
    if arguments.baseline is not None:
        sources.insert(0, arguments.baseline.resolve())
    wanted = arguments.only.split(",") if arguments.only else list(ROWS)
    names = ["baseline", "ours"][-len(sources) :]
    print(f"{arguments.streams:,} streams; longest stall of the loop, and how long it took")
    for row in wanted:
        found: list[list[dict[str, float]]] = [[] for _ in sources]
        for _ in range(arguments.repeats):
            for place, source in enumerate(sources):
                found[place].append(_measure(row, source, arguments.streams, arguments.data_root))
        cells = []
        for name, results in zip(names, found, strict=True):
            stall = statistics.median(result["stall"] for result in results)
            seconds = statistics.median(result["seconds"] for result in results)
            cells.append(f"{name} {stall * 1000:8.1f} ms in {seconds:6.2f} s")
        print(f"{row:28}{'   '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stalls", description=__doc__)
    parser.add_argument("--baseline", type=Path, help="the src folder of another checkout")
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3, help="the median counts")
    parser.add_argument("--only", help=f"some of: {', '.join(ROWS)}")
    parser.add_argument("--data-root", type=Path, help="a folder on a real disk")
    parser.add_argument("--measure", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        _measure_here(arguments.measure, arguments.data, arguments.streams)
    else:
        _compare(arguments)


if __name__ == "__main__":
    main()
