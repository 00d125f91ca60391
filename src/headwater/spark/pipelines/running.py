"""Running pipelines side by side in one Spark session, until they end or are asked to stop.

A stop lets the batch that runs come to its end, so that nothing has to be done twice; nothing would
be lost otherwise either. Where one pipeline fails, the others are stopped the same way.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Literal

from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.errors import BadPipeline, HeadwaterError
from headwater.spark import session
from headwater.spark.pipelines.checkpoints import held, last_committed, local_folder, own
from headwater.spark.pipelines.failures import reason_of
from headwater.spark.pipelines.metrics import Meter
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.progress import Figures
from headwater.spark.pipelines.status import lag_of
from headwater.spark.pipelines.targets import run_bounded, start
from headwater.spark.pipelines.values import BOUNDED, Pipeline

How = Literal["running", "done", "stopped", "failed"]

_QUIET: Final = {"spark.ui.showConsoleProgress": "false"}
_LAST_WORDS_SECONDS: Final = 5.0


class Outcome(Struct, frozen=True):
    """How a pipeline has ended, or how it is going."""

    name: str
    how: How
    figures: Figures
    seconds: float
    total_bytes: int | None
    """What there was to do, where that is known."""
    reason: str | None = None
    """Why it has failed."""
    summary: Struct | None = None
    """What a job that ends by itself has told."""


def open_session(
    pipelines: Sequence[Pipeline], *, master: str | None = None, remote: str | None = None
) -> SparkSession:
    """Start the Spark session that pipelines ask for; flags win over files."""
    if master is None and remote is None:
        master = _agreed(pipelines, "master")
        remote = _agreed(pipelines, "remote")
    settings: dict[str, str] = {}
    for pipeline in pipelines:
        for name, value in pipeline.spark.items():
            if settings.setdefault(name, value) != value:
                what = f"is {settings[name]} in another pipeline: they share one session"
                raise BadPipeline(pipeline.name, [Problem(f"spark.{name}", what)])
    master = master or "local[*]"
    chosen = {} if remote else dict(_QUIET)  # a Connect server has said that for itself
    if remote is None and master.startswith("local"):
        # Each partition of a shuffle is a task: more of them than cores only cost time.
        chosen["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    name = ", ".join(pipeline.name for pipeline in pipelines)
    return session(f"headwater: {name}", master=master, remote=remote, settings=chosen | settings)


class Run:
    """One pipeline that runs."""

    def __init__(self, pipeline: Pipeline, meter: Meter, clock: Callable[[], float]) -> None:
        self.pipeline = pipeline
        self._meter = meter
        self._clock = clock
        self._began = clock()
        self._ended: float | None = None
        self._how: How = "running"
        self._reason: str | None = None
        self._stop_behind: int | None = None
        """The number of batches that were done when the stop was asked for."""
        self.total_bytes: int | None = None

    @property
    def is_running(self) -> bool:
        return self._how == "running"

    def outcome(self) -> Outcome:
        """Tell how it goes."""
        return Outcome(
            self.pipeline.name,
            self._how,
            self.figures(),
            (self._ended or self._clock()) - self._began,
            self.total_bytes,
            self._reason,
            self.summary(),
        )

    def figures(self) -> Figures:
        return Figures()

    def summary(self) -> Struct | None:
        return None

    def _end(self, how: How, reason: str | None = None) -> None:
        self._how, self._reason = how, reason
        self._ended = self._clock()


class QueryRun(Run):
    """A streaming query."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, meter: Meter, clock: Callable[[], float]
    ) -> None:
        super().__init__(pipeline, meter, clock)
        begins = {}
        if pipeline.source.streams:
            folder = local_folder(pipeline.checkpoint)
            lags = list(lag_of(pipeline, None if folder is None else last_committed(folder)))
            begins = {lag.path: lag.offset for lag in lags}
            if pipeline.is_bounded:
                self.total_bytes = sum(lag.bytes for lag in lags)
        self._query: StreamingQuery = start(spark, pipeline)
        self._run_id = str(self._query.runId)
        meter.expect(self._run_id, pipeline.name, begins)

    def figures(self) -> Figures:
        return self._meter.figures(self._run_id)

    def look(self) -> None:
        """Find out whether it has ended."""
        if self._query.isActive:
            if self._stop_behind is not None:
                self._stop_between_batches()
            return
        error = self._query.exception()
        self._meter.await_end(self._run_id, _LAST_WORDS_SECONDS)
        if error is not None:
            self._end("failed", reason_of(error))
        else:
            self._end(
                "done" if self.pipeline.is_bounded and self._stop_behind is None else "stopped"
            )

    def ask_to_stop(self) -> None:
        """Stop it when its batch is done."""
        if self._stop_behind is None:
            self._stop_behind = self.figures().batches

    def _stop_between_batches(self) -> None:
        is_busy = bool(self._query.status["isDataAvailable"])
        if not is_busy or self.figures().batches != self._stop_behind:
            self._query.stop()


