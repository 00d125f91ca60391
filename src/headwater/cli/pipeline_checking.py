"""What `headwater pipeline check` does: all files without Spark first, then with one Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwater.cli.java_output import java_writes_to, log_of
from headwater.cli.pipeline_running import hush_spark, refuse_places
from headwater.cli.progress import Progress

if TYPE_CHECKING:
    from headwater.spark.pipelines import Pipeline, Problem


def check_files(
    files: Sequence[Path], *, master: str | None, remote: str | None
) -> tuple[int, int]:
    """Print what is wrong with each file; gives how many errors and warnings there are."""
    from headwater.errors import HeadwaterError
    from headwater.spark.pipelines import Problem, before_spark, read_file
    from headwater.spark.pipelines.problems import are_fatal

    refuse_places(master, remote)
    progress = Progress()
    found: list[tuple[Path, Pipeline | None, list[Problem]]] = []
    for file in files:
        progress.show(f"Checking {file} …")
        pipeline, problems = read_file(file)
        pipeline = pipeline and pipeline.placed(master, remote)
        if pipeline is not None and not are_fatal(problems):
            problems += before_spark(pipeline)
        found.append((file, pipeline, problems))
    ready = [pipeline for _, pipeline, problems in found if _can_analyse(pipeline, problems)]
    if ready:
        try:
            with_one_spark(found, progress)
        except HeadwaterError as error:
            found.append((Path("spark"), None, [Problem("session", str(error))]))
        except click.ClickException as error:
            found.append((Path("spark"), None, [Problem("session", error.format_message())]))
    progress.clear()
    return _print(found)


def with_one_spark(
    found: "list[tuple[Path, Pipeline | None, list[Problem]]]", progress: Progress
) -> None:
    """Have one Spark session look at every pipeline that is fit for it."""
    from headwater.spark.pipelines import open_session, with_spark

    hush_spark()
    pipelines = [pipeline for _, pipeline, problems in found if _can_analyse(pipeline, problems)]
    progress.show("Starting Spark …")
    ready = [pipeline for pipeline in pipelines if pipeline]
    log = log_of([])
    with java_writes_to(log):
        spark = open_session(ready)
    try:
        for file, pipeline, problems in found:
            if pipeline is None or not _can_analyse(pipeline, problems):
                continue
            progress.show(f"Spark looks at {file} …")
            is_local = not any(each.remote for each in ready)
            reachable = not any(problem.where == "source.url" for problem in problems)
            problems.extend(with_spark(spark, pipeline, dry_run=is_local and reachable))
    finally:
        spark.stop()
        log.unlink(missing_ok=True)


def _can_analyse(pipeline: "Pipeline | None", problems: "Sequence[Problem]") -> bool:
    """Tell whether Spark can look at it: it needs Java and functions, but no server."""
    return pipeline is not None and not any(
        not problem.is_warning and not problem.where.startswith(("source.", "checkpoint"))
        for problem in problems
    )


def _print(found: "list[tuple[Path, Pipeline | None, list[Problem]]]") -> tuple[int, int]:
    from headwater.spark.pipelines.checking import sorted_problems

    errors = warnings = 0
    for file, _, problems in found:
        for problem in sorted_problems(problems):
            click.echo(f"{file}: {problem}")
            errors += not problem.is_warning
            warnings += problem.is_warning
        if not problems:
            click.echo(f"{file}: fine")
    return errors, warnings
