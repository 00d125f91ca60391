"""Running pipelines side by side in one Spark session, until they end or are asked to stop.

A stop lets the batch that runs come to its end, so that nothing has to be done twice; nothing would
be lost otherwise either. Where one pipeline fails, the others are stopped the same way.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from pyspark.sql import SparkSession

from headwater.errors import BadPipeline, HeadwaterError
from headwater.spark.pipelines.checkpoints import held, local_folder, own
from headwater.spark.pipelines.failures import UNANSWERED, named_reason_of
from headwater.spark.pipelines.metrics import Meter
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.runs import JobRun, Outcome, QueryRun
from headwater.spark.pipelines.values import BOUNDED, Pipeline


class Runner:
    """Runs pipelines, and tells how they go."""

    def __init__(self, runs: Sequence[QueryRun | JobRun]) -> None:
        self._runs = runs
        self.is_stopping = False

    def look(self) -> bool:
        """Find out what has ended; True as long as something runs."""
        for run in self._runs:
            if run.is_running:
                try:
                    run.look()
                except UNANSWERED as error:
                    run.lose(error, is_stopping=self.is_stopping)
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
        stack.callback(_forget, spark, meter)
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


def _forget(spark: SparkSession, meter: Meter) -> None:
    with suppress(*UNANSWERED):
        spark.streams.removeListener(meter)


def _started(
    spark: SparkSession, pipeline: Pipeline, meter: Meter, clock: Callable[[], float]
) -> QueryRun | JobRun:
    kind = JobRun if isinstance(pipeline.target, BOUNDED) else QueryRun
    try:
        return kind(spark, pipeline, meter, clock)
    except HeadwaterError:
        raise
    except Exception as error:  # a transform is the user's program: it raises what it likes
        raise BadPipeline(pipeline.name, [Problem("query", named_reason_of(error))]) from error
