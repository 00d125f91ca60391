"""The figures of running pipelines, from Spark's listener to whoever asks.

Spark calls the listener in a thread of its own. Figures are kept here under a lock, and written out
as text in the format of Prometheus; `metrics_server` and `metrics_stream` bring them elsewhere.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headwater.errors import MetricsUnwritable
from headwater.spark.pipelines.progress import Figures, after, measured

log: Final = logging.getLogger("headwater.spark")

Told = Callable[[str, Figures, bool], None]
"""Is told a pipeline's name, its figures, and whether it runs."""

_METRICS: Final[tuple[tuple[str, str, str, Callable[[Figures], float | None]], ...]] = (
    ("batches_total", "counter", "Batches since the start.", lambda it: it.batches),
    ("rows_total", "counter", "Rows read since the start.", lambda it: it.rows),
    ("bytes_total", "counter", "Bytes of streams read since the start.", lambda it: it.bytes),
    ("aside_total", "counter", "Messages kept aside since the start.", lambda it: it.aside),
    ("lag_bytes", "gauge", "Bytes in the streams behind the last batch.", lambda it: it.lag_bytes),
    ("streams", "gauge", "Streams that are read.", lambda it: it.streams),
    ("batch_rows", "gauge", "Rows of the last batch.", lambda it: it.batch_rows),
    ("batch_seconds", "gauge", "How long the last batch took.", lambda it: it.batch_seconds),
    (
        "batch_lag_seconds",
        "gauge",
        "From when the oldest event of the last batch was persisted to its end, of project.",
        lambda it: it.batch_lag_seconds,
    ),
)


_MOST_EARLY: Final = 100
"""So many queries are remembered before they are known, and so much that each has told."""


class Running(Struct):
    """A query that was started: whose it is, and how far."""

    name: str
    figures: Figures
    is_up: bool = True


class Meter(StreamingQueryListener):
    """Listens to Spark, and keeps the figures of each pipeline."""

    def __init__(self, *told: Told) -> None:
        self._told = told
        self._silent: set[Told] = set()
        """Those that have failed before, which is said once."""
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}
        self._early: dict[str, deque[dict[str, Any]]] = {}
        """Of queries that are not known yet: of most that a session has besides, for ever."""
        self._ended: dict[str, threading.Event] = {}

    def expect(self, run_id: str, name: str, begins: Mapping[str, str]) -> None:
        """Say whose a query is, and where it begins; what Spark told before is not lost."""
        with self._lock:
            self._running[run_id] = Running(name, Figures(ends=begins))
            early = self._early.pop(run_id, ())
        for told in early:
            self._take(run_id, told)

    def figures(self, run_id: str) -> Figures:
        """Give what a query has done so far."""
        with self._lock:
            running = self._running.get(run_id)
            return Figures() if running is None else running.figures

    def measure(self, run_id: str, tails: Mapping[str, str]) -> None:
        """Take where the server says that a query's streams end now."""
        with self._lock:
            running = self._running[run_id]
            before, running.figures = running.figures, measured(running.figures, tails)
        if running.figures.lag_bytes != before.lag_bytes:
            self._tell(running)

    def put(self, run_id: str, figures: Figures) -> None:
        """Take the figures of something that is no query of Spark's."""
        with self._lock:
            running = self._running[run_id]
            before, running.figures = running.figures, figures
        if figures != before:
            self._tell(running)

    def await_end(self, run_id: str, seconds: float) -> bool:
        """Wait until Spark has told all of a query that has ended."""
        return self._end_of(run_id).wait(seconds)

    def all(self) -> dict[str, tuple[Figures, bool]]:
        """Give the figures of every pipeline by its name, and whether it runs."""
        with self._lock:
            return {one.name: (one.figures, one.is_up) for one in self._running.values()}

    def text(self) -> str:
        """Write all figures in the format of Prometheus."""
        return metrics_text(self.all())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known of it yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """It lives, and there is nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        told = json.loads(event.progress.json)
        run_id = str(event.progress.runId)
        with self._lock:
            if run_id not in self._running:
                self._early.setdefault(run_id, deque(maxlen=_MOST_EARLY)).append(told)
                if len(self._early) > _MOST_EARLY:
                    del self._early[next(iter(self._early))]
                return
        self._take(run_id, told)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.end(str(event.runId))

    def end(self, run_id: str) -> None:
        """Take it that something does not run any more."""
        with self._lock:
            running = self._running.get(run_id)
            if running is not None:
                running.is_up = False
        try:
            if running is not None:
                self._tell(running)
        finally:
            self._end_of(run_id).set()

    def _take(self, run_id: str, told: Mapping[str, Any]) -> None:
        with self._lock:
            running = self._running[run_id]
            running.figures = after(running.figures, told)
        self._tell(running)

    def _tell(self, running: Running) -> None:
        for tell in self._told:
            try:
                tell(running.name, running.figures, running.is_up)
            except Exception as error:  # noqa: BLE001 - Spark's listener and the others go on
                if tell not in self._silent:
                    log.warning("figures are lost pipeline=%s reason=%s", running.name, error)
                self._silent.add(tell)

    def _end_of(self, run_id: str) -> threading.Event:
        with self._lock:
            return self._ended.setdefault(run_id, threading.Event())


class MetricsFile:
    """Writes the figures to a file, whole or not at all, whenever they change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._figures: dict[str, tuple[Figures, bool]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write()  # what can't be written is said now
        except OSError as error:
            raise MetricsUnwritable(str(path), error.strerror or str(error)) from None

    def __call__(self, name: str, figures: Figures, is_up: bool) -> None:
        """Take note of new figures."""
        self._figures[name] = (figures, is_up)
        self._write()

    def _write(self) -> None:
        new = self._path.with_name(f".{self._path.name}.new")
        new.write_text(metrics_text(self._figures))
        new.replace(self._path)


def metrics_text(pipelines: Mapping[str, tuple[Figures, bool]]) -> str:
    """Write figures in the text format that Prometheus reads."""
    lines: list[str] = []

    def add(name: str, kind: str, about: str, values: Mapping[str, float | None]) -> None:
        lines.append(f"# HELP headwater_pipeline_{name} {about}")
        lines.append(f"# TYPE headwater_pipeline_{name} {kind}")
        lines.extend(
            f"headwater_pipeline_{name}{{{labels}}} {value}"
            for labels, value in values.items()
            if value is not None
        )

    ordered = {_label("pipeline", name): told for name, told in sorted(pipelines.items())}
    ups = {labels: int(is_up) for labels, (_, is_up) in ordered.items()}
    add("up", "gauge", "Whether the pipeline runs.", ups)
    for name, kind, about, value in _METRICS:
        add(name, kind, about, {labels: value(it) for labels, (it, _) in ordered.items()})
    phases = {
        f"{labels},{_label('phase', phase)}": seconds
        for labels, (it, _) in ordered.items()
        for phase, seconds in sorted(it.phases.items())
    }
    add("phase_seconds", "gauge", "What Spark spent the last batch on.", phases)
    return "\n".join(lines) + "\n"


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{escaped}"'
