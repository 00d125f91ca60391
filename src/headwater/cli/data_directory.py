"""`headwater check`, `repair`, `backup` and `info`: commands over a data directory."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.cli._io import Termination, counted, print_fields
from headwater.cli._progress import NOTICE_SECONDS, Progress, size_of
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.storage.disk.offline.check import CheckReport
    from headwater.storage.disk.offline.info import DirectoryInfo

_DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)


@contextmanager
def _reported(label: str) -> Iterator[Progress]:
    """Show progress during a block; a failure in it is reported as one sentence."""
    progress = Progress(label, every=NOTICE_SECONDS)
    progress.show(f"{label} …")
    try:
        with Termination():
            yield progress
    except HeadwaterError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        where = "" if error.filename is None else f" '{error.filename}'"
        raise click.ClickException(f"Can't use{where}: {error.strerror or error}.") from None
    finally:
        progress.clear()


@click.command(short_help="Verify every checksum of a data directory.")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
def check(directory: Path) -> None:
    """Verify every checksum of a data directory, and that its files are consistent.

    A server may be running on it; nothing is changed. The exit code is 0 if there is no damage;
    otherwise all damage is listed and the exit code is 1.
    """
    from headwater.storage.disk.offline.check import check as run

    with _reported("Checking") as progress:
        report = run(directory, progress)
    for note in report.notes:
        click.echo(f"Note: {note}")
    if not report.damages:
        click.echo(f"No damage found: {_checked(report)}.")
        return
    for finding in report.damages:
        click.echo(str(finding))
    click.echo(
        f"Found {counted(len(report.damages), 'damages')} in {_checked(report)}. "
        f"Recover the rest with: headwater repair {directory}"
    )
    raise SystemExit(1)


def _checked(report: "CheckReport") -> str:
    return (
        f"{counted(report.streams, 'streams')}, {counted(report.extents, 'extents')} in "
        f"{counted(report.segments, 'segments')} and {counted(report.records, 'records')} in "
        f"{counted(report.journals, 'journal files')}"
    )


@click.command(short_help="Recover the intact part of a damaged data directory.")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--yes", is_flag=True, help="Repair without asking.")
def repair(directory: Path, yes: bool) -> None:
    """Recover the intact part of a damaged data directory, and list what is dropped.

    No server may be running on it. A stream with a damaged part keeps the data before that part;
    other streams are not affected. Replaced files are moved to DIR/damaged-TIME.
    """
    from headwater.storage.disk.offline.repair import prepare

    with _reported("Checking") as progress, prepare(directory, progress.begin) as plan:
        progress.clear()
        if not plan.needed:
            click.echo(f"Nothing to repair: {_checked(plan.report)}.")
            return
        for finding in plan.report.damages:
            click.echo(f"Damage: {finding}")
        for line in (*plan.dropped, *plan.recovered):
            click.echo(line)
        if not plan.dropped:
            click.echo("Nothing has to be dropped.")
        if not yes and not click.confirm("Repair it like this?"):
            click.echo("Nothing was changed.")
            raise SystemExit(1)
        replaced = plan.install()
        click.echo(
            f"Repaired {directory}: it now has {counted(plan.streams, 'streams')}. "
            f"The replaced files are in {replaced}."
        )


@click.command(short_help="Copy a data directory while its server is running.")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.argument("target", metavar="TARGET", type=_DIRECTORY)
@click.option(
    "--copy", is_flag=True, help="Copy segments even where they could be shared by hard links."
)
def backup(directory: Path, target: Path, copy: bool) -> None:
    """Copy a consistent state of a data directory to TARGET, which must be new or empty.

    A server may be running on DIR. A server started on TARGET has every append that was
    acknowledged before the backup began. Segments never change: on the same file system they are
    shared by hard links. Runs that are stored beside the streams are copied as well.
    """
    from headwater.runs.stores.sqlite_schema import copy as copy_runs
    from headwater.server.runs.service import FILE
    from headwater.storage.disk.offline.backup import backup as run

    with _reported("Copying") as progress:
        copied = run(directory, target, progress, link=not copy)
    shared = f", {copied.linked} of them shared" if copied.linked else ""
    click.echo(
        f"Copied {counted(copied.streams, 'streams')} to {target}: "
        f"{counted(copied.segments, 'segments')}{shared} with {size_of(copied.segment_bytes)}, "
        f"{size_of(copied.journal_bytes)} of journal, {size_of(copied.catalog_bytes)} of catalog."
    )
    if (directory / FILE).exists():
        with _reported("Copying runs"):
            size = copy_runs(directory / FILE, target / FILE)
        click.echo(f"Copied {size_of(size)} of runs.")


@click.command(short_help="Show the contents and metrics of a data directory.")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(directory: Path, as_json: bool) -> None:
    """Show how much a data directory holds, and the metrics of its engine.

    Counts are those of the last checkpoint; a server may be running on it.
    """
    import msgspec

    from headwater.storage.disk.offline.info import read_info

    with _reported("Counting"):
        found = read_info(directory)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    print_fields([*_contents(found), *_metrics(found.metrics)])


def _contents(found: "DirectoryInfo") -> Iterator[tuple[str, str]]:
    server = "not running"
    if found.running:
        server = "running" if found.process is None else f"running, process {found.process}"
    deleted = (
        f", {found.deleted_streams:,} deleted but needed by forks" if found.deleted_streams else ""
    )
    cut = f", {found.cut_streams:,} cut by a repair" if found.cut_streams else ""
    live = 100 * found.segment_live_bytes / found.segment_bytes if found.segment_bytes else 100
    formats = ", ".join(f"{name} {version}" for name, version in found.formats.items())
    yield "directory", found.directory
    yield "server", server
    yield (
        "streams",
        f"{found.streams:,} ({found.closed_streams:,} closed, {found.forks:,} forks{deleted}{cut})",
    )
    yield "bytes", f"{found.stream_bytes:,}"
    yield "producers", f"{found.producers:,}"
    yield "extents", f"{found.extents:,}"
    yield (
        "per stream",
        f"{found.extents_per_stream_mean:.2f} on average, {found.extents_per_stream_max:,} at most",
    )
    yield (
        "segments",
        f"{found.segments:,} with {size_of(found.segment_bytes)}, {live:.0f} % of it live",
    )
    journal = f"{counted(found.journal_files, 'files')} with {size_of(found.journal_bytes)}"
    yield "journal", f"{journal}, needed from {found.journal_from} on"
    yield "catalog", size_of(found.catalog_bytes)
    yield "formats", formats


def _metrics(metrics: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in metrics.items():
        title = name.replace("_", " ")
        if isinstance(value, dict):
            times = ", ".join(f"{part} {value[part]:.6f}" for part in ("mean", "p50", "p99", "max"))
            yield title, f"{value['count']:,} times, {times}"
        elif isinstance(value, float):
            yield title, f"{value:.3f}"
        else:
            yield title, f"{value:,}"
