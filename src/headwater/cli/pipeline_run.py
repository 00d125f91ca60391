"""Spark sessions of `headwater pipeline`: running pipelines, stopping them, and checking them.

A run shows progress, stops after the current batch on Ctrl-C, and ends with one sentence per
pipeline. What Java and its Python workers write goes to a log file, not to the terminal. A check
reads all files first, and then analyses them in one Spark session.
"""

import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

import click

from headwater.cli._io import SignalGuard
from headwater.cli._progress import Progress
from headwater.cli.pipeline_report import summary
from headwater.errors import CheckpointTaken, CheckpointUnwritable, HeadwaterError, NoSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.pipelines import Outcome, Pipeline, Problem, Runner
    from headwater.spark.pipelines.metrics import Told
    from headwater.spark.pipelines.sessions import OpenedSession

Command = TypeVar("Command", bound=Callable[..., Any])
Read: TypeAlias = "tuple[Pipeline | None, list[Problem]]"

_NOT_STARTED: Final = "Nothing was started: fix the errors above."
_POLL_SECONDS: Final = 0.2
_LINE_SECONDS: Final = 10.0


def run_options(command: Command) -> Command:
    """Add the options that control how pipelines run."""
    for option in reversed(
        (
            click.option(
                "--once",
                is_flag=True,
                help="Process the data that is there now, then end, whatever the trigger is.",
            ),
            click.option("--master", metavar="URL", help="Spark master.  [default: local[*]]"),
            click.option(
                "--remote", metavar="URL", help="Spark Connect server, such as sc://host:15002."
            ),
            click.option(
                "--metrics",
                "metrics_port",
                type=click.IntRange(0, 65535),
                metavar="PORT",
                help="Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics.",
            ),
            click.option(
                "--metrics-file",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Write metrics for Prometheus to a file whenever they change.",
            ),
        )
    ):
        command = option(command)
    return command


def check_session_options(master: str | None, remote: str | None) -> None:
    """Refuse --master together with --remote, and an invalid --remote."""
    from headwater.spark.pipelines.rules import NO_REMOTE, is_remote

    if master is not None and remote is not None:
        raise click.UsageError("--master and --remote exclude each other.")
    if remote is not None and not is_remote(remote):
        raise click.UsageError(f"--remote {NO_REMOTE.format(remote)}")


@contextmanager
def spark_errors_reported() -> Iterator[None]:
    """Report a failure in a block as one sentence, also if Spark is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"pyspark", "pyarrow", "pandas", "deltalake", "grpc", "numpy"}:
            raise click.ClickException(str(NoSpark(package))) from None
        raise
    except HeadwaterError as error:
        raise click.ClickException(str(error)) from None


def silence_spark() -> None:
    """Prevent PySpark from logging errors that are reported as one sentence."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Py4J logs to the root logger when Java ends during a call.
    logging.getLogger().addFilter(lambda it: "while sending command" not in str(it.msg))


def _silence_shutdown(spark: "SparkSession") -> None:
    """Prevent PySpark's accumulator thread from printing a stack trace when Java has ended."""
    server: Any = getattr(getattr(spark, "_sc", None), "_accumulatorServer", None)
    if server is not None:  # a Connect client has no such server
        server.handle_error = lambda *_: None


def run_pipelines(
    found: "Sequence[Read]",
    files: Sequence[str],
    *,
    once: bool = False,
    master: str | None = None,
    remote: str | None = None,
    metrics_port: int | None = None,
    metrics_file: Path | None = None,
    again: str,
) -> None:
    """Run pipelines until they end or are stopped; `again` is the command that continues."""
    from msgspec.structs import replace

    from headwater.spark.pipelines.values import AVAILABLE_NOW

    check_session_options(master, remote)
    placed = [(each and each.placed(master, remote), problems) for each, problems in found]
    pipelines = _checked(placed, files)
    if once:
        pipelines = [replace(pipeline, trigger=AVAILABLE_NOW) for pipeline in pipelines]
    with StopRequest() as stop:
        outcomes, log = _run(pipelines, files, stop, metrics_port, metrics_file)
    for outcome in outcomes:
        click.echo(summary(outcome))
    failed = [outcome for outcome in outcomes if outcome.how == "failed"]
    if failed:
        reasons = "\n".join(f"Error: {_failure(outcome)}" for outcome in failed)
        more = f"The log of Spark is {log}"
        click.echo(f"{reasons}\n{more}\nOnce the cause is fixed, continue with: {again}", err=True)
        raise SystemExit(1)
    remove_log(log)
    if stop.number is not None:
        click.echo(f"Continue with: {again}", err=True)
        raise SystemExit(128 + stop.number)


