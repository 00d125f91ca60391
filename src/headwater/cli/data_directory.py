"""`headwater check`, `repair`, `backup` and `info`: commands over a data directory itself."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.cli._io import NOTICE_SECONDS, counted
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

    from headwater.storage.disk.offline.check import CheckReport
    from headwater.storage.disk.offline.info import DirectoryInfo

_INTERVAL_SECONDS: Final = 2.0
_TERMINATED: Final = 128 + signal.SIGTERM
"""What a shell reports of a process that SIGTERM has ended."""
_DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)


class Progress:
    """A bar on a terminal, a line now and then elsewhere, once it takes more than two seconds."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._clock = clock
        self._next = clock() + NOTICE_SECONDS
        self._bar: ProgressBar[int] | None = None
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        """Tell how far it is."""
        now = self._clock()
        if now < self._next and self._bar is None:
            return
        if sys.stderr.isatty():
            if self._bar is None:
                self._bar = click.progressbar(length=total, label=self._label, file=sys.stderr)
                self._bar.render_progress()
            self._bar.update(done - self._done)
            self._done = done
        else:
            self._next = now + _INTERVAL_SECONDS
            part = 100 * done // total if total else 100
            click.echo(f"{self._label}: {part} % of {size_of(total)}", err=True)

    def begin(self, label: str) -> "Progress":
        """Go on with something else."""
        self.finish()
        self._label = label
        return self

    def finish(self) -> None:
        """Leave the line to what comes next."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None
            self._done = 0


@contextmanager
def _reported(label: str) -> Iterator[Progress]:
    """Show progress in a block, and turn what fails in it into one sentence."""
    progress = Progress(label)
    try:
        with _terminable():
            yield progress
    except HeadwaterError as error:
        progress.finish()
        raise click.ClickException(str(error)) from None
    except OSError as error:
        progress.finish()
        where = "" if error.filename is None else f" '{error.filename}'"
        raise click.ClickException(f"Can't use{where}: {error.strerror or error}.") from None
    progress.finish()


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a block as Ctrl-C does, so that what it has put aside is removed."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def size_of(count: int) -> str:
    """Write a number of bytes for a person."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@click.command(short_help="Verify every checksum of a data directory.")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
def check(directory: Path) -> None:
    """Verify every checksum of a data directory, and whether its files agree.

    A server may run on it meanwhile; nothing is changed. Ends with 0 if all is well, with 1 and a
    list of all damage otherwise.
    """
    from headwater.storage.disk.offline.check import check as run

    with _reported("Checking") as progress:
        report = run(directory, progress)
    for note in report.notes:
        click.echo(f"Note: {note}")
    if not report.damages:
        click.echo(f"All is well: {_seen(report)}.")
        return
    for finding in report.damages:
        click.echo(str(finding))
    click.echo(
        f"Found {counted(len(report.damages), 'damages')} in {_seen(report)}. "
        f"Save the rest with: headwater repair {directory}"
    )
    raise SystemExit(1)


def _seen(report: "CheckReport") -> str:
    return (
        f"{counted(report.streams, 'streams')}, {counted(report.extents, 'extents')} in "
        f"{counted(report.segments, 'segments')} and {counted(report.records, 'records')} in "
        f"{counted(report.journals, 'journal files')}"
    )


@click.command(short_help="Save what can be saved of a damaged data directory.")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--yes", is_flag=True, help="Don't ask before changing anything.")
def repair(directory: Path, yes: bool) -> None:
    """Save what can be saved of a damaged data directory, and say what is dropped.

    No server may run on it. A stream with a damaged part keeps what lies before it; other streams
    are not affected. What is replaced is kept in DIR/damaged-TIME.
    """
    from headwater.storage.disk.offline.repair import prepare

    with _reported("Checking") as progress, prepare(directory, progress.begin) as plan:
        progress.finish()
        if not plan.needed:
            click.echo(f"Nothing to repair: {_seen(plan.report)}.")
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
        kept = plan.install()
        click.echo(
            f"Repaired {directory}: it has {counted(plan.streams, 'streams')} now. "
            f"What was replaced is kept in {kept}."
        )


@click.command(short_help="Copy a data directory while its server runs.")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.argument("target", metavar="TARGET", type=_DIRECTORY)
@click.option(
    "--copy", is_flag=True, help="Copy segments even where they could be shared by hard links."
)
def backup(directory: Path, target: Path, copy: bool) -> None:
    """Copy a consistent state of a data directory to TARGET, which must be new or empty.

    A server may run on DIR meanwhile. One that is started on TARGET has every append that was
    acknowledged before the backup began. Segments never change: on the same file system they are
    shared by hard links. Runs that are kept beside the streams are copied as well.
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


@click.command(short_help="Show the figures of a data directory.")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(directory: Path, as_json: bool) -> None:
    """Show how much a data directory holds, and what its engine measured.

    Counts are those of the last checkpoint; a server may run meanwhile.
    """
    import msgspec

    from headwater.storage.disk.offline.info import read_info

    with _reported("Counting"):
        found = read_info(directory)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    lines = [*_contents(found), *_measured(found.metrics)]
    width = max(len(name) for name, _ in lines) + 2
    for name, value in lines:
        click.echo(f"{name:<{width}}{value}")


def _contents(found: "DirectoryInfo") -> Iterator[tuple[str, str]]:
    server = "not running"
    if found.running:
        server = "running" if found.process is None else f"running, process {found.process}"
    kept = f", {found.deleted_streams:,} deleted but kept" if found.deleted_streams else ""
    cut = f", {found.cut_streams:,} cut by a repair" if found.cut_streams else ""
    live = 100 * found.segment_live_bytes / found.segment_bytes if found.segment_bytes else 100
    formats = ", ".join(f"{name} {version}" for name, version in found.formats.items())
    yield "directory", found.directory
    yield "server", server
    yield (
        "streams",
        f"{found.streams:,} ({found.closed_streams:,} closed, {found.forks:,} forks{kept}{cut})",
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


def _measured(metrics: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in metrics.items():
        title = name.replace("_", " ")
        if isinstance(value, dict):
            times = ", ".join(f"{part} {value[part]:.6f}" for part in ("mean", "p50", "p99", "max"))
            yield title, f"{value['count']:,} times, {times}"
        elif isinstance(value, float):
            yield title, f"{value:.3f}"
        else:
            yield title, f"{value:,}"
