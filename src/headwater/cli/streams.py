"""`headwater create`: make a stream, or make sure that it is there."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headwater.cli._io import (
    EXIT_CODE,
    Interrupts,
    OutageNotice,
    Output,
    Target,
    body_of,
    check_expiry,
    connected,
    content_type,
    counted,
    load_offset,
    make_client,
    media_type,
    offset,
    save_offset,
    sentence,
    target,
    timestamp,
    url_option,
)
from headwater.cli._progress import Progress
from headwater.errors import ClientError, RequestRefused
from headwater.protocol.content_types import is_json

if TYPE_CHECKING:
    from headwater.cli._stdin import Cutter, Pour, Unconfirmed
    from headwater.client import Appended, Batch, Live


@click.command()
@click.argument("stream")
@click.argument("data", nargs=-1)
@click.option(
    "--content-type",
    type=content_type,
    metavar="TYPE",
    default="application/json",
    show_default=True,
    help="What the stream holds.",
)
@click.option("--ttl", type=click.IntRange(min=0), metavar="SECONDS", help="Idle time to live.")
@click.option(
    "--expires-at",
    type=timestamp,
    metavar="TIME",
    help="When it ends, such as 2030-01-31T12:00:00Z.",
)
@click.option("--closed", is_flag=True, help="Close it at once: DATA is all it will ever hold.")
@url_option
def create(
    stream: str,
    data: tuple[str, ...],
    content_type: str,
    ttl: int | None,
    expires_at: str | None,
    closed: bool,
    url: str,
) -> None:
    """Create a stream, with DATA in it if there is any.

    STREAM is a path such as chat/42, or a whole URL. Each DATA is one message. A stream that exists
    with the same configuration is left as it is.
    """
    check_expiry(ttl, expires_at)
    at = target(stream, url)
    body = body_of(data, content_type)
    with connected(at) as opened:
        created = opened.create(
            content_type, ttl=ttl, expires_at=expires_at, data=body or None, closed=closed
        )
    end = f"it {'is closed' if created.closed else 'ends'} at offset {created.next_offset}"
    if created.new:
        click.echo(f"Created {at} ({created.content_type}); {end}.")
    else:
        added = ", and DATA was not added" if data else ""
        click.echo(f"{at} exists already with this configuration{added}; {end}.")


# `headwater append`: messages from the command line or from standard input.

STDIN: Final = "-"


def unconfirmed_batch(text: str) -> "Unconfirmed":
    """Take the batch that an interrupted command names."""
    from headwater.cli._stdin import parse_unconfirmed

    batch = parse_unconfirmed(text)
    if batch is None:
        raise click.BadParameter("it takes what an interrupted append has told.")
    return batch


@click.command(short_help="Append messages, from arguments or from stdin.")
@click.argument("stream")
@click.argument("data", nargs=-1)
@click.option("--json-lines", is_flag=True, help="Each line of stdin is one JSON message.")
@click.option("--close", is_flag=True, help="Close the stream in one step with the last append.")
@click.option(
    "--content-type", type=content_type, metavar="TYPE", help="Of the data, if not the stream's."
)
@click.option(
    "--skip",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Leave out the first N messages (--json-lines) or bytes of stdin: they are there already.",
)
@click.option(
    "--unconfirmed",
    type=unconfirmed_batch,
    metavar="BATCH",
    help="Batch in doubt, as an interrupted append has told: it is appended unless it was.",
)
@url_option
def append(
    stream: str,
    data: tuple[str, ...],
    json_lines: bool,
    close: bool,
    content_type: str | None,
    skip: int,
    unconfirmed: "Unconfirmed | None",
    url: str,
) -> None:
    """Append DATA, each argument one message; without any, or with -, what stdin gives.

    Bytes from stdin are sent as they arrive, lines as a whole, and never twice. For a JSON stream,
    stdin is one JSON text, and an array gives one message per element; with --json-lines each line
    is a message, sent as it arrives.
    """
    at = target(stream, url)
    from_stdin = data in {(), (STDIN,)}
    if STDIN in data and not from_stdin:
        raise click.UsageError("- stands for stdin and can't come with other data.")
    if not from_stdin and (json_lines or skip or unconfirmed):
        raise click.UsageError("--json-lines, --skip and --unconfirmed are for data from stdin.")
    with connected(at) as opened:
        info = opened.head()
    content_type = content_type or info.content_type
    json = is_json(media_type(content_type))
    if json_lines and not json:
        raise click.UsageError(f"{at} holds {content_type}, not JSON: leave out --json-lines.")
    if not from_stdin:
        what = counted(
            len(data) if json else sum(map(_size, data)), "messages" if json else "bytes"
        )
        _append_once(at, body_of(data, content_type), content_type, what, close=close)
    elif json and not json_lines:
        if skip or unconfirmed:
            raise click.UsageError("--skip and --unconfirmed need --json-lines here.")
        _append_once(at, _whole_stdin(), content_type, "one JSON text", close=close)
    elif info.closed and unconfirmed is None:
        # Said before the first line comes, which may be hours away.
        raise click.ClickException(f"{at} is closed and takes no more appends.")
    else:
        _append_as_it_comes(at, content_type, close=close, skip=skip, unconfirmed=unconfirmed)


def _append_once(at: Target, body: bytes, content_type: str, what: str, *, close: bool) -> None:
    done: Appended | None = None
    with connected(at) as opened:
        if body:
            done = opened.append(body, content_type=content_type, close=close)
        elif close:
            done = opened.close()
    _tell(at, done, what if body else "nothing")


def _append_as_it_comes(
    at: Target, content_type: str, *, close: bool, skip: int, unconfirmed: "Unconfirmed | None"
) -> None:
    """Send stdin in batches until it ends."""
    from headwater.cli._stdin import BadInput, Bytes, JsonLines, Pour, batches
    from headwater.client import is_transient

    _tell_terminal()
    cutter: Cutter = JsonLines(skip) if is_json(media_type(content_type)) else Bytes(skip)
    pour = Pour(content_type, cutter.unit, skipped=skip, unconfirmed=unconfirmed)
    progress = Progress(wanted=not sys.stdin.isatty())
    notice = OutageNotice()
    with Interrupts(once=True) as interrupts:

        def on_retry(error: ClientError, delay: float) -> None:
            # Whoever has pressed Ctrl-C does not want to wait for the server to come back.
            interrupts.check()
            notice(error, delay)

        source = batches(sys.stdin.fileno(), cutter, unconfirmed.size if unconfirmed else None)
        try:
            with make_client(at, patient=True, on_retry=on_retry) as client:
                pour.send(client.stream(at.name), source, interrupts, progress, close=close)
        except KeyboardInterrupt:
            interrupts.over()
            progress.clear()
            click.echo(_standing(at, pour, cutter.unit, close=close), err=True)
            sys.exit(EXIT_CODE)
        except (ClientError, BadInput) as error:
            interrupts.over()
            progress.clear()
            if isinstance(error, RequestRefused) and not is_transient(error):
                pour.unconfirmed = None  # the server has judged it: nothing of it was appended
            click.echo(_standing(at, pour, cutter.unit, close=close), err=True)
            why = sentence(error, at) if isinstance(error, ClientError) else str(error)
            raise click.ClickException(why) from None
    progress.clear()
    _tell(at, pour.last, counted(pour.confirmed, cutter.unit) if pour.confirmed else "nothing")


def _standing(at: Target, pour: "Pour", unit: str, *, close: bool) -> str:
    """Say what is certain, and the command that goes on behind it."""
    arguments = ["--json-lines"] if unit == "messages" else []
    arguments += ["--skip", str(pour.position)] if pour.position else []
    arguments += ["--unconfirmed", str(pour.unconfirmed)] if pour.unconfirmed else []
    arguments += ["--close"] if close else []
    doubt = f", {pour.unconfirmed.size:,} more in doubt" if pour.unconfirmed else ""
    return (
        f"{counted(pour.position, unit)} of the input confirmed{doubt}; "
        f"resume with the same input and: {at.command('append', *arguments)}"
    )


def _tell(at: Target, done: "Appended | None", what: str) -> None:
    if done is None:
        click.echo(f"Appended nothing to {at}: the input was empty.")
        return
    closed = " and closed it" if done.closed else ""
    click.echo(f"Appended {what} to {at}{closed}; it ends at offset {done.next_offset}.")


def _size(argument: str) -> int:
    return len(argument.encode("utf-8", "surrogateescape"))


def _whole_stdin() -> bytes:
    """Read one JSON text, which can't be sent before its end is there."""
    from headwater.cli._stdin import MAX_LINE_BYTES
    from headwater.protocol.framing import check_json

    _tell_terminal()
    body = sys.stdin.buffer.read(MAX_LINE_BYTES + 1).strip()
    if len(body) > MAX_LINE_BYTES:
        raise click.ClickException(
            f"The input is over {MAX_LINE_BYTES} bytes; send it line by line with --json-lines."
        )
    wrong = check_json(body) if body else None
    if wrong is not None:
        raise click.ClickException(
            f"The input is not one JSON text: {wrong}. Use --json-lines for one message per line."
        )
    return body


