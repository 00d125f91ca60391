"""The commands on one stream: create, append, read, head, close, fork and delete."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headwater.cli._io import (
    EXIT_CODE,
    Command,
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
    print_fields,
    save_offset,
    sentence,
    stream_target,
    timestamp,
    url_option,
)
from headwater.cli._progress import Progress
from headwater.errors import ClientError
from headwater.protocol.content_types import is_json

if TYPE_CHECKING:
    from headwater.cli._stdin import ResumableAppend
    from headwater.client import Appended, Batch, Live

STDIN: Final = "-"


def _expiry_options(command: Command) -> Command:
    """Add the options for the expiry of a new stream."""
    ttl = click.option(
        "--ttl",
        type=click.IntRange(min=0),
        metavar="SECONDS",
        help="Delete the new stream after this time without access.",
    )
    expires_at = click.option(
        "--expires-at",
        type=timestamp,
        metavar="TIME",
        help="Delete the new stream at this time, such as 2030-01-31T12:00:00Z.",
    )
    return ttl(expires_at(command))


def _resume_option(what: str) -> Callable[[Command], Command]:
    """Return the option for the file that holds a position, from which the command continues."""
    return click.option(
        "--resume",
        "resume_file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"Start at the {what} that FILE holds, if it exists, and keep it up to date.",
    )


# --- create


@click.command()
@click.argument("stream")
@click.argument("data", nargs=-1)
@click.option(
    "--content-type",
    type=content_type,
    metavar="TYPE",
    default="application/json",
    show_default=True,
    help="Content type of the stream.",
)
@_expiry_options
@click.option("--closed", is_flag=True, help="Close the stream at once: it holds only DATA.")
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

    STREAM is a path such as chat/42, or a whole URL. Each DATA is one message. An existing stream
    with the same configuration is not changed.
    """
    check_expiry(ttl, expires_at)
    target = stream_target(stream, url)
    body = body_of(data, content_type)
    with connected(target) as client:
        created = client.stream(target.name).create(
            content_type, ttl=ttl, expires_at=expires_at, data=body or None, closed=closed
        )
    end = f"it {'is closed' if created.closed else 'ends'} at offset {created.next_offset}"
    if created.new:
        click.echo(f"Created {target} ({created.content_type}); {end}.")
    else:
        added = ", and DATA was not added" if data else ""
        click.echo(f"{target} already exists with this configuration{added}; {end}.")


# --- append


@click.command(short_help="Append messages, from arguments or from stdin.")
@click.argument("stream")
@click.argument("data", nargs=-1)
@click.option("--json-lines", is_flag=True, help="Each line of stdin is one JSON message.")
@click.option("--close", is_flag=True, help="Close the stream in one step with the last append.")
@click.option(
    "--content-type",
    type=content_type,
    metavar="TYPE",
    help="Content type of the data.  [default: that of the stream]",
)
@_resume_option("position in stdin")
@url_option
def append(
    stream: str,
    data: tuple[str, ...],
    json_lines: bool,
    close: bool,
    content_type: str | None,
    resume_file: Path | None,
    url: str,
) -> None:
    """Append DATA, each argument one message; without DATA, or with -, append standard input.

    Bytes from stdin are sent as they arrive, in whole lines if there are any. For a JSON stream,
    stdin is one JSON text, and an array makes one message per element; with --json-lines each line
    is a message, sent as it arrives.

    With --resume the position in the input is saved around each append. After an interruption, also
    after a crash, the same command with the same FILE and the same input continues where it
    stopped: nothing is lost and nothing is appended twice. Input that was added since is appended.
    """
    target = stream_target(stream, url)
    from_stdin = data in {(), (STDIN,)}
    if STDIN in data and not from_stdin:
        raise click.UsageError("- stands for stdin and can't be combined with other data.")
    if not from_stdin and (json_lines or resume_file is not None):
        raise click.UsageError("--json-lines and --resume are for data from stdin.")
    with connected(target) as client:
        info = client.stream(target.name).head()
    content_type = content_type or info.content_type
    json = is_json(media_type(content_type))
    if json_lines and not json:
        raise click.UsageError(f"{target} holds {content_type}, not JSON: leave out --json-lines.")
    if not from_stdin:
        what = counted(
            len(data) if json else sum(map(_size, data)), "messages" if json else "bytes"
        )
        _append_once(target, body_of(data, content_type), content_type, what, close=close)
    elif json and not json_lines:
        if resume_file is not None:
            raise click.UsageError("--resume needs --json-lines for a JSON stream.")
        _append_once(target, _whole_stdin(), content_type, "one JSON text", close=close)
    else:
        _append_stdin(target, content_type, resume_file, close=close, is_closed=info.closed)


