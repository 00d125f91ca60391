"""`headwater pipeline`: pipelines on Spark, from files and from options.

The jobs are commands of their own, such as `headwater pipeline materialize --stream … --to …`. Each
builds from its options the pipeline that a file would describe.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from headwater.cli._io import OrderedGroup, counted, url_option
from headwater.cli.pipeline_run import run_options, run_pipelines, spark_errors_reported

FILES = click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)


@click.group(
    cls=OrderedGroup, short_help="Run and check pipelines on Spark, and show their status."
)
def pipeline() -> None:
    """Run pipelines on Spark, from streams through transforms to streams and tables.

    A FILE describes a pipeline, in TOML or in Python; `run` and `check` accept several, which share
    one Spark session. The jobs listed after `status` need no file. To install Spark: pip install
    'headwater[spark,jdk]' (without jdk if Java 17 or newer is installed)
    """


@pipeline.command()
@FILES
@run_options
def run(files: tuple[Path, ...], **options: Any) -> None:
    """Run pipelines from where they stopped.

    The first Ctrl-C stops after the current batch, the second at once. In both cases, and after a
    crash, nothing is lost and nothing is done twice: run the same command again to continue.
    """
    with spark_errors_reported():
        from headwater.spark.pipelines import read_file

        found = [read_file(file) for file in files]
        run_pipelines(found, [str(file) for file in files], again=this_command(), **options)


@pipeline.command()
@FILES
@click.option("--master", metavar="URL", help="Spark master for the check, such as local[2].")
@click.option("--remote", metavar="URL", help="Spark Connect server for the check.")
def check(files: tuple[Path, ...], master: str | None, remote: str | None) -> None:
    """Find all problems of pipelines before they run.

    Checks fields, servers, streams, checkpoints, Java and functions; Spark analyses the transforms
    over empty inputs. Each problem is one line; the exit code is 1 if there is an error.
    """
    with spark_errors_reported():
        from headwater.cli.pipeline_run import check_files

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
    help="Checkpoint of a job that was started without a FILE; may be repeated.",
)
@click.option("--url", metavar="URL", help="Server of --checkpoint, if its address has changed.")
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
    """Show the progress of pipelines, without starting Spark.

    Compares what their checkpoints have committed with the ends of the streams on their servers. If
    a server does not answer, the checkpoint is shown alone, and the exit code is 1. For a job
    without a FILE, pass its --checkpoint; by default that is the folder of --to with .checkpoint
    appended.
    """
    if not files and not checkpoints:
        raise click.UsageError("Pass a FILE or --checkpoint.")
    if url is not None and not checkpoints:
        raise click.UsageError("--url needs --checkpoint: a FILE names its server itself.")
    with spark_errors_reported():
        from headwater.cli.pipeline_report import print_statuses

        is_whole = print_statuses(files, checkpoints, url=url, token=token, as_json=as_json)
    if not is_whole:
        raise SystemExit(1)


# --- Jobs

Command = TypeVar("Command", bound=Callable[..., Any])

_SECRETS: Final = {"--token": "TOKEN", "--header": "{}=VALUE"}
"""Placeholders for secret values; a header keeps its name, so that the user knows which one."""
_FORMAT = click.option(
    "--format",
    "table_format",
    type=click.Choice(["delta", "parquet"]),
    default="delta",
    show_default=True,
    help="Format of the tables.",
)


class _Folder(click.Path):
    """A local folder or, if `allow_url`, a URL."""

    def __init__(self, *, allow_url: bool) -> None:
        super().__init__(file_okay=False)
        self._allow_url = allow_url

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "://" not in value:
            return str(super().convert(value, param, ctx))
        if not self._allow_url:
            self.fail(f"'{value}' is not a local folder.", param, ctx)
        return str(value)


_FOLDER = _Folder(allow_url=True)
_ARCHIVE = _Folder(allow_url=False)


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_SERVER = _options(
    url_option,
    click.option("--token", envvar="HEADWATER_TOKEN", show_envvar=True, help="Bearer token."),
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="NAME=VALUE",
        help="Header sent with every request; may be repeated.",
    ),
)
_SESSION = _options(
    run_options,
    click.option(
        "--spark",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="Setting of the Spark session; may be repeated.",
    ),
)
_STREAMS = _options(
    click.option(
        "--stream",
        "streams",
        required=True,
        multiple=True,
        help="Path, or glob such as shop/*; may be repeated.",
    ),
    _SERVER,
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the source, such as maxBytesPerTrigger=64m; may be repeated.",
    ),
)
_QUERY = _options(
    click.option(
        "--checkpoint",
        type=_FOLDER,
        help="Folder for the progress of the job.  [default: --to with .checkpoint appended]",
    ),
    click.option("--every", metavar="TIME", help="How often a batch starts, such as '10 seconds'."),
    _SESSION,
)


@click.command()
@_STREAMS
@click.option("--to", "folder", required=True, type=_FOLDER, help="Folder of the tables.")
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="TYPE=COLUMNS",
    help="Columns of a type's values, such as user='name string, age int'; may be repeated.",
)
@click.option(
    "--history/--no-history", default=True, help="Also write every version to a history table."
)
@_FORMAT
@_QUERY
def materialize(
    folder: str, schemas: tuple[str, ...], history: bool, table_format: str, **flags: Any
) -> None:
    """Write state streams to tables: one per type, with history."""
    target = {
        "kind": "materialize",
        "tables": folder,
        "schemas": _pairs(schemas, "--schema", "TYPE=COLUMNS"),
        "history": history,
        "format": table_format,
    }
    _run(target, folder, flags)


@click.command()
@_STREAMS
@click.option("--to", "folder", required=True, type=_FOLDER, help="Folder of the tables.")
@click.option(
    "--publish", metavar="STREAM", help="State stream to which snapshots are appended as well."
)
@click.option(
    "--grace",
    "grace_seconds",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long to wait for a missing event.  [default: forever]",
)
@_FORMAT
@_QUERY
def project(
    folder: str,
    publish: str | None,
    grace_seconds: float | None,
    table_format: str,
    **flags: Any,
) -> None:
    """Write events of runs to tables of runs and of steps."""
    target = {
        "kind": "project",
        "tables": folder,
        "publish": publish,
        "grace_seconds": grace_seconds,
        "format": table_format,
    }
    _run(target, folder, flags)


@click.command()
@_STREAMS
@click.option("--to", "folder", required=True, type=_ARCHIVE, help="Folder of the archive.")
@_QUERY
def archive(folder: str, **flags: Any) -> None:
    """Write streams to Parquet files, with their offsets."""
    _run({"kind": "archive", "folder": folder}, folder, flags)


@click.command()
@click.option("--from", "folder", required=True, type=_ARCHIVE, help="Folder of the archive.")
@click.option("--stream", help="Path or glob of the streams to restore.  [default: all streams]")
@click.option(
    "--rename",
    "renamed",
    multiple=True,
    metavar="OLD=NEW",
    help="Restore a stream to another path; may be repeated.",
)
@click.option(
    "--until",
    "ends",
    multiple=True,
    metavar="STREAM=OFFSET",
    help="Restore a stream only up to this offset; may be repeated.",
)
@click.option(
    "--incarnation",
    type=int,
    default=-1,
    metavar="NUMBER",
    help="Which incarnation of a stream that was created again, from 0.  [default: the last]",
)
@click.option("--close/--no-close", default=True, help="Close the streams that were closed.")
@click.option(
    "--verify/--no-verify", default=True, help="Read all restored data back and compare it."
)
@click.option(
    "--missing-start", is_flag=True, help="Accept a stream whose start is not in the archive."
)
@_SERVER
@_SESSION
def restore(
    folder: str,
    stream: str | None,
    renamed: tuple[str, ...],
    ends: tuple[str, ...],
    incarnation: int,
    close: bool,
    verify: bool,
    missing_start: bool,
    **flags: Any,
) -> None:
    """Restore streams from an archive, byte for byte."""
    if stream is not None and renamed:
        raise click.UsageError("--stream and --rename exclude each other.")
    target = {
        "kind": "restore",
        "folder": folder,
        "stream": _pairs(renamed, "--rename", "OLD=NEW") or stream,
        "until": _pairs(ends, "--until", "STREAM=OFFSET"),
        "incarnation": incarnation,
        "close": close,
        "verify": verify,
        "missing_start": missing_start,
        **_server(flags),
    }
    _run(target, folder, flags)


@click.command()
@click.option("--stream", "streams", required=True, help="State stream to read.")
@click.option("--to", "target", required=True, metavar="STREAM", help="Compact stream to write.")
@_SERVER
@_SESSION
def snapshot(streams: str, target: str, **flags: Any) -> None:
    """Write the current state of a long stream to a compact one."""
    flags["streams"] = (streams,)
    _run({"kind": "snapshot", "stream": target}, "snapshot", flags)


@click.command()
@click.option("--table", required=True, type=_FOLDER, help="Folder of the table.")
@click.option(
    "--to", "stream", required=True, metavar="STREAM", help="Stream to which changes are appended."
)
@click.option("--type", "type_", required=True, help="Type of the entities.")
@click.option(
    "--key",
    "keys",
    required=True,
    multiple=True,
    help="Key column of an entity; may be repeated, for a key of several columns.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    help="Column that becomes a field of the value; may be repeated.  [default: all]",
)
@click.option("--value", metavar="COLUMN", help="Column that holds the whole value, as JSON.")
@click.option("--deletes/--no-deletes", default=True, help="Delete entities that have no row.")
@click.option(
    "--state",
    type=_FOLDER,
    help="Folder that caches the state of the stream.  [default: --table with .published appended]",
)
@_FORMAT
@_SERVER
@_SESSION
def publish(
    *,
    table: str,
    stream: str,
    type_: str,
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    value: str | None,
    deletes: bool,
    state: str | None,
    table_format: str,
    **flags: Any,
) -> None:
    """Publish the changes of a table to a stream."""
    if columns and value is not None:
        raise click.UsageError("--column and --value exclude each other.")
    target = {
        "kind": "publish",
        "stream": stream,
        "type": type_,
        "key": list(keys),
        "columns": list(columns),
        "value": value,
        "deletes": deletes,
    }
    flags["checkpoint"] = state or _beside(table, "published", "--state")
    flags["source"] = {"table": table, "format": table_format}
    _run(target, table, flags)


def _run(target: dict[str, Any], folder: str, flags: dict[str, Any]) -> None:
    """Run the pipeline that the options describe, as if they came from a file."""
    source = flags.pop("source", {}) | _server(flags)
    if "streams" in flags:
        source["stream"] = list(flags.pop("streams"))
    options = _pairs(flags.pop("options", ()), "--option", "NAME=VALUE")
    if options:
        source["options"] = options
    checkpoint = flags.pop("checkpoint", None) or _beside(folder, "checkpoint", "--checkpoint")
    every = flags.pop("every", None)
    document = {
        "name": target["kind"],
        "source": source,
        "target": {name: value for name, value in target.items() if value is not None},
        "checkpoint": checkpoint,
        "trigger": f"every {every}" if every else "default",
        "spark": _pairs(flags.pop("settings", ()), "--spark", "NAME=VALUE"),
    }
    with spark_errors_reported():
        from headwater.spark.pipelines import read_document

        found = read_document(document, Path.cwd())
        run_pipelines([found], [str(target["kind"])], again=this_command(), **flags)


def _server(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the server that were passed."""
    headers = _pairs(flags.pop("headers", ()), "--header", "NAME=VALUE")
    given = {"url": flags.pop("url", None), "token": flags.pop("token", None), "headers": headers}
    return {name: value for name, value in given.items() if value}


