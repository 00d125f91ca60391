"""One pipeline that runs: a streaming query, or a job that ends by itself."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal
from uuid import uuid4

from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.errors import HeadwaterError
from headwater.spark.options import source_options
from headwater.spark.pipelines.checkpoints import last_committed, local_folder
from headwater.spark.pipelines.failures import (
    UNANSWERED,
    is_end_of_spark,
    named_reason_of,
    reason_of,
)
from headwater.spark.pipelines.metrics import Meter
from headwater.spark.pipelines.polling import Polling
from headwater.spark.pipelines.progress import Figures
from headwater.spark.pipelines.sessions import own_session
from headwater.spark.pipelines.status import lag_of
from headwater.spark.pipelines.targets import run_bounded, start
from headwater.spark.pipelines.tasks_done import group_tasks, part_done
from headwater.spark.pipelines.values import Pipeline, Server
from headwater.spark.pipelines.watching import Watch
from headwater.spark.planning import Planner

How = Literal["running", "done", "stopped", "failed"]

_LAST_WORDS_SECONDS: Final = 5.0
_LAG_SECONDS: Final = 5.0
_PROGRESS_SECONDS: Final = 1.0


class Outcome(Struct, frozen=True):
    """How a pipeline has ended, or how it is going."""

    name: str
    how: How
    figures: Figures
    seconds: float
    total_bytes: int | None
    """What there was to do, where that is known."""
    reason: str | None = None
    """Why it has failed, or was stopped before it began."""
    summary: Struct | None = None
    """What a job that ends by itself has told."""
    is_job: bool = False
    total_rows: int | None = None
    """What a job has to append, where that is known."""
    kind: str = ""
    """Of its target."""
    place: str = ""
    """Where its target is."""
    url: str = ""
    """Of its source's server."""
    doing: str = ""
    """What a job is at before anything is in its streams."""
    part: float | None = None
    """How much of that is done, where it is known."""

    @staticmethod
    def of_none(name: str) -> "Outcome":
        """Tell of a pipeline that was stopped before it began."""
        return Outcome(name, "stopped", Figures(), 0.0, None, "it was not begun.")


class Run:
    """One pipeline that runs."""

    is_job = False

    def __init__(self, pipeline: Pipeline, meter: Meter, clock: Callable[[], float]) -> None:
        self.pipeline = pipeline
        self._meter = meter
        self._clock = clock
        self._began = clock()
        self._ended: float | None = None
        self._how: How = "running"
        self._reason: str | None = None
        self.total_bytes: int | None = None
        self.total_rows: int | None = None
        self.doing = ""
        self.part: float | None = None

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
            self.is_job,
            self.total_rows,
            self.pipeline.kind,
            self.pipeline.target.place,
            self.pipeline.source.url,
            self.doing,
            self.part,
        )

    def figures(self) -> Figures:
        return Figures()

    def summary(self) -> Struct | None:
        return None

    def lose(self, error: BaseException, *, is_stopping: bool) -> None:
        """Take it that Spark has ended under it; a supervisor may have ended all processes."""
        reason = f"Spark has ended unexpectedly ({reason_of(error).rstrip('.')}). Nothing is lost."
        self._end("stopped" if is_stopping else "failed", None if is_stopping else reason)

    def _end(self, how: How, reason: str | None = None) -> None:
        self._how, self._reason = how, reason
        self._ended = self._clock()