def _append_once(target: Target, body: bytes, content_type: str, what: str, *, close: bool) -> None:
    done: Appended | None = None
    with connected(target) as client:
        stream = client.stream(target.name)
        if body:
            done = stream.append(body, content_type=content_type, close=close)
        elif close:
            done = stream.close()
    _report(target, done, what if body else "nothing")


def _append_stdin(
    target: Target, content_type: str, file: Path | None, *, close: bool, is_closed: bool
) -> None:
    """Send standard input in batches until it ends."""
    from headwater.cli._stdin import BadInput, Bytes, JsonLines, ResumableAppend

    cutter = JsonLines() if is_json(media_type(content_type)) else Bytes()
    append = ResumableAppend(target, content_type, cutter, file)
    if is_closed and not append.is_resumed:
        # Report it before waiting for input, which may arrive hours later.
        raise click.ClickException(f"{target} is closed and takes no more appends.")
    _explain_terminal()
    progress = Progress(enabled=not sys.stdin.isatty())
    notice = OutageNotice(progress)
    with Interrupts(once=True) as interrupts:

        def on_retry(error: ClientError, delay: float) -> None:
            # After Ctrl-C, do not wait for the server.
            interrupts.check()
            notice(error, delay)

        try:
            with make_client(target, progress, patient=True, on_retry=on_retry) as client:
                stream = client.stream(target.name)
                append.send(stream, sys.stdin.fileno(), interrupts, progress, close=close)
        except KeyboardInterrupt:
            interrupts.finish()
            progress.clear()
            click.echo(_how_to_resume(target, append, close=close), err=True)
            sys.exit(EXIT_CODE)
        except (ClientError, BadInput) as error:
            interrupts.finish()
            progress.clear()
            click.echo(_how_to_resume(target, append, close=close), err=True)
            why = sentence(error, target) if isinstance(error, ClientError) else str(error)
            raise click.ClickException(why) from None
        append.finish()
    progress.clear()
    what = counted(append.confirmed, append.unit) if append.confirmed else "nothing"
    _report(target, append.last, what, resumed_at=append.resumed_at, unit=append.unit)


def _how_to_resume(target: Target, append: "ResumableAppend", *, close: bool) -> str:
    """Report what is confirmed, and the command that continues after it."""
    file = append.interrupt()
    arguments = ["--json-lines"] if append.unit == "messages" else []
    arguments += ["--resume", str(file)] if file is not None else []
    arguments += ["--close"] if close else []
    unconfirmed = append.saved.unconfirmed
    doubt = f", {unconfirmed.size:,} more in doubt" if unconfirmed is not None else ""
    return (
        f"{counted(append.saved.position, append.unit)} of the input confirmed{doubt}; "
        f"resume with the same input and: {target.command('append', *arguments)}"
    )


def _report(
    target: Target, done: "Appended | None", what: str, *, resumed_at: int = 0, unit: str = ""
) -> None:
    if done is None:
        after = f" after the first {counted(resumed_at, unit)}" if resumed_at else ""
        click.echo(f"Appended nothing to {target}: the input was empty{after}.")
        return
    closed = " and closed it" if done.closed else ""
    click.echo(f"Appended {what} to {target}{closed}; it ends at offset {done.next_offset}.")


def _size(argument: str) -> int:
    return len(argument.encode("utf-8", "surrogateescape"))


