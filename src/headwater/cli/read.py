"""`headwater read`: a stream's data on standard output, once or for as long as it grows."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwater.cli.interrupts import EXIT_CODE, Interrupts
from headwater.cli.output import Output
from headwater.cli.progress import Progress
from headwater.cli.resume import load_offset, save_offset
from headwater.cli.targets import Target, make_client, sentence, target, url_option
from headwater.cli.values import offset
from headwater.errors import ClientError

if TYPE_CHECKING:
    from headwater.client import Batch
    from headwater.client.following import Live


@click.command(short_help="Print a stream, JSON messages one per line.")
@click.argument("stream")
@click.option(
    "--offset",
    type=offset,
    metavar="OFFSET",
    default="-1",
    show_default=True,
    help="Where to begin: -1 for the start, now for the end, or an offset that was told.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until the stream is closed.")
@click.option(
    "--live",
    type=click.Choice(["auto", "sse", "long-poll"]),
    default="auto",
    show_default=True,
    help="How to wait: long-poll where a proxy holds back events.",
)
@click.option(
    "--resume",
    "resume_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Begin behind the offset in FILE if it exists, and keep it up to date.",
)
@url_option
def read(
    stream: str, offset: str, follow: bool, live: "Live", resume_file: Path | None, url: str
) -> None:
    """Print a stream: JSON messages one per line, other data as it is.

    When it ends, also by Ctrl-C, it tells the command that goes on from there. With --resume the
    position is saved after each part that was written, so that the same command goes on by itself.
    """
    from headwater.client.retry import is_passing

    at = target(stream, url)
    saved = load_offset(resume_file) if resume_file else None
    reading = Reading(at, saved or offset, resume_file, live if follow else None)
    with Interrupts() as interrupts:
        try:
            reading.run(interrupts)
        except KeyboardInterrupt:
            reading.finish(interrupts)
            sys.exit(EXIT_CODE)
        except ClientError as error:
            if reading.begun and is_passing(error):
                reading.finish(interrupts)
            raise click.ClickException(sentence(error, at)) from None
        reading.finish(interrupts)


class Reading:
    """One run of the command: what is written, and how far it is."""

    def __init__(
        self, at: Target, offset: str, resume_file: Path | None, live: "Live | None"
    ) -> None:
        self._at = at
        self._offset = offset
        self._resume_file = resume_file
        self._live = live
        self._closed = False
        self._output = Output()
        self._progress = Progress(wanted=self._output.is_file)
        self._bytes = 0
        self.begun = False
        """Whether something has been read, so that there is something to resume."""

    def run(self, interrupts: Interrupts) -> None:
        """Write the stream until it ends, or nobody reads any more."""
        for batch in self._batchs():
            with interrupts.held():
                self._write(batch)
            if self._output.gone:
                return

    def finish(self, interrupts: Interrupts) -> None:
        """Say how to go on, unless whoever read the output has gone."""
        self._output.finish()
        interrupts.over()
        self._progress.clear()
        if self._output.gone:
            return
        if self._closed:
            message = f"{self._at} is closed; it ends at offset {self._offset}."
        else:
            message = f"The next offset is {self._offset}; resume with: {self._command()}"
        click.echo(message, err=True)

    def _batchs(self) -> Iterator["Batch"]:
        with make_client(self._at) as client:
            if self._live is None:
                yield from client.stream(self._at.name).read(self._offset)
                return
            # A wrong name or server is told at once, not waited for.
            client.stream(self._at.name).head()
        with make_client(self._at, patient=True) as client:
            self._output.watch(client.close)
            yield from client.stream(self._at.name).follow(self._offset, live=self._live)

    def _write(self, batch: "Batch") -> None:
        keeps = self._resume_file is not None
        self._output.write(batch, flush=keeps or self._live is not None)
        if self._output.gone:
            return
        moved = batch.next_offset != self._offset
        self._offset, self._closed, self.begun = batch.next_offset, batch.closed, True
        if self._resume_file is not None and moved:
            # Only now: what is saved as read has been written and flushed.
            save_offset(self._resume_file, self._offset)
        self._bytes += len(batch.data)
        self._progress.show(f"{self._bytes:,} bytes read")

    def _command(self) -> str:
        follow = ["--follow"] if self._live is not None else []
        if self._live not in {None, "auto"}:
            follow += ["--live", str(self._live)]
        if self._resume_file is not None:
            return self._at.command("read", *follow, "--resume", str(self._resume_file))
        return self._at.command("read", "--offset", self._offset, *follow)