class QueryRun(Run):
    """A streaming query."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, meter: Meter, clock: Callable[[], float]
    ) -> None:
        super().__init__(pipeline, meter, clock)
        self._stop_behind: int | None = None
        """The number of batches that were done when the stop was asked for."""
        begins = {}
        if pipeline.source.streams:
            folder = local_folder(pipeline.checkpoint)
            lags = list(lag_of(pipeline.source, None if folder is None else last_committed(folder)))
            begins = {lag.path: lag.offset for lag in lags}
            if pipeline.is_bounded:
                self.total_bytes = sum(lag.bytes for lag in lags)
        self._query: StreamingQuery = start(spark, pipeline)
        self._run_id = str(self._query.runId)
        meter.expect(self._run_id, pipeline.name, begins)
        self._planner: Planner | None = None
        """Who knows where the streams end; it only asks for what has changed."""
        if pipeline.source.streams:
            self._planner = Planner(source_options(pipeline.source.format_options()))
        self._lag = Polling(f"lag of {pipeline.name}", _LAG_SECONDS, self._measure)

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
        self._lag.finish()
        if self._planner is not None:
            self._planner.close()
        is_stopping = self._stop_behind is not None
        if error is not None and not (is_stopping and is_end_of_spark(error)):
            self._end("failed", reason_of(error))
        else:
            self._end("done" if self.pipeline.is_bounded and not is_stopping else "stopped")

    def ask_to_stop(self) -> None:
        """Stop it when its batch is done."""
        if self._stop_behind is None:
            self._stop_behind = self.figures().batches

    def lose(self, error: BaseException, *, is_stopping: bool) -> None:
        self._lag.finish()
        super().lose(error, is_stopping=is_stopping)

    def _measure(self) -> None:
        # Spark knows where streams ended when it planned a batch, not what has come since.
        if self._planner is not None:
            self._planner.look()
            self._meter.measure(self._run_id, dict(self._planner.tails))

    def _stop_between_batches(self) -> None:
        # Between triggers Spark goes on saying that there is data: that of the batch before.
        status = self._query.status
        is_busy = status["isTriggerActive"] and status["isDataAvailable"]
        if not is_busy or self.figures().batches != self._stop_behind:
            self._query.stop()


class JobRun(Run):
    """A job that ends by itself, in a thread, so that a person can watch and stop it."""

    is_job = True

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, meter: Meter, clock: Callable[[], float]
    ) -> None:
        super().__init__(pipeline, meter, clock)
        self._spark = spark
        self._own: SparkSession | None = None
        """Its own session: there while it works."""
        self._run_id = f"job-{uuid4()}"
        meter.expect(self._run_id, pipeline.name, {})
        server = pipeline.target if isinstance(pipeline.target, Server) else pipeline.source
        self._watch = Watch(server, self._tell)
        self._summary: Struct | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=pipeline.name, daemon=True)
        self._thread.start()

    def summary(self) -> Struct | None:
        return self._summary

    def figures(self) -> Figures:
        return self._meter.figures(self._run_id)

    def look(self) -> None:
        """Find out whether it has ended."""
        self.total_bytes, self.total_rows = self._watch.total_bytes, self._watch.total_rows
        self.doing = self._watch.doing
        if self._thread.is_alive():
            if self._watch.is_asked_to_stop and self._own is not None:
                # Again and again: an interruption hits what Spark runs at that moment alone. The
                # session may end meanwhile, and what becomes of the job is what its thread tells.
                with suppress(*UNANSWERED):
                    self._own.interruptAll()
            return
        if self._error is None:
            self._end("done")
        elif self._watch.is_asked_to_stop and not _is_ours(self._error):
            self._end("stopped")
        else:
            self._end("failed", named_reason_of(self._error))

    def ask_to_stop(self) -> None:
        """End it at the next point where it can: the next run goes on with what is there."""
        self._watch.ask_to_stop()

    def _work(self) -> None:
        polling = Polling(f"progress of {self.pipeline.name}", _PROGRESS_SECONDS, self._measure)
        try:
            with own_session(self._spark) as self._own:
                self._watch.check()
                group_tasks(self._own, self._run_id)
                self._summary = run_bounded(self._own, self.pipeline, self._watch)
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            self._error = error
        polling.finish()
        if self._error is None:
            self._watch.complete()
        self._meter.end(self._run_id)

    def _measure(self) -> None:
        if self._watch.doing:
            with suppress(*UNANSWERED):
                self.part = part_done(self._spark, self._run_id)
        self._watch.look()

    def _tell(self, rows: int, bytes_: int) -> None:
        self._meter.put(self._run_id, Figures(rows=rows, bytes=bytes_))


def _is_ours(error: BaseException) -> bool:
    """Tell a refusal of ours, which a stop must not hide, from what Spark says when it is cut."""
    return isinstance(error, HeadwaterError) or "headwater.errors." in str(error)