def _whole_stdin() -> bytes:
    """Read all of stdin, as one JSON text."""
    from headwater.cli._stdin import MAX_LINE_BYTES
    from headwater.protocol.framing import check_json

    _explain_terminal()
    body = sys.stdin.buffer.read(MAX_LINE_BYTES + 1).strip()
    if len(body) > MAX_LINE_BYTES:
        raise click.ClickException(
            f"The input exceeds {MAX_LINE_BYTES} bytes; send it line by line with --json-lines."
        )
    wrong = check_json(body) if body else None
    if wrong is not None:
        raise click.ClickException(
            f"The input is not one JSON text: {wrong}. Use --json-lines for one message per line."
        )
    return body


def _explain_terminal() -> None:
    if sys.stdin.isatty():
        click.echo("Reading from the terminal; end with Ctrl-D.", err=True)


# --- read


@click.command(short_help="Print a stream, JSON messages one per line.")
@click.argument("stream")
@click.option(
    "--offset",
    type=offset,
    metavar="OFFSET",
    default="-1",
    show_default=True,
    help="Where to start: -1 for the beginning, now for the end, or an offset that was printed.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until the stream is closed.")
@click.option(
    "--live",
    type=click.Choice(["auto", "sse", "long-poll"]),
    default="auto",
    show_default=True,
    help="How to wait: use long-poll if a proxy delays server-sent events.",
)
@_resume_option("offset")
@url_option
def read(
    stream: str, offset: str, follow: bool, live: "Live", resume_file: Path | None, url: str
) -> None:
    """Print a stream: JSON messages one per line, other data unchanged.

    When it ends, also by Ctrl-C, it prints the command that continues from there. With --resume,
    the offset is saved after each part is written, so that the same command continues.
    """
    from headwater.client import is_transient

    target = stream_target(stream, url)
    saved = load_offset(resume_file) if resume_file else None
    command = _ReadCommand(target, saved or offset, resume_file, live if follow else None)
    with Interrupts() as interrupts:
        try:
            command.run(interrupts)
        except KeyboardInterrupt:
            command.finish(interrupts)
            sys.exit(EXIT_CODE)
        except ClientError as error:
            if command.has_started and is_transient(error):
                command.finish(interrupts)
            raise click.ClickException(sentence(error, target)) from None
        command.finish(interrupts)


class _ReadCommand:
    """One run of `read`: what it has written, and where the next run starts."""

    def __init__(
        self, target: Target, offset: str, resume_file: Path | None, live: "Live | None"
    ) -> None:
        self._target = target
        self._offset = offset
        self._resume_file = resume_file
        self._live = live
        self._closed = False
        self._output = Output()
        self._progress = Progress(enabled=self._output.is_file)
        self._bytes = 0
        self.has_started = False
        """Whether something has been read, so that there is something to resume."""

    def run(self, interrupts: Interrupts) -> None:
        """Write the stream until it ends, or the reader of the output closes it."""
        for batch in self._batches():
            with interrupts.deferred():
                self._write(batch)
            if self._output.is_closed:
                return

    def finish(self, interrupts: Interrupts) -> None:
        """Print how to continue, unless the output was closed."""
        self._output.finish()
        interrupts.finish()
        self._progress.clear()
        if self._output.is_closed:
            return
        if self._closed:
            message = f"{self._target} is closed; it ends at offset {self._offset}."
        else:
            message = f"The next offset is {self._offset}; resume with: {self._command()}"
        click.echo(message, err=True)

    def _batches(self) -> Iterator["Batch"]:
        name = self._target.name
        with make_client(self._target, self._progress) as client:
            if self._live is None:
                yield from client.stream(name).read(self._offset)
                return
            # Report a wrong stream or server at once, instead of waiting for it.
            client.stream(name).head()
        with make_client(self._target, self._progress, patient=True) as client:
            self._output.watch(client.close)
            yield from client.stream(name).follow(self._offset, live=self._live)

    def _write(self, batch: "Batch") -> None:
        is_saved = self._resume_file is not None
        self._output.write(batch, flush=is_saved or self._live is not None)
        if self._output.is_closed:
            return
        moved = batch.next_offset != self._offset
        self._offset, self._closed, self.has_started = batch.next_offset, batch.closed, True
        if self._resume_file is not None and moved:
            # The data up to this offset has been written and flushed.
            save_offset(self._resume_file, self._offset)
        self._bytes += len(batch.data)
        self._progress.show(f"{self._bytes:,} bytes read")

    def _command(self) -> str:
        follow = ["--follow"] if self._live is not None else []
        if self._live not in {None, "auto"}:
            follow += ["--live", str(self._live)]
        if self._resume_file is not None:
            return self._target.command("read", *follow, "--resume", str(self._resume_file))
        return self._target.command("read", "--offset", self._offset, *follow)


