"""How cost grows: with the number of streams, and with the length of one.

`python -m bench.growth` fills data directories, starts a server on each, and measures start-up,
also after a kill, memory, append rate and reads. It prints two tables and can draw them
(`--svg FILE`).
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from bench.growth_plot import Curve, draw
from bench.loadgen import drive
from bench.measure import percentile
from bench.servers import Cores, free_port
from bench.wire import HOST, JSON, Client, build_request
from headwater.protocol.lifecycle import Append, Create
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import Appended, Created

_SMALL = b'{"kind":"event","text":"' + b"x" * 74 + b'"}'
_MESSAGE = b'{"kind":"event","text":"' + b"x" * 174 + b'"}'
_BATCH = b"[" + b",".join([_MESSAGE] * 5000) + b"]"
_BATCH_BYTES = (len(_MESSAGE) + 2) * 5000
_TOGETHER = 1000
_CONNECTIONS = 64
_READS = 200
_STEP = len(_MESSAGE) + 2
"""So many bytes apart do messages begin."""
_READ_BYTES = 320 * _STEP
_APART = 5000 * _STEP
"""Reads that far apart have no block of checksums (256 KiB) in common."""
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True, slots=True)
class Started:
    """A server that answers, and how long that took."""

    port: int
    process: subprocess.Popen[bytes]
    seconds: float

    def resident_bytes(self) -> int:
        """Read how much memory it has."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def server_on(data: Path, cores: Cores) -> Iterator[Started]:
    """Start a server on a data directory, and stop it again, unless it was killed."""
    port = free_port()
    command = [sys.executable, "-m", "headwater", "serve", "--port", str(port)]
    begun = time.perf_counter()
    with cores.inherited_by_server():
        process = subprocess.Popen([*command, "--store", str(data)], stderr=subprocess.DEVNULL)
    try:
        while not _is_ready(port):
            if process.poll() is not None or time.perf_counter() - begun > 60:
                raise RuntimeError("the server did not start")
            time.sleep(0.005)
        yield Started(port, process, time.perf_counter() - begun)
    finally:
        process.terminate()
        process.wait(60)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


async def _fill_streams(data: Path, count: int) -> None:
    store = DiskStore(data, DiskOptions(durability="os"))
    await store.open()
    for first in range(0, count, _TOGETHER):
        created = await asyncio.gather(
            *(
                store.create(f"many/{number}", Create(JSON, body=_SMALL), time.time())
                for number in range(first, min(first + _TOGETHER, count))
            )
        )
        assert all(isinstance(item, Created) for item in created)
        if first % 50_000 == 0:
            print(f"  {first:,} of {count:,} streams", file=sys.stderr)
    await store.close()


async def _fill_bytes(data: Path, size: int) -> None:
    store = DiskStore(data, DiskOptions(durability="os"))
    await store.open()
    await store.create("long", Create(JSON), time.time())
    written = 0
    while written < size:
        outcome = await store.append("long", Append(JSON, _BATCH), time.time())
        assert isinstance(outcome, Appended)
        written += _BATCH_BYTES
        if written % (500 * _BATCH_BYTES) == 0:
            print(f"  {written / 1e9:.1f} of {size / 1e9:.1f} GB", file=sys.stderr)
    await store.close()


@dataclass(frozen=True, slots=True)
class ManyStreams:
    """What a number of streams costs."""

    streams: int
    start_seconds: float
    """From a directory that was closed in order."""
    resident: int
    few_appends: float
    """A second, to one stream a connection."""
    appends: float
    """A second, each to any of all streams."""
    touched: int
    """So many streams were appended to."""
    resident_after: int
    killed_start_seconds: float
    """From what a kill right behind the appends has left."""


@dataclass(frozen=True, slots=True)
class LongStream:
    """What the length of a stream costs."""

    size: int
    start_seconds: float
    tail_ms: float
    first_ms: float
    again_ms: float


def measure_streams(count: int, folder: Path, cores: Cores, seconds: float) -> ManyStreams:
    """Fill a directory with small streams and measure a server on it."""
    data = folder / f"streams-{count}"
    asyncio.run(_fill_streams(data, count))
    chosen = random.Random(1)
    touched: set[int] = set()

    def to_any_stream(request: bytes) -> Iterator[bytes]:
        while True:
            number = chosen.randrange(count)
            touched.add(number)
            yield request % number

    with server_on(data, cores) as server:
        start_seconds, before = server.seconds, server.resident_bytes()
        request = build_request("POST", server.port, "many/%d", JSON, _SMALL)
        few = [repeat(request % chosen.randrange(count)) for _ in range(_CONNECTIONS)]
        few_appends = _appends(server, few, seconds)
        # The last ones before the kill, so that they are what is found in the journal.
        appends = _appends(server, [to_any_stream(request)] * _CONNECTIONS, seconds)
        after = server.resident_bytes()
        server.kill()
    with server_on(data, cores) as server:
        result = ManyStreams(
            streams=count,
            start_seconds=start_seconds,
            resident=before,
            few_appends=few_appends,
            appends=appends,
            touched=len(touched),
            resident_after=after,
            killed_start_seconds=server.seconds,
        )
    shutil.rmtree(data)
    return result