class StopRequest(SignalGuard):
    """SIGINT or SIGTERM: the first stops after the current batch, the second ends the process."""

    def __init__(self) -> None:
        super().__init__(signal.SIGINT, signal.SIGTERM)
        self.number: int | None = None
        self.failures = ""
        """Failures so far, to be printed if a second signal ends the process."""
        self._stderr = 2

    def __enter__(self) -> Self:
        self._stderr = os.dup(2)  # remains the terminal while Java is being started
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        os.close(self._stderr)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            text = (
                "\nStopping after the current batch; a second signal stops at once, without loss.\n"
            )
            os.write(self._stderr, text.encode())
        else:
            text = "\nStopped at once; the next run repeats the interrupted batch.\n"
            os.write(self._stderr, f"{text}{self.failures}".encode())
            os._exit(128 + number)  # Spark's Java process ends with this one


def _checked(found: "Sequence[Read]", files: Sequence[str]) -> "list[Pipeline]":
    """Print the problems of the pipelines, and return the pipelines if there is no error."""
    from headwater.spark.pipelines import before_spark
    from headwater.spark.pipelines.problems import are_fatal

    names: dict[str, str] = {}
    failed = False
    for (pipeline, problems), file in zip(found, files, strict=True):
        if pipeline is not None and not are_fatal(problems):
            problems.extend(before_spark(pipeline))
            if pipeline.name in names:
                click.echo(
                    f"{file}: error: name: {names[pipeline.name]} has the same name", err=True
                )
                failed = True
            names[pipeline.name] = file
        for problem in problems:
            click.echo(f"{file}: {problem}", err=True)
        failed = failed or are_fatal(problems)
    if failed:
        raise click.ClickException(_NOT_STARTED)
    pipelines = [pipeline for pipeline, _ in found if pipeline is not None]
    for pipeline in pipelines:
        _refuse_taken(pipeline)  # before Spark is started, which takes a while
    return pipelines


def _refuse_taken(pipeline: "Pipeline") -> None:
    from headwater.spark.pipelines.checkpoints import holder, local_folder

    folder = local_folder(pipeline.checkpoint) if pipeline.has_checkpoint else None
    process = None if folder is None else holder(folder)
    if process is not None:
        raise CheckpointTaken(str(folder), process)


def _run(
    pipelines: "Sequence[Pipeline]",
    files: Sequence[str],
    stop: StopRequest,
    metrics_port: int | None,
    metrics_file: Path | None,
) -> "tuple[list[Outcome], Path]":
    """Run the pipelines, and return their outcomes and the log file of Spark."""
    from headwater.spark.pipelines import Meter, Outcome, open_session, running
    from headwater.spark.pipelines.metrics_server import serving

    silence_spark()
    with ExitStack() as stack:
        progress = Progress()
        meter = Meter(*_exports(pipelines, metrics_file, stack))
        if metrics_port is not None:
            url = stack.enter_context(serving(metrics_port, meter.text))
            click.echo(f"Metrics are at {url}", err=True)
        is_remote = any(pipeline.remote for pipeline in pipelines)
        log = log_of([] if is_remote else pipelines)
        click.echo(f"Starting Spark, which logs to {log} …", err=True)
        try:
            with java_writes_to(log):
                session = open_session(pipelines)
            stack.callback(_end_spark, session)
            _silence_shutdown(session.spark)
            stop.listen()
        except KeyboardInterrupt:
            # Raised by Spark's own handler, before ours is installed again.
            stop.number = signal.SIGINT
        found = (
            _found_by_spark(session.spark, pipelines, files, progress)
            if stop.number is None
            else []
        )
        progress.clear()
        # Check for a stop first: a supervisor may have stopped Java too, which is not an error.
        if stop.number is not None:
            return [Outcome.of_none(pipeline.name) for pipeline in pipelines], log
        if found:
            click.echo("\n".join(found), err=True)
            raise click.ClickException(_NOT_STARTED)
        progress = Progress(every=_LINE_SECONDS)
        try:
            with running(session.spark, pipelines, meter, is_remote=is_remote) as runner:
                _watch(runner, stop, progress)
                return runner.outcomes(), log
        finally:
            progress.clear()


