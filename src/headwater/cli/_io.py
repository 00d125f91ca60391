"""What every command over a stream needs: which stream, on which server, and a client for it."""

import os
import re
import select
import shlex
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self, TypeVar

import click
from click.core import ParameterSource

from headwater.errors import (
    ClientError,
    ConnectionLost,
    HeadwaterError,
    StreamNotFound,
    Unreachable,
)
from headwater.protocol import content_types
from headwater.protocol.content_types import is_json
from headwater.protocol.headers import BadHeader, parse_expiry

if TYPE_CHECKING:
    from headwater.client import Batch, Client, Stream

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_URL: Final = "http://127.0.0.1:4437"
NOTICE_SECONDS: Final = 2.0
_NEW_OUTAGE_SECONDS: Final = 15.0


def url_option(command: Command) -> Command:
    """Give a command the option that names the server."""
    return click.option(
        "--url",
        metavar="URL",
        envvar="HEADWATER_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        help="Server that the stream's path belongs to.",
    )(command)


class Target(NamedTuple):
    """A stream as the user named it."""

    name: str
    base_url: str
    url_typed: bool
    """Whether --url was typed, so that a command we suggest needs it too."""

    def __str__(self) -> str:
        return self.name

    def command(self, verb: str, *arguments: str) -> str:
        """Write a command over this stream that can be pasted into a shell."""
        url = ("--url", self.base_url) if self.url_typed else ()
        return shlex.join(("headwater", verb, self.name, *arguments, *url))


def target(name: str, url: str) -> Target:
    """Check the stream and the server that a command was given."""
    from headwater.client import origin_of, stream_url

    source = click.get_current_context().get_parameter_source("url")
    try:
        origin_of(stream_url(url, name))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return Target(name, url, source is ParameterSource.COMMANDLINE)


@contextmanager
def connected(at: Target, *, patient: bool = False) -> Iterator["Stream"]:
    """Open a stream for a block, and turn what fails in it into one sentence.

    A command that is typed and answered gives up within a second; one that runs for long is
    `patient` and waits for a server that restarts.
    """
    with reported(at), make_client(at, patient=patient) as client:
        yield client.stream(at.name)


def make_client(
    at: Target,
    *,
    patient: bool = False,
    on_retry: Callable[[ClientError, float], None] | None = None,
) -> "Client":
    """Make a client for a command."""
    from headwater.client import Client, Retry

    retry = Retry(attempts=20) if patient else Retry(attempts=4)
    return Client(at.base_url, retry=retry, on_retry=on_retry or OutageNotice())


@contextmanager
def reported(at: Target) -> Iterator[None]:
    """Turn what fails in a block into one sentence."""
    try:
        yield
    except HeadwaterError as error:
        raise click.ClickException(sentence(error, at)) from None


def sentence(error: HeadwaterError, at: Target) -> str:
    """Say what went wrong, with the command that helps where there is one."""
    if isinstance(error, StreamNotFound) and error.code == "stream-not-found":
        return f"There is no stream {at}; create it with: {at.command('create')}"
    return str(error)


class OutageNotice:
    """Says, once per outage, why nothing seems to happen."""

    def __init__(self) -> None:
        self._last = self._since = float("-inf")
        self._told = False

    def __call__(self, error: ClientError, delay: float) -> None:
        """Take note of a pause before another attempt."""
        now = time.monotonic()
        if now - self._last > _NEW_OUTAGE_SECONDS:
            self._since, self._told = now, False
        self._last = now
        if not self._told and now + delay - self._since >= NOTICE_SECONDS:
            self._told = True
            why = error.reason if isinstance(error, Unreachable | ConnectionLost) else str(error)
            click.echo(f"The server does not answer ({why.rstrip('.')}); trying again.", err=True)


# The values that options and arguments take, checked before anything is sent.

_NEVER_IN_OFFSETS = frozenset(" ,&=?/")  # PROTOCOL 8
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)


def offset(text: str) -> str:
    """Take an offset as a server returned it, a sentinel, or a position: OFFSET,NUMBER."""
    start, comma, skipped = text.partition(",")
    printable = start.isascii() and start.isprintable() and not set(start) & _NEVER_IN_OFFSETS
    if not start or not printable or (comma and not _NUMBER.fullmatch(skipped)):
        raise click.BadParameter(
            f"'{text}' is not an offset: use one that a command printed, or -1."
        )
    return text


def content_type(text: str) -> str:
    """Take a media type, perhaps with parameters."""
    if media_type(text) == "" or not text.isascii() or not text.isprintable():
        raise click.BadParameter(f"'{text}' is not a content type such as text/plain.")
    return text


def timestamp(text: str) -> str:
    """Take a time as RFC 3339 writes it."""
    expiry = parse_expiry(None, text)
    if isinstance(expiry, BadHeader):
        raise click.BadParameter(f"'{text}' is not {expiry.expected}.")
    return text


