"""How far a streaming query is behind: from an event's append to its row in a stream or a table.

Events come at a steady rate from a process of its own: `python -m bench.spark_lag URL STREAM RATE
SECONDS FILE`. It notes where each append ended and when it was due, so a server that is late adds
to the lag.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.client import Client

Start = Callable[[], StreamingQuery]

WARM_UP: Final = 10.0
"""Seconds whose events don't count: the JVM compiles the query while it runs."""
_APPENDS_PER_SECOND: Final = 100
_PATIENCE: Final = 60.0


def feed(url: str, stream: str, rate: int, seconds: float, notes: Path) -> None:
    """Append at a rate, and note the offset and the time of each append."""
    each = rate // _APPENDS_PER_SECOND
    began = time.time()
    with Client(url) as client, notes.open("w") as out:
        target = client.stream(stream)
        for turn in range(int(seconds * _APPENDS_PER_SECOND)):
            due = began + turn / _APPENDS_PER_SECOND
            time.sleep(max(0.0, due - time.time()))
            events = [_event(turn * each + number, due) for number in range(each)]
            appended = target.append(f"[{','.join(events)}]".encode())
            out.write(f"{appended.next_offset} {due}\n")


def _event(number: int, due: float) -> str:
    return (
        f'{{"type":"user","key":"user:{number % 10_000}","value":{{"n":{number},"sent":{due:.3f}}},'
        '"headers":{"operation":"upsert"}}'
    )


@contextmanager
def feeding(url: str, stream: str, rate: int, seconds: float, notes: Path) -> Iterator[None]:
    """Feed a stream meanwhile, and wait for the end of it."""
    command = [sys.executable, "-m", "bench.spark_lag", url, stream, str(rate), str(seconds)]
    process = subprocess.Popen([*command, str(notes)], cwd=Path(__file__).parents[1])
    try:
        yield
        if process.wait(seconds + _PATIENCE) != 0:
            raise RuntimeError("the events could not be appended: see above")
    finally:
        process.kill()
        process.wait()


def stream_lags(
    spark: SparkSession, url: str, rate: int, seconds: float, folder: Path
) -> list[float]:
    """Copy one stream to another, and measure when a reader of the copy has each event."""
    with Client(url) as client:
        for path in ("lag/in", "lag/out"):
            client.stream(path).create()
        lags: list[float] = []
        copy = client.stream("lag/out").follow()
        since = time.time() + WARM_UP + _start_seconds()

        def read_copy() -> None:
            for batch in copy:
                now = time.time()
                sent = [item["value"]["sent"] for item in batch.items()]
                lags.extend(now - each for each in sent if each >= since)

        reader = threading.Thread(target=read_copy)
        reader.start()
        source = spark.readStream.format("headwater").options(url=url, stream="lag/in").load()
        query = (
            source.selectExpr("'lag/out' AS stream", "value")
            .writeStream.format("headwater")
            .options(url=url, checkpointLocation=str(folder / "copying"))
            .start()
        )
        try:
            total = WARM_UP + _start_seconds() + seconds
            with feeding(url, "lag/in", rate, total, folder / "copied"):
                pass
            query.processAllAvailable()
            _wait_for(lambda: client.stream("lag/out").head().next_offset == copy.offset)
        finally:
            query.stop()
            copy.stop()
            reader.join()
    return lags


def _start_seconds() -> float:
    """Say how long a query takes to begin."""
    return 5.0


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError("the copy did not come to its end")
        time.sleep(0.05)


def table_lags(start: Start, url: str, rate: int, seconds: float, folder: Path) -> list[float]:
    """Measure when the batch of each event has ended, so that the table shows it."""
    with Client(url) as client:
        client.stream("lag/changes").create()
    notes = folder / "changed"
    query = start()
    try:
        since = time.time() + WARM_UP + _start_seconds()
        total = WARM_UP + _start_seconds() + seconds
        with feeding(url, "lag/changes", rate, total, notes):
            pass
        query.processAllAvailable()
        progress = [dict(each) for each in query.recentProgress]
    finally:
        query.stop()
    appends = [line.split() for line in notes.read_text().splitlines()]
    sent = [(offset, float(due)) for offset, due in appends]
    return [
        shown - due
        for behind, end, shown in batches(progress, "lag/changes")
        for offset, due in sent
        if behind < offset <= end and due >= since
    ]


def batches(progress: list[dict[str, Any]], stream: str) -> list[tuple[str, str, float]]:
    """Give for each batch where it begins and ends, and when it was done."""
    found = []
    for each in progress:
        source = each["sources"][0]
        behind = _offsets(source["startOffset"]).get(stream, "")
        end = _offsets(source["endOffset"]).get(stream, "")
        began = datetime.fromisoformat(each["timestamp"]).timestamp()
        if end > behind:
            found.append((behind, end, began + each["durationMs"]["triggerExecution"] / 1000))
    return found


def _offsets(told: str | None) -> dict[str, str]:
    """Read an offset of Spark, which is none before the first batch."""
    offsets = json.loads(told) if told else None
    return offsets if isinstance(offsets, dict) else {}


if __name__ == "__main__":
    feed(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