def _tell_terminal() -> None:
    if sys.stdin.isatty():
        click.echo("Reading from the terminal; end with Ctrl-D.", err=True)


# `headwater read`: a stream's data on standard output, once or for as long as it grows.


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
    from headwater.client import is_transient

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
            if reading.begun and is_transient(error):
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


# `headwater head`: what a server knows of a stream, without its data.


@click.command(short_help="Show where a stream ends and what it holds.")
@click.argument("stream")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@url_option
def head(stream: str, as_json: bool, url: str) -> None:
    """Show where a stream ends, what it holds, and whether it is closed."""
    import msgspec

    at = target(stream, url)
    with connected(at) as opened:
        info = opened.head()
    fields = msgspec.structs.asdict(info)
    if as_json:
        click.echo(msgspec.json.encode(fields).decode())
        return
    fields["closed"] = "yes" if info.closed else "no"
    shown = {name.replace("_", "-"): value for name, value in fields.items() if value is not None}
    width = max(map(len, shown)) + 1
    for name, value in shown.items():
        click.echo(f"{name + ':':<{width}} {value}")


# `headwater close`: end a stream for good.


@click.command(short_help="Close a stream, with a last append if wanted.")
@click.argument("stream")
@click.argument("data", nargs=-1)
@click.option(
    "--content-type", type=content_type, metavar="TYPE", help="Of DATA; else the stream is asked."
)
@url_option
def close(stream: str, data: tuple[str, ...], content_type: str | None, url: str) -> None:
    """Close a stream, in one step with a last append of DATA if there is any.

    A closed stream can be read and forked, but takes no more appends. Closing it again is harmless.
    """
    at = target(stream, url)
    with connected(at) as opened:
        if data:
            content_type = content_type or opened.head().content_type
            closed = opened.close(body_of(data, content_type), content_type=content_type)
        else:
            closed = opened.close()
    click.echo(f"Closed {at}; it ends at offset {closed.next_offset}.")