class JobRun(Run):
    """A job that ends by itself, in a thread, so that a person can watch and stop it."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, meter: Meter, clock: Callable[[], float]
    ) -> None:
        super().__init__(pipeline, meter, clock)
        self._spark = spark
        self._summary: Struct | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=pipeline.name, daemon=True)
        self._thread.start()

    def summary(self) -> Struct | None:
        return self._summary

    def look(self) -> None:
        """Find out whether it has ended."""
        if self._thread.is_alive():
            return
        if self._error is None:
            self._end("done")
        elif self._stop_behind is not None:
            self._end("stopped")
        else:
            self._end("failed", reason_of(self._error))

    def ask_to_stop(self) -> None:
        """Interrupt it: what it does is done whole or not at all."""
        if self._stop_behind is None:
            self._stop_behind = 0
            self._spark.interruptAll()

    def _work(self) -> None:
        try:
            self._summary = run_bounded(self._spark, self.pipeline)
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            self._error = error


class Runner:
    """Runs pipelines, and tells how they go."""

    def __init__(self, runs: Sequence[QueryRun | JobRun]) -> None:
        self._runs = runs
        self.is_stopping = False

    def look(self) -> bool:
        """Find out what has ended; True as long as something runs."""
        for run in self._runs:
            if run.is_running:
                run.look()
        outcomes = self.outcomes()
        if any(outcome.how == "failed" for outcome in outcomes):
            self.ask_to_stop()
        return any(outcome.how == "running" for outcome in outcomes)

    def ask_to_stop(self) -> None:
        """Have everything stop when it has done what it is at."""
        self.is_stopping = True
        for run in self._runs:
            if run.is_running:
                run.ask_to_stop()

    def outcomes(self) -> list[Outcome]:
        return [run.outcome() for run in self._runs]


@contextmanager
def running(
    spark: SparkSession,
    pipelines: Sequence[Pipeline],
    meter: Meter,
    *,
    is_remote: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Runner]:
    """Start pipelines for a block; whatever still runs at its end is stopped."""
    with ExitStack() as stack:
        for pipeline in pipelines:
            folder = local_folder(pipeline.checkpoint) if pipeline.has_checkpoint else None
            # Through Connect the folder is on another machine, unless it is there to be seen.
            if folder is not None and not (is_remote and not folder.exists()):
                stack.enter_context(held(folder))
                own(folder, pipeline)
        spark.streams.addListener(meter)
        stack.callback(spark.streams.removeListener, meter)
        runs: list[QueryRun | JobRun] = []
        runner = Runner(runs)
        try:
            for pipeline in pipelines:
                run = _started(spark, pipeline, meter, clock)
                runs.append(run)  # one by one: those that run are stopped if the next can't
            yield runner
        finally:
            runner.ask_to_stop()
            while runner.look():
                time.sleep(0.05)


def _started(
    spark: SparkSession, pipeline: Pipeline, meter: Meter, clock: Callable[[], float]
) -> QueryRun | JobRun:
    kind = JobRun if isinstance(pipeline.target, BOUNDED) else QueryRun
    try:
        return kind(spark, pipeline, meter, clock)
    except HeadwaterError:
        raise
    except (PySparkException, ImportError, AttributeError, TypeError, OSError) as error:
        raise BadPipeline(pipeline.name, [Problem("query", reason_of(error))]) from error


def _agreed(pipelines: Sequence[Pipeline], name: str) -> str | None:
    chosen: dict[Any, str] = {
        getattr(pipeline, name): pipeline.name for pipeline in pipelines if getattr(pipeline, name)
    }
    if len(chosen) > 1:
        what = f"differs between pipelines that run together: {', '.join(chosen)}"
        raise BadPipeline(", ".join(chosen.values()), [Problem(name, what)])
    return next(iter(chosen), None)