# --- head


@click.command(short_help="Show where a stream ends and what it holds.")
@click.argument("stream")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@url_option
def head(stream: str, as_json: bool, url: str) -> None:
    """Show where a stream ends, what it holds, and whether it is closed."""
    import msgspec

    target = stream_target(stream, url)
    with connected(target) as client:
        info = client.stream(target.name).head()
    fields = msgspec.structs.asdict(info)
    if as_json:
        click.echo(msgspec.json.encode(fields).decode())
        return
    fields["closed"] = "yes" if info.closed else "no"
    print_fields(
        [(name.replace("_", "-"), value) for name, value in fields.items() if value is not None]
    )


# --- close


@click.command(short_help="Close a stream, with a last append if DATA is given.")
@click.argument("stream")
@click.argument("data", nargs=-1)
@click.option(
    "--content-type",
    type=content_type,
    metavar="TYPE",
    help="Content type of DATA.  [default: that of the stream]",
)
@url_option
def close(stream: str, data: tuple[str, ...], content_type: str | None, url: str) -> None:
    """Close a stream, in one step with a last append of DATA if there is any.

    A closed stream can be read and forked, but not appended to. Closing it again has no effect.
    """
    target = stream_target(stream, url)
    with connected(target) as client:
        opened = client.stream(target.name)
        if data:
            content_type = content_type or opened.head().content_type
            closed = opened.close(body_of(data, content_type), content_type=content_type)
        else:
            closed = opened.close()
    click.echo(f"Closed {target}; it ends at offset {closed.next_offset}.")


# --- fork


@click.command(short_help="Create TARGET with the data of SOURCE.")
@click.argument("source")
@click.argument("new_stream", metavar="TARGET")
@click.option(
    "--offset",
    type=offset,
    metavar="OFFSET",
    help="Where the streams diverge.  [default: the end of SOURCE]",
)
@click.option(
    "--sub-offset",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Diverge N messages (JSON) or bytes after --offset.",
)
@_expiry_options
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
    """Create TARGET with the data of SOURCE up to an offset, without copying it.

    After that offset the two streams are independent.
    """
    check_expiry(ttl, expires_at)
    target, new = stream_target(source, url), stream_target(new_stream, url)
    with connected(target) as client:
        try:
            created = client.stream(target.name).fork(
                new.name, offset=offset, sub_offset=sub_offset, ttl=ttl, expires_at=expires_at
            )
        except ValueError as error:
            raise click.UsageError(f"{error}.") from None
    what = f"Forked {target} as {new}" if created.new else f"{new} is already this fork of {target}"
    click.echo(f"{what}; it ends at offset {created.next_offset}.")


# --- delete


@click.command(short_help="Delete a stream and its data.")
@click.argument("stream")
@click.option("--yes", "-y", is_flag=True, help="Delete without asking.")
@url_option
def delete(stream: str, yes: bool, url: str) -> None:
    """Delete a stream and its data; its forks retain the data that they share with it."""
    target = stream_target(stream, url)
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {target} and all its data?", abort=True, err=True)
    with connected(target) as client:
        client.stream(target.name).delete()
    click.echo(f"Deleted {target}.")