def _beside(folder: str, what: str, flag: str) -> str:
    if "://" in folder:
        raise click.UsageError(f"{flag} is required: '{folder}' is not a local folder.")
    return f"{Path(folder).resolve()}.{what}"


def _pairs(texts: tuple[str, ...], flag: str, form: str) -> dict[str, str]:
    """Parse options of the form NAME=VALUE."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            shown = flag if flag in _SECRETS else f"{flag} '{text}'"
            raise click.UsageError(f"{shown} must have the form {form}.")
        pairs[name.strip()] = value.strip()
    return pairs


def this_command() -> str:
    """Return the running command, for the user to run again."""
    return shlex.join(("headwater", *without_secrets(sys.argv[1:])))


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with tokens and headers replaced by placeholders."""
    shown: list[str] = []
    for before, each in zip(("", *arguments), arguments, strict=False):
        flag, equals, value = each.partition("=")
        if before in _SECRETS:
            shown.append(_hidden(before, each))
        elif equals and flag in _SECRETS:
            shown.append(f"{flag}={_hidden(flag, value)}")
        else:
            shown.append(each)
    return shown


def _hidden(flag: str, value: str) -> str:
    return _SECRETS[flag].format(value.partition("=")[0])


for job in (materialize, project, archive, restore, snapshot, publish):
    pipeline.add_command(job)