def _appends(server: Started, sources: Sequence[Iterator[bytes]], seconds: float) -> float:
    """Give how many requests a second are answered well; all must be."""
    measured = drive(server.port, sources, warmup=0.5, seconds=seconds)
    assert not measured.failures, measured.failures
    return measured.value


def measure_length(size: int, folder: Path, cores: Cores) -> LongStream:
    """Fill a directory with one long stream and measure reads of it."""
    data = folder / f"bytes-{size}"
    asyncio.run(_fill_bytes(data, size))
    with server_on(data, cores) as server, Client(server.port) as client:
        head = client.expect_ok(build_request("GET", server.port, "long?offset=now"))
        tail = head.header("stream-next-offset") or ""
        epoch, _, end = tail.partition("_")
        tail_ms = _time(client, server.port, repeat((epoch, int(end) - _STEP, int(end)), _READS))
        begins = _anywhere(int(end))
        first_ms = _time(client, server.port, [(epoch, at, at + _READ_BYTES) for at in begins])
        # One message further: the blocks are known, and the answer is not one that is kept.
        moved = [(epoch, at + _STEP, at + _STEP + _READ_BYTES) for at in begins]
        again_ms = _time(client, server.port, moved)
        result = LongStream(size, server.seconds, tail_ms, first_ms, again_ms)
    shutil.rmtree(data)
    return result


def _anywhere(end: int) -> list[int]:
    """Choose where to read: anywhere, and no block of checksums twice."""
    chosen = random.Random(1)
    slots = range(end // _APART)
    half = _APART // _STEP // 2
    return [
        slot * _APART + chosen.randrange(half) * _STEP
        for slot in chosen.sample(slots, min(_READS, len(slots)))
    ]


def _time(client: Client, port: int, reads: Iterable[tuple[str, int, int]]) -> float:
    """Give the median time of reads from one position to another, in milliseconds."""
    times = []
    for epoch, begin, end in reads:
        query = f"offset={epoch}_{begin:016d}&until={epoch}_{end:016d}"
        request = build_request("GET", port, f"long?{query}")
        begun = time.perf_counter()
        answer = client.expect_ok(request)
        times.append(time.perf_counter() - begun)
        assert answer.header("stream-next-offset") == f"{epoch}_{end:016d}", (
            "not what was asked for"
        )
    return percentile(times, 0.5) * 1000


def _size(text: str) -> int:
    return int(text[:-2]) * _UNITS[text[-2:].upper()]


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--streams", default="10000,100000,1000000")
    parser.add_argument("--sizes", default="10MB,1GB,10GB")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of an append run")
    parser.add_argument("--data-root", type=Path, help="where data folders are made")
    parser.add_argument("--svg", type=Path, help="draw the figures")
    options = parser.parse_args()
    cores = Cores.choose()
    cores.pin_generator()
    many: list[ManyStreams] = []
    long: list[LongStream] = []
    with tempfile.TemporaryDirectory(prefix="headwater-growth-", dir=options.data_root) as scratch:
        for text in filter(None, options.streams.split(",")):
            print(f"{int(text):,} streams ...", file=sys.stderr)
            many.append(measure_streams(int(text), Path(scratch), cores, options.seconds))
        for text in filter(None, options.sizes.split(",")):
            print(f"one stream of {text} ...", file=sys.stderr)
            long.append(measure_length(_size(text), Path(scratch), cores))
    if many:
        print(
            "| streams | start | start after a kill | memory at start | appends/s to any stream "
            "| streams appended to | memory after | appends/s to 64 streams |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for row in many:
            print(
                f"| {row.streams:,} | {row.start_seconds:.2f} s | {row.killed_start_seconds:.2f} s "
                f"| {row.resident / 1e6:.0f} MB | {row.appends:,.0f} | {row.touched:,} "
                f"| {row.resident_after / 1e6:.0f} MB | {row.few_appends:,.0f} |"
            )
    if long:
        print("\n| stream | start | read at the tail, p50 | 64 KB anywhere, p50 | again, p50 |")
        print("|---|---|---|---|---|")
        for item in long:
            print(
                f"| {item.size / 1e6:,.0f} MB | {item.start_seconds:.2f} s "
                f"| {item.tail_ms:.2f} ms | {item.first_ms:.2f} ms | {item.again_ms:.2f} ms |"
            )
    if options.svg:
        curves = [
            Curve("start-up (s)", [(row.streams, row.start_seconds) for row in many]),
            Curve(
                "start after a kill (s)", [(row.streams, row.killed_start_seconds) for row in many]
            ),
            Curve("memory (MB)", [(row.streams, row.resident_after / 1e6) for row in many]),
            Curve("appends/s", [(row.streams, row.appends) for row in many]),
            Curve("tail read (ms)", [(item.size, item.tail_ms) for item in long]),
            Curve("read anywhere (ms)", [(item.size, item.first_ms) for item in long]),
        ]
        options.svg.write_text(draw([curve for curve in curves if curve.points]))
        print(f"Drawn to {options.svg}.", file=sys.stderr)


if __name__ == "__main__":
    main()