def check_expiry(ttl: int | None, expires_at: str | None) -> None:
    """Refuse two answers to the same question."""
    if ttl is not None and expires_at is not None:
        raise click.UsageError("--ttl and --expires-at exclude each other.")


def media_type(content_type: str) -> str:
    """Reduce a content type to what two of them are compared by."""
    return content_types.media_type(content_type) or ""


def body_of(messages: Sequence[str], content_type: str) -> bytes:
    """Make one body of the messages that stand on the command line."""
    from headwater.client import join_messages
    from headwater.protocol.framing import check_json

    if not messages:
        return b""
    # What the shell passed, byte for byte, whatever the locale.
    encoded = [message.encode("utf-8", "surrogateescape") for message in messages]
    if is_json(media_type(content_type)):
        for text, message in zip(encoded, messages, strict=True):
            wrong = check_json(text)
            if wrong is not None:
                hint = """a text needs quotes, as in '"hello"'"""
                raise click.ClickException(f"'{message}' is not JSON ({hint}): {wrong}.")
    return join_messages(encoded, content_type)


def counted(number: int, unit: str) -> str:
    """Write a number of things, with the unit given in the plural."""
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"


# Standard output for data: whole batchs, and a quiet end when nobody reads any more.

_BREAKS_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")


class Output:
    """Writes batchs to standard output."""

    def __init__(self) -> None:
        self._file = sys.stdout.buffer
        self.gone = False
        """Whether whoever read the output has gone."""

    @property
    def is_file(self) -> bool:
        """Whether the output goes to a file, so that nobody sees it grow."""
        return stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)

    def write(self, batch: "Batch", *, flush: bool) -> None:
        """Write a batch: JSON messages one per line, other data as it is."""
        try:
            self._file.write(lines_of(batch.messages()) if batch.is_json else batch.data)
            if flush:
                self._file.flush()
        except BrokenPipeError:
            self.gone = True

    def finish(self) -> None:
        """Write what is buffered; where nobody reads, let it go instead."""
        try:
            self._file.flush()
        except BrokenPipeError:
            self.gone = True
        if self.gone:
            # The interpreter flushes once more when it ends, and would complain.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)

    def watch(self, when_gone: Callable[[], None]) -> None:
        """Call back as soon as nobody reads a pipe any more, although nothing is written."""
        number = self._file.fileno()
        mode = os.fstat(number).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            threading.Thread(target=self._wait, args=(number, when_gone), daemon=True).start()

    def _wait(self, number: int, when_gone: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(number, 0)  # errors and hang-ups are told without asking
        poll.poll()
        self.gone = True
        when_gone()


def lines_of(messages: list[bytes]) -> bytes:
    """Put each JSON message on a line of its own."""
    if not messages:
        return b""
    # Between tokens a line break is only space, and within a string JSON allows none.
    return b"\n".join(message.translate(_BREAKS_TO_SPACES) for message in messages) + b"\n"


# A file that remembers how far a reader has come.


def load_offset(path: Path) -> str | None:
    """Read the offset, or None where nothing has been saved yet."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"Can't read the offset in {path}: {error}.") from None
    try:
        return offset(text)
    except click.BadParameter:
        raise click.ClickException(
            f"{path} holds no offset; delete it to start anew, or name another file."
        ) from None


def save_offset(path: Path, offset: str) -> None:
    """Replace the file at once, so that it always holds one whole offset."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"{offset}\n")
            file.flush()
            # Else a power cut could leave an empty file under the final name.
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise click.ClickException(f"Can't save the offset in {path}: {error}.") from None


# Ctrl-C at the points where it loses nothing.

EXIT_CODE = 130
"""What a shell reports of a process that SIGINT has ended."""


class Interrupts:
    """Holds SIGINT back while something must not be cut in two; a second one gets through.

    With `once`, the KeyboardInterrupt that it raises is the last: the command reports and ends, and
    nothing interrupts that.
    """

    def __init__(self, *, once: bool = False) -> None:
        self._once = once
        self._ended = False
        self._holding = False
        self.pending = False

    def __enter__(self) -> Self:
        # A job in the background ignores SIGINT, and goes on doing so.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._interrupt and not self._ended:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Finish a block first, then be interrupted."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        self.check()

    def check(self) -> None:
        """Be interrupted now if that was held back."""
        if self.pending:
            self._raise()

    def over(self) -> None:
        """Let nothing cut the last message short: the command ends right after it."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._ended:
            return
        if self._holding and not self.pending:
            self.pending = True
        else:
            self._raise()

    def _raise(self) -> NoReturn:
        # Before the exception is raised: the next SIGINT may come before it is caught.
        self._ended = self._once
        raise KeyboardInterrupt
