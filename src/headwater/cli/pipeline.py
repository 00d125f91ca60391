"""`headwater pipeline`: streams through Spark to streams and tables."""

import shlex
import sys
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from headwater.cli._io import counted, url_option
from headwater.cli.pipeline_run import run_options, run_pipelines, with_spark_installed
from headwater.cli.subscriptions import InOrder

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
        from headwater.cli.pipeline_report import print_statuses

        is_whole = print_statuses(files, checkpoints, url=url, token=token, as_json=as_json)
    if not is_whole:
        raise SystemExit(1)


# The jobs as commands of their own: `headwater pipeline materialize --stream … --to …`.
#
# Each makes the same pipeline of its flags as a file would describe.

Command = TypeVar("Command", bound=Callable[..., Any])

_SECRETS: Final = {"--token": "TOKEN", "--header": "{}=VALUE"}
"""What is shown in their place; who sees a header's name knows which one to give again."""
_FORMAT = click.option(
    "--format",
    "table_format",
    type=click.Choice(["delta", "parquet"]),
    default="delta",
    show_default=True,
    help="Format of the tables.",
)


class _Folder(click.Path):
    """A folder of this machine, or, where it may be elsewhere, a URL, which is no path."""

    def __init__(self, *, elsewhere: bool) -> None:
        super().__init__(file_okay=False)
        self._elsewhere = elsewhere

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "://" not in value:
            return str(super().convert(value, param, ctx))
        if not self._elsewhere:
            self.fail(f"'{value}' is no folder of this machine.", param, ctx)
        return str(value)


_FOLDER = _Folder(elsewhere=True)
_ARCHIVE = _Folder(elsewhere=False)


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
        help="A header of every request; may be given several times.",
    ),
)
_SESSION = _options(
    run_options,
    click.option(
        "--spark",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of the Spark session; may be given several times.",
    ),
)
_STREAMS = _options(
    click.option(
        "--stream",
        "streams",
        required=True,
        multiple=True,
        help="A path, or a glob such as shop/*; may be given several times.",
    ),
    _SERVER,
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the source, such as maxBytesPerTrigger=64m; may be given several times.",
    ),
)
_QUERY = _options(
    click.option(
        "--checkpoint",
        type=_FOLDER,
        help="Folder that knows how far it is.  [default: beside --to, with .checkpoint behind]",
    ),
    click.option("--every", metavar="TIME", help="How often it looks, such as '10 seconds'."),
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
    help="Columns of a type's values, such as user='name string, age int'; may be given several "
    "times.",
)
@click.option("--history/--no-history", default=True, help="Keep every version as well.")
@_FORMAT
@_QUERY
def materialize(
    folder: str, schemas: tuple[str, ...], history: bool, table_format: str, **flags: Any
) -> None:
    """Turn state streams into tables: one per type, with history."""
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
@click.option("--publish", metavar="STREAM", help="State stream that gets the snapshots as well.")
@click.option(
    "--grace",
    "grace_seconds",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long a missing event is waited for.  [default: for good]",
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
    """Turn events of runs into tables of runs and of steps."""
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
    """Keep streams as Parquet files, with their offsets."""
    _run({"kind": "archive", "folder": folder}, folder, flags)


@click.command()
@click.option("--from", "folder", required=True, type=_ARCHIVE, help="Folder of the archive.")
@click.option("--stream", help="Path or glob of the archive.  [default: all streams]")
@click.option(
    "--rename",
    "renamed",
    multiple=True,
    metavar="OLD=NEW",
    help="Restore a stream of the archive to another path; may be given several times.",
)
@click.option(
    "--until",
    "ends",
    multiple=True,
    metavar="STREAM=OFFSET",
    help="Restore a stream of the archive up to this offset of it; may be given several times.",
)
@click.option(
    "--incarnation",
    type=int,
    default=-1,
    metavar="NUMBER",
    help="Which one of a stream that was created again, from 0.  [default: the last]",
)
@click.option("--close/--no-close", default=True, help="Close streams that were closed.")
@click.option("--verify/--no-verify", default=True, help="Read everything back and compare it.")
@click.option("--missing-start", is_flag=True, help="Accept that a stream's beginning is missing.")
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
    """Bring an archive back as streams, byte for byte."""
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
@click.option("--stream", "streams", required=True, help="The state stream.")
@click.option("--to", "target", required=True, metavar="STREAM", help="The compact stream.")
@_SERVER
@_SESSION
def snapshot(streams: str, target: str, **flags: Any) -> None:
    """Write the state of a long stream into a compact one."""
    flags["streams"] = (streams,)
    _run({"kind": "snapshot", "stream": target}, "snapshot", flags)


@click.command()
@click.option("--table", required=True, type=_FOLDER, help="Folder of the table.")
@click.option("--to", "stream", required=True, metavar="STREAM", help="Stream that gets changes.")
@click.option("--type", "type_", required=True, help="Type of the entities.")
@click.option(
    "--key",
    "keys",
    required=True,
    multiple=True,
    help="Column that names an entity; may be given several times, for a key of several columns.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    help="Column that becomes a field of the value; may be given several times.  [default: all]",
)
@click.option("--value", metavar="COLUMN", help="Column that holds the whole value, as JSON.")
@click.option("--deletes/--no-deletes", default=True, help="Delete entities without a row.")
@click.option(
    "--state",
    type=_FOLDER,
    help="Folder for what was read of the stream.  [default: TABLE with .published behind]",
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
    """Publish a table as a stream of its changes."""
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
    """Make a pipeline of flags, and run it as if a file had described it."""
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
    with with_spark_installed():
        from headwater.spark.pipelines import read_document

        found = read_document(document, Path.cwd())
        run_pipelines([found], [str(target["kind"])], again=this_command(), **flags)


def _server(flags: dict[str, Any]) -> dict[str, Any]:
    """Take what flags say of the server; those that are not given say nothing."""
    headers = _pairs(flags.pop("headers", ()), "--header", "NAME=VALUE")
    told = {"url": flags.pop("url", None), "token": flags.pop("token", None), "headers": headers}
    return {name: value for name, value in told.items() if value}


def _beside(folder: str, what: str, flag: str) -> str:
    if "://" in folder:
        raise click.UsageError(f"{flag} is needed: a folder of this machine, beside '{folder}'.")
    return f"{Path(folder).resolve()}.{what}"


def _pairs(texts: tuple[str, ...], flag: str, form: str) -> dict[str, str]:
    """Take flags of the form NAME=VALUE."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            shown = flag if flag in _SECRETS else f"{flag} '{text}'"
            raise click.UsageError(f"{shown} has to be {form}.")
        pairs[name.strip()] = value.strip()
    return pairs


def this_command() -> str:
    """Write the command that runs, to be typed again."""
    return shlex.join(("headwater", *without_secrets(sys.argv[1:])))


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Give a command as it may be shown: tokens and headers are secret on one's own screen, too."""
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


sink = copy(publish)
sink.name = "sink"
sink.short_help = "The same as publish."

for job in (materialize, project, archive, restore, snapshot, publish, sink):
    pipeline.add_command(job)
