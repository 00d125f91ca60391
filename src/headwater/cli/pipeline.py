"""`headwater pipeline`: streams through Spark to streams and tables."""

from pathlib import Path
from typing import Any

import click

from headwater.cli.pipeline_jobs import JOBS, this_command
from headwater.cli.pipeline_running import run_options, run_pipelines, with_spark_installed
from headwater.cli.subscriptions import InOrder
from headwater.cli.values import counted

FILES = click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)


@click.group(cls=InOrder, short_help="Run, check or look at pipelines on Spark.")
def pipeline() -> None:
    """Run pipelines on Spark: streams through transforms to streams and tables.

    A FILE describes a pipeline, in TOML or in Python; `run` and `check` take several, which share
    one Spark. The jobs below `status` need no file. Spark comes with: pip install
    'headwater[spark,jdk]' (without jdk where there is a Java, 17 or newer)
    """


@pipeline.command()
@FILES
@run_options
def run(files: tuple[Path, ...], **options: Any) -> None:
    """Run pipelines, from where they stopped.

    The first Ctrl-C stops after the batch that runs, the second at once. Nothing is lost and
    nothing is done twice either way, nor after a crash: run it again to go on.
    """
    with with_spark_installed():
        from headwater.spark.pipelines import read_file

        found = [read_file(file) for file in files]
        run_pipelines(found, [str(file) for file in files], again=this_command(), **options)


@pipeline.command()
@FILES
@click.option("--master", metavar="URL", help="Spark master to check on, such as local[2].")
@click.option("--remote", metavar="URL", help="Spark Connect server to check on.")
def check(files: tuple[Path, ...], master: str | None, remote: str | None) -> None:
    """Find everything that is wrong with pipelines before they run.

    Fields, servers, streams, checkpoints, Java and functions are looked at; Spark analyses the
    transforms over no rows. Each problem is one line; the exit code is 1 if there is an error.
    """
    with with_spark_installed():
        from headwater.cli.pipeline_checking import check_files

        errors, warnings = check_files(files, master=master, remote=remote)
    click.echo(f"{counted(errors, 'errors')}, {counted(warnings, 'warnings')}.", err=True)
    if errors:
        raise SystemExit(1)


@pipeline.command()
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Of a job that was started by flags; may be given several times.",
)
@click.option("--url", metavar="URL", help="Server of --checkpoint, if it has moved.")
@click.option(
    "--token",
    envvar="HEADWATER_TOKEN",
    show_envvar=True,
    help="Bearer token for the server of --checkpoint.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per pipeline.")
def status(
    files: tuple[Path, ...],
    checkpoints: tuple[Path, ...],
    url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Tell how far pipelines are, without Spark.

    Their checkpoints say what is committed, their servers where the streams end. Of a server that
    does not answer, the checkpoint is told all the same; the exit code is 1 then. A job that no
    FILE describes is asked for by its --checkpoint, which is beside its --to if it was not given.
    """
    if not files and not checkpoints:
        raise click.UsageError("Name a FILE, or a --checkpoint.")
    if url is not None and not checkpoints:
        raise click.UsageError("--url goes with --checkpoint: a FILE says where its server is.")
    with with_spark_installed():
        from headwater.cli.pipeline_status import print_statuses

        is_whole = print_statuses(files, checkpoints, url=url, token=token, as_json=as_json)
    if not is_whole:
        raise SystemExit(1)


for job in JOBS:
    pipeline.add_command(job)
