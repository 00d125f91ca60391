"""The pipeline on Spark: `python -m bench.spark`.

Server, Spark and its Python workers share the cores of this machine. Reads take turns with Spark's
own JSON reader on the same events in a local file; the first turn, in which the JVM compiles, does
not count, and each figure is the median of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.measure import percentile
from bench.servers import Cores, headwater, running
from bench.spark_data import SCHEMA, fill, long_events, short_events
from bench.spark_lag import stream_lags, table_lags
from headwater.spark import session
from headwater.spark.jobs.materialize import materialize

ROOT: Final = Path(__file__).parents[1]
READ_TARGET: Final = 0.8
EVENTS_TARGET: Final = 250_000
P50_TARGET, P99_TARGET = 1.0, 2.0
MEMORY_TARGET: Final = 1.25
ROWS: Final = ("read", "materialize", "lag", "idle", "memory")
_WAYS: Final = {
    "read": ("reading", (0.1, 1)),
    "keep": ("keeping tables and their history of", (1, 3)),
}
"""What a driver does with a stream, and with which parts of a full length."""
_HEAP: Final = "512m"
_FULL_HEAP: Final = {
    "spark.driver.memory": _HEAP,
    "spark.driver.extraJavaOptions": f"-Xms{_HEAP} -XX:+AlwaysPreTouch",
}
"""Java takes its heap little by little, and collects no garbage before it must. Here it has all of
it from the start: what rises then is what lies beside it, or lives in it."""
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; without a target it is there for comparison."""

    what: str
    figure: str
    target: str = ""
    met: bool = True


def started(settings: dict[str, str] | None = None) -> SparkSession:
    """Start Spark on all cores."""
    return session("bench", settings={**_SETTINGS, **(settings or {})})


def read_nowhere(rows: DataFrame) -> float:
    """Read everything into a sink that does nothing; gives the seconds."""
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


# Reading


