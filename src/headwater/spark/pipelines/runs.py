"""One pipeline that runs: a streaming query, or a job that ends by itself."""

import threading
from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.spark.pipelines.checkpoints import last_committed, local_folder
from headwater.spark.pipelines.failures import reason_of
from headwater.spark.pipelines.metrics import Meter
from headwater.spark.pipelines.progress import Figures
from headwater.spark.pipelines.sessions import own_session
from headwater.spark.pipelines.status import lag_of
from headwater.spark.pipelines.targets import run_bounded, start
from headwater.spark.pipelines.values import Pipeline

How = Literal["running", "done", "stopped", "failed"]

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
        self._own: SparkSession | None = None
        """Its own session: there while it works."""
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
            if self._own is not None:
                self._own.interruptAll()

    def _work(self) -> None:
        try:
            with own_session(self._spark) as self._own:
                self._summary = run_bounded(self._own, self.pipeline)
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            self._error = error