def _found_by_spark(
    spark: "SparkSession",
    pipelines: "Sequence[Pipeline]",
    files: Sequence[str],
    progress: Progress,
) -> list[str]:
    """Return the errors of all pipelines, before any of them is started."""
    from headwater.spark.pipelines import with_spark
    from headwater.spark.pipelines.failures import UNANSWERED, reason_of

    lines: list[str] = []
    for pipeline, file in zip(pipelines, files, strict=True):
        progress.show(f"Spark is analysing {file} …")
        try:
            found = with_spark(spark, pipeline, dry_run=False)
        except UNANSWERED as error:
            return [*lines, f"{file}: error: Spark has ended: {reason_of(error)}"]
        lines += (f"{file}: {problem}" for problem in found)
    return lines


def _end_spark(session: "OpenedSession") -> None:
    from headwater.spark.pipelines.failures import UNANSWERED

    with suppress(*UNANSWERED):  # Spark may have ended before
        session.close()


def _exports(
    pipelines: "Sequence[Pipeline]", metrics_file: Path | None, stack: ExitStack
) -> "list[Told]":
    """Open the files and streams that receive metrics."""
    from headwater.spark.pipelines.metrics import MetricsFile
    from headwater.spark.pipelines.metrics_stream import appending
    from headwater.spark.pipelines.status import client_of

    exports: list[Told] = []
    if metrics_file is not None:
        exports.append(MetricsFile(metrics_file))
    for pipeline in pipelines:
        if pipeline.metrics_file is not None:
            exports.append(_only(pipeline.name, MetricsFile(Path(pipeline.metrics_file))))
        if pipeline.metrics_stream is not None:
            client = stack.enter_context(client_of(pipeline.source))
            metrics = stack.enter_context(appending(client, pipeline.metrics_stream))
            exports.append(_only(pipeline.name, metrics))
    return exports


def _only(name: str, export: "Told") -> "Told":
    def export_one(pipeline: str, metrics: Any, is_up: bool) -> None:
        if pipeline == name:
            export(pipeline, metrics, is_up)

    return export_one


def _watch(runner: "Runner", stop: StopRequest, progress: Progress) -> None:
    """Show progress until all pipelines have ended."""
    reported: set[str] = set()
    while _is_running(runner, stop):
        outcomes = runner.outcomes()
        for outcome in outcomes:
            if outcome.how == "failed" and outcome.name not in reported:
                reported.add(outcome.name)
                stop.failures += f"Error: {_failure(outcome)}\n"
                progress.clear()
                click.echo(
                    f"{_failure(outcome)} The others stop after their current batch.", err=True
                )
        progress.show("  |  ".join(_progress_of(outcome) for outcome in outcomes))
        time.sleep(_POLL_SECONDS)


def _is_running(runner: "Runner", stop: StopRequest) -> bool:
    # Check for a stop first: a supervisor may have stopped Java too, which is not a failure.
    if stop.number is not None and not runner.is_stopping:
        runner.ask_to_stop()
    return runner.look()


def _failure(outcome: "Outcome") -> str:
    return f"The pipeline {outcome.name} has failed: {outcome.reason}"


def _progress_of(outcome: "Outcome") -> str:
    from headwater.spark.pipelines.progress import reached, told

    metrics = outcome.figures
    if outcome.doing and not metrics.bytes:
        return f"{outcome.name}: {reached(outcome.doing, outcome.part, outcome.seconds)}"
    if not (metrics.batches or metrics.bytes or outcome.total_bytes or outcome.total_rows):
        return f"{outcome.name}: {round(outcome.seconds)} s"
    text = told(metrics, outcome.seconds, outcome.total_bytes, outcome.total_rows)
    writing = "writing, " if outcome.doing else ""
    return f"{outcome.name}: {writing}{text}"


# --- The log of Java and its Python workers

LOG_NAME: Final = "headwater-spark.log"
_STDERR: Final = 2


def log_of(pipelines: "Sequence[Pipeline]") -> Path:
    """Return the log file: in the first local checkpoint, otherwise a temporary file."""
    from headwater.spark.pipelines.checkpoints import local_folder

    for pipeline in pipelines:
        folder = local_folder(pipeline.checkpoint) if pipeline.has_checkpoint else None
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointUnwritable(str(folder), error.strerror or str(error)) from None
            return folder / LOG_NAME
    return Path(tempfile.gettempdir()) / f"{os.getpid()}-{LOG_NAME}"