def measure_reads(spark: SparkSession, url: str, folder: Path, size: int, turns: int) -> list[Row]:
    """Read a stream in all modes, in turns with Spark's reader of the same events."""
    file = folder / "events.json"
    events, _ = fill(url, "bench/read", long_events(), size=size, file=file)
    megabytes = file.stat().st_size / 1e6

    def stream(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("headwater").options(url=url, stream="bench/read", **options)
        return (reader.schema(schema) if schema else reader).load()

    ways: dict[str, Callable[[], DataFrame]] = {
        "Spark's JSON reader on a file": lambda: spark.read.schema(SCHEMA).json(str(file)),
        "mode json, the same schema": lambda: stream(SCHEMA),
        "mode raw, then from_json": lambda: stream().select(f.from_json("value", SCHEMA)),
        "mode state": lambda: stream(mode="state"),
        "mode raw": stream,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            took = read_nowhere(way())
            if turn:
                seconds[name].append(took)
    file.unlink()
    middle = {name: median(each) for name, each in seconds.items()}
    theirs, ours, *others = middle
    ratio = middle[theirs] / middle[ours]
    target = f"{READ_TARGET} x"
    speeds = {
        name: f"{megabytes / each:,.0f} MB/s, {events / each:,.0f} events/s"
        for name, each in middle.items()
    }
    return [
        Row(f"read {megabytes:,.0f} MB: {theirs}", speeds[theirs]),
        Row(ours, f"{speeds[ours]}: {ratio:.2f} x", target, ratio >= READ_TARGET),
        *(Row(name, f"{speeds[name]}: {middle[theirs] / middle[name]:.2f} x") for name in others),
    ]


# Tables


def measure_materialize(
    spark: SparkSession, url: str, folder: Path, count: int, keys: int
) -> list[Row]:
    """Bring changes into a table of the current state, after a small stream has warmed up."""

    def materialized(stream: str, *, history: bool = False) -> float:
        place = folder / stream / ("history" if history else "current")
        began = time.perf_counter()
        query = materialize(
            spark,
            {"url": url, "stream": stream},
            tables=str(place / "tables"),
            checkpoint=str(place / "checkpoint"),
            schemas={"user": "id long, name string, score long"},
            history=history,
            trigger={"availableNow": True},
        )
        query.awaitTermination()
        return time.perf_counter() - began

    fill(url, "bench/warm", short_events(keys // 10), count=count // 10)
    fill(url, "bench/changes", short_events(keys), count=count)
    materialized("bench/warm")
    seconds = materialized("bench/changes")
    rate = count / seconds
    what = f"materialise {count:,} changes of {keys:,} keys"
    figure = f"{rate:,.0f} events/s, {seconds:.1f} s"
    kept = materialized("bench/changes", history=True)
    return [
        Row(what, figure, f"{EVENTS_TARGET:,}/s", rate >= EVENTS_TARGET),
        Row("the same, and every version as well", f"{count / kept:,.0f} events/s, {kept:.1f} s"),
    ]


# Lag


def measure_lags(
    spark: SparkSession, url: str, folder: Path, rate: int, seconds: float
) -> list[Row]:
    """Follow a steady stream of events into a stream, and into a table."""
    copied = stream_lags(spark, url, rate, seconds, folder)
    changed = table_lags(
        lambda: materialize(
            spark,
            {"url": url, "stream": "lag/changes"},
            tables=str(folder / "lag" / "tables"),
            checkpoint=str(folder / "lag" / "checkpoint"),
            history=False,
        ),
        url,
        rate,
        seconds,
        folder,
    )
    return [lag_row("stream", copied, rate), lag_row("table", changed, rate)]


def measure_idle(spark: SparkSession, url: str, folder: Path, seconds: float) -> list[Row]:
    """Let a query wait for a stream that gets nothing, and count the processor time it takes."""
    fill(url, "bench/idle", short_events(10), count=1000)
    query = (
        spark.readStream.format("headwater")
        .options(url=url, stream="bench/idle")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "idle"))
        .start()
    )
    query.processAllAvailable()
    time.sleep(5)
    before = processor_seconds()
    time.sleep(seconds)
    share = (processor_seconds() - before) / seconds
    query.stop()
    return [Row(f"an idle query, {seconds:g} s, server included", f"{share:.1%} of a core")]


def processor_seconds() -> float:
    """Add up the processor time of this process and all below it."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(ticks[pid] for pid in below) / os.sysconf("SC_CLK_TCK")


def lag_row(where: str, lags: list[float], rate: int) -> Row:
    """Tell how late events were."""
    middle, late = percentile(lags, 0.5), percentile(lags, 0.99)
    return Row(
        f"event to {where}, {rate:,} a second",
        f"p50 {middle:.2f} s, p99 {late:.2f} s",
        f"{P50_TARGET:g} s, {P99_TARGET:g} s",
        middle <= P50_TARGET and late <= P99_TARGET,
    )


# Memory


def measure_memory(url: str, size: int) -> list[Row]:
    """Read a short and a long stream, and keep tables of them, each by a driver of its own."""
    rows: list[Row] = []
    for way, (what, parts) in _WAYS.items():
        lengths = [int(size * part) for part in parts]
        for length in lengths:
            fill(url, f"bench/{way}/{length}", long_events(), size=length)
        small, large = (_held(way, url, f"bench/{way}/{length}") for length in lengths)
        rows += [
            Row(
                f"memory of the driver, {name}: {what} "
                f"{lengths[0] / 1e6:,.0f} and {lengths[1] / 1e6:,.0f} MB",
                f"{small[name]:,.0f} MB and {held:,.0f} MB",
                f"{MEMORY_TARGET} x",
                held <= MEMORY_TARGET * small[name],
            )
            for name, held in large.items()
        ]
    return rows


def _held(way: str, url: str, stream: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.spark", "--driver", way, url, stream]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    held: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return held


def drive(way: str, url: str, stream: str) -> dict[str, float]:
    """Read a stream in this process, and say how many megabytes that took at most.

    What lives in the JVM's heap is asked for at the end, when the stream has been read.
    """
    spark = started(_FULL_HEAP)
    if way == "read":
        options = {"url": url, "stream": stream, "mode": "state"}
        read_nowhere(spark.read.format("headwater").options(**options).load())
    else:
        with tempfile.TemporaryDirectory(prefix="headwater-bench-") as place:
            materialize(
                spark,
                {"url": url, "stream": stream, "maxBytesPerTrigger": "25m"},
                tables=f"{place}/tables",
                checkpoint=f"{place}/checkpoint",
                trigger={"availableNow": True},
            ).awaitTermination()
    ours = os.getpid()
    children = Path(f"/proc/{ours}/task/{ours}/children").read_text().split()
    (java,) = (pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "java\n")
    found = {
        "Python": most_memory(ours),
        f"JVM with its heap of {_HEAP}": most_memory(int(java)),
        "what lives in the heap": living_in_heap(spark),
    }
    spark.stop()
    return found


def living_in_heap(spark: SparkSession) -> float:
    """Give the megabytes that are left in the JVM's heap when its garbage is collected."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    gateway.jvm.System.gc()
    heap = gateway.jvm.java.lang.Runtime.getRuntime()
    return (int(heap.totalMemory()) - int(heap.freeMemory())) / 1e6


def most_memory(pid: int) -> float:
    """Give the most megabytes that a process has held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kilobytes) * 1024 / 1e6


# The table of all


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Measure what is asked for, on a fresh server on disk."""
    chosen = arguments.only.split(",")
    size = arguments.megabytes * 1_000_000
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as scratch:
        folder = Path(scratch)
        with running(headwater("disk"), Cores(None, None), None) as port:
            url = f"http://127.0.0.1:{port}"
            if "memory" in chosen:
                say("the driver's memory")
                rows += measure_memory(url, size)
            spark = started() if set(chosen) - {"memory"} else None
            if spark is not None and "read" in chosen:
                say("reads")
                rows += measure_reads(spark, url, folder, size, arguments.turns)
            if spark is not None and "materialize" in chosen:
                say("tables")
                rows += measure_materialize(spark, url, folder, arguments.events, arguments.keys)
            if spark is not None and "lag" in chosen:
                say("lag")
                rows += measure_lags(spark, url, folder, arguments.rate, arguments.lag_seconds)
            if spark is not None and "idle" in chosen:
                say("an idle query")
                rows += measure_idle(spark, url, folder, arguments.idle_seconds)
            if spark is not None:
                spark.stop()
    return rows


def say(what: str) -> None:
    """Tell what is going on."""
    print(f"Measuring {what} …", file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    """Lay the rows out."""
    width = max(len(row.what) for row in rows) + 2
    middle = max(len(row.figure) for row in rows) + 2
    return "\n".join(f"{row.what:{width}}{row.figure:{middle}}{_verdict(row)}" for row in rows)


def _verdict(row: Row) -> str:
    return f"target {row.target}, {'met' if row.met else 'MISSED'}" if row.target else ""


def main() -> int:
    """Measure, print a table, and say whether the targets are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--only", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--megabytes", type=int, default=1000, help="of the stream that is read")
    parser.add_argument("--turns", type=int, default=3, help="of the reads")
    parser.add_argument("--events", type=int, default=5_000_000, help="to materialise")
    parser.add_argument("--keys", type=int, default=500_000, help="that they are changes of")
    parser.add_argument("--rate", type=int, default=1000, help="events a second for the lag")
    parser.add_argument("--lag-seconds", type=float, default=60.0, help="of each lag")
    parser.add_argument("--idle-seconds", type=float, default=30.0, help="that a query waits")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on a missed target")
    parser.add_argument("--driver", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.driver is not None:
        print(json.dumps(drive(*arguments.driver)))
        return 0
    rows = measure(arguments)
    print(table(rows))
    missed = [row.what for row in rows if not row.met]
    print(f"Missed: {'; '.join(missed)}." if missed else "Every target was met.")
    return 1 if arguments.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
