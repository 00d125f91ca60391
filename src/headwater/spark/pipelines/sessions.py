"""Spark sessions for pipelines: the one that they share, and one that a job has for itself."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from headwater.errors import BadPipeline
from headwater.spark import session
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.values import Pipeline

_QUIET: Final = {"spark.ui.showConsoleProgress": "false"}


class OpenedSession(NamedTuple):
    """A session, and whether it was started here: one that was there before is not ours to stop."""

    spark: SparkSession
    is_ours: bool

    def close(self) -> None:
        """Stop the session if it was started here."""
        if self.is_ours:
            self.spark.stop()


def open_session(pipelines: Sequence[Pipeline]) -> OpenedSession:
    """Start the Spark session that pipelines ask for, or find the one that there is."""
    master, remote = _agreed(pipelines, "master"), _agreed(pipelines, "remote")
    if master and remote:
        what = f"another pipeline has the master {master}: those that run together share a session"
        raise BadPipeline(_named(pipelines, "remote"), [Problem("remote", what)])
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
    is_ours = SparkSession.getActiveSession() is None
    spark = session(f"headwater: {name}", master=master, remote=remote, settings=chosen | settings)
    return OpenedSession(spark, is_ours)


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Give a job views that no other pipeline replaces, and operations that it alone interrupts."""
    clone = getattr(spark, "cloneSession", None)
    if clone is None:  # in this process: stopping it would stop the shared one as well
        yield spark.newSession()
        return
    own: SparkSession = clone()  # through Connect: a new one would lose the settings
    try:
        yield own
    finally:
        own.stop()


def _agreed(pipelines: Sequence[Pipeline], name: str) -> str | None:
    chosen: dict[str, None] = dict.fromkeys(filter(None, (getattr(it, name) for it in pipelines)))
    if len(chosen) > 1:
        what = f"differs between pipelines that run together: {', '.join(chosen)}"
        raise BadPipeline(_named(pipelines, name), [Problem(name, what)])
    return next(iter(chosen), None)


def _named(pipelines: Sequence[Pipeline], name: str) -> str:
    """Name the pipelines that set a field."""
    return ", ".join(pipeline.name for pipeline in pipelines if getattr(pipeline, name))