# `headwater fork`: a stream that starts with the data of another.


@click.command(short_help="Create TARGET with the data of SOURCE.")
@click.argument("source")
@click.argument("new_stream", metavar="TARGET")
@click.option(
    "--offset", type=offset, metavar="OFFSET", help="Where to part; the end of SOURCE if not given."
)
@click.option(
    "--sub-offset",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Part N messages (JSON) or bytes behind --offset.",
)
@click.option("--ttl", type=click.IntRange(min=0), metavar="SECONDS", help="Idle time to live.")
@click.option(
    "--expires-at",
    type=timestamp,
    metavar="TIME",
    help="When it ends, such as 2030-01-31T12:00:00Z.",
)
@url_option
def fork(
    source: str,
    new_stream: str,
    offset: str | None,
    sub_offset: int,
    ttl: int | None,
    expires_at: str | None,
    url: str,
) -> None:
    """Create TARGET with the data that SOURCE has up to an offset.

    Both go their own ways from there. No data is copied.
    """
    check_expiry(ttl, expires_at)
    at, new = target(source, url), target(new_stream, url)
    with connected(at) as opened:
        try:
            created = opened.fork(
                new.name, offset=offset, sub_offset=sub_offset, ttl=ttl, expires_at=expires_at
            )
        except ValueError as error:
            raise click.UsageError(f"{error}.") from None
    what = f"Forked {at} as {new}" if created.new else f"{new} is already this fork of {at}"
    click.echo(f"{what}; it ends at offset {created.next_offset}.")


# `headwater delete`: remove a stream and its data.


@click.command(short_help="Delete a stream and its data.")
@click.argument("stream")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@url_option
def delete(stream: str, yes: bool, url: str) -> None:
    """Delete a stream and its data; its forks keep what they share with it."""
    at = target(stream, url)
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {at} and all its data?", abort=True, err=True)
    with connected(at) as opened:
        opened.delete()
    click.echo(f"Deleted {at}.")
