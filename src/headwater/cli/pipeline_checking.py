"""What `headwater pipeline check` does: all files without Spark first, then with one Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headwater.cli.java_output import forget, java_writes_to, log_of
from headwater.cli.pipeline_running import hush_spark, refuse_places
from headwater.cli.progress import Progress

if TYPE_CHECKING:
    from headwater.spark.pipelines import Pipeline, Problem

_SESSION: Final = ("master", "remote", "spark", "java")
_NOT_READ: Final = frozenset({"source.stream", "checkpoint"})
"""What a query over no streams, with a checkpoint of its own, does without."""


class _Checked:
    """A file, and what was found wrong with it so far."""

    def __init__(
        self, file: Path, pipeline: "Pipeline | None", problems: "Sequence[Problem]"
    ) -> None:
        self.file = file
        self.pipeline = pipeline
        self.problems = list(problems)
        self.unknown: frozenset[str] = frozenset()

    @property
    def wrong(self) -> set[str]:
        """Give the places that are not what they should be."""
        return {one.where for one in self.problems if not one.is_warning} | self.unknown


def check_files(
    files: Sequence[Path], *, master: str | None, remote: str | None
) -> tuple[int, int]:
    """Print what is wrong with each file; gives how many errors and warnings there are."""
    from headwater.errors import HeadwaterError
    from headwater.spark.pipelines import Problem

    refuse_places(master, remote)
    progress = Progress()
    found = []
    for file in files:
        progress.show(f"Checking {file} …")
        found.append(_read(file, master, remote))
    try:
        _analyse(found, progress)
    except HeadwaterError as error:
        found.append(_Checked(Path("spark"), None, [Problem("session", str(error))]))
    except click.ClickException as error:
        found.append(_Checked(Path("spark"), None, [Problem("session", error.format_message())]))
    progress.clear()
    return _print(found)


def _read(file: Path, master: str | None, remote: str | None) -> _Checked:
    """Read a file as far as that goes, and look at all that it says."""
    from headwater.spark.pipelines import before_spark, read_partly

    read = read_partly(file)
    checked = _Checked(file, read.pipeline, read.problems)
    checked.unknown = read.unknown
    if read.pipeline is not None:
        checked.pipeline = read.pipeline.placed(master, remote)
        checked.problems += before_spark(checked.pipeline, read.unknown)
    return checked


def _analyse(found: Sequence[_Checked], progress: Progress) -> None:
    """Have one Spark session look at every pipeline that says which one it needs."""
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
    hush_spark()
    progress.show("Starting Spark …")
    log = log_of([])
    with java_writes_to(log):
        session = open_session([pipeline for _, pipeline in ready])
    is_local = not any(pipeline.remote for _, pipeline in ready)
    try:
        for checked, pipeline in ready:
            progress.show(f"Spark looks at {checked.file} …")
            wrong = checked.wrong
            is_whole = not wrong - _NOT_READ
            checked.problems += with_spark(
                session.spark, pipeline, dry_run=is_local and is_whole, wrong=wrong
            )
    finally:
        session.close()
        forget(log)


def _print(found: Sequence[_Checked]) -> tuple[int, int]:
    from headwater.spark.pipelines.problems import sorted_problems

    errors = warnings = 0
    for checked in found:
        for problem in sorted_problems(checked.problems):
            click.echo(f"{checked.file}: {problem}")
            errors += not problem.is_warning
            warnings += problem.is_warning
        if not checked.problems:
            click.echo(f"{checked.file}: fine")
    return errors, warnings