def remove_log(log: Path) -> None:
    """Remove the log of a successful run, unless it is in a checkpoint."""
    if log.name != LOG_NAME:
        log.unlink(missing_ok=True)


@contextmanager
def java_writes_to(log: Path) -> Iterator[None]:
    """Redirect standard error to a file in this block, so that a Java started in it inherits it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it ships without types
    from pyspark.errors import PySparkException

    from headwater.spark.pipelines.failures import reason_of

    try:
        file = log.open("wb")
    except OSError as error:
        raise CheckpointUnwritable(str(log.parent), error.strerror or str(error)) from None
    previous = os.dup(_STDERR)
    with file:
        os.dup2(file.fileno(), _STDERR)
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(f"Spark did not start: {reason_of(error)} See {log}") from None
    finally:
        os.dup2(previous, _STDERR)
        os.close(previous)


# --- check

_SESSION: Final = ("master", "remote", "spark", "java")
_NOT_READ: Final = frozenset({"source.stream", "checkpoint"})
"""Settings that a dry run over empty inputs, with a checkpoint of its own, does not need."""


class _Checked:
    """A file, with the problems found so far."""

    def __init__(
        self, file: Path, pipeline: "Pipeline | None", problems: "Sequence[Problem]"
    ) -> None:
        self.file = file
        self.pipeline = pipeline
        self.problems = list(problems)
        self.unknown: frozenset[str] = frozenset()

    @property
    def wrong(self) -> set[str]:
        """The settings with an error, or whose value is unknown."""
        return {one.where for one in self.problems if not one.is_warning} | self.unknown


def check_files(
    files: Sequence[Path], *, master: str | None, remote: str | None
) -> tuple[int, int]:
    """Print the problems of each file, and return the numbers of errors and warnings."""
    from headwater.errors import HeadwaterError
    from headwater.spark.pipelines import Problem

    check_session_options(master, remote)
    progress = Progress()
    found = []
    for file in files:
        progress.show(f"Checking {file} …")
        found.append(_read_and_check(file, master, remote))
    try:
        _analyse(found, progress)
    except HeadwaterError as error:
        found.append(_Checked(Path("spark"), None, [Problem("session", str(error))]))
    except click.ClickException as error:
        found.append(_Checked(Path("spark"), None, [Problem("session", error.format_message())]))
    progress.clear()
    return _print_problems(found)


def _read_and_check(file: Path, master: str | None, remote: str | None) -> _Checked:
    """Read as much of a file as is valid, and check it without Spark."""
    from headwater.spark.pipelines import before_spark, read_partly

    read = read_partly(file)
    checked = _Checked(file, read.pipeline, read.problems)
    checked.unknown = read.unknown
    if read.pipeline is not None:
        checked.pipeline = read.pipeline.placed(master, remote)
        checked.problems += before_spark(checked.pipeline, read.unknown)
    return checked


def _analyse(found: Sequence[_Checked], progress: Progress) -> None:
    """Check each pipeline whose session settings are valid in one Spark session."""
    from headwater.spark.pipelines import open_session, with_spark
    from headwater.spark.pipelines.problems import is_known

    ready = [
        (checked, checked.pipeline)
        for checked in found
        if checked.pipeline is not None
        and all(is_known(place, checked.wrong) for place in _SESSION)
    ]
    if not ready:
        return
    silence_spark()
    progress.show("Starting Spark …")
    log = log_of([])
    with java_writes_to(log):
        session = open_session([pipeline for _, pipeline in ready])
    is_local = not any(pipeline.remote for _, pipeline in ready)
    try:
        for checked, pipeline in ready:
            progress.show(f"Spark is analysing {checked.file} …")
            wrong = checked.wrong
            is_whole = not wrong - _NOT_READ
            checked.problems += with_spark(
                session.spark, pipeline, dry_run=is_local and is_whole, wrong=wrong
            )
    finally:
        session.close()
        remove_log(log)


def _print_problems(found: Sequence[_Checked]) -> tuple[int, int]:
    from headwater.spark.pipelines.problems import sorted_problems

    errors = warnings = 0
    for checked in found:
        for problem in sorted_problems(checked.problems):
            click.echo(f"{checked.file}: {problem}")
            errors += not problem.is_warning
            warnings += problem.is_warning
        if not checked.problems:
            click.echo(f"{checked.file}: no problems")
    return errors, warnings
