"""`headwater append`: messages from the command line or from standard input."""

import sys
from typing import TYPE_CHECKING, Final

import click

from headwater.cli.interrupts import EXIT_CODE, Interrupts
from headwater.cli.progress import Progress
from headwater.cli.targets import (
    OutageNotice,
    Target,
    connected,
    make_client,
    sentence,
    target,
    url_option,
)
from headwater.cli.values import body_of, content_type, counted, media_type
from headwater.errors import ClientError, RequestRefused
from headwater.protocol.content_types import is_json

if TYPE_CHECKING:
    from headwater.cli.batches import Cutter
    from headwater.cli.pouring import Pour, Unconfirmed
    from headwater.client import Appended

STDIN: Final = "-"


def unconfirmed_batch(text: str) -> "Unconfirmed":
    """Take the batch that an interrupted command names."""
    from headwater.cli.pouring import parse_unconfirmed

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
    from headwater.cli.batches import BadInput, Bytes, JsonLines, batches
    from headwater.cli.pouring import Pour
    from headwater.client.retry import is_passing

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
            if isinstance(error, RequestRefused) and not is_passing(error):
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
    from headwater.cli.batches import MAX_LINE_BYTES
    from headwater.client.calls import check_json

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
