"""Shared by the commands: targets, option values, output, saved files and signals."""

import os
import re
import select
import shlex
import signal
import stat
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self, TypeVar

import click
from click.core import ParameterSource

from headwater.cli._progress import NOTICE_SECONDS, Progress
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
from headwater.protocol.paths import DEFAULT_URL

if TYPE_CHECKING:
    from headwater.client import Batch, Client

Command = TypeVar("Command", bound=Callable[..., Any])

_NEW_OUTAGE_SECONDS: Final = 15.0


class OrderedGroup(click.Group):
    """Lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


# --- Targets: which stream, on which server, and a client for it.


def url_option(command: Command) -> Command:
    """Add the option that names the server."""
    return click.option(
        "--url",
        metavar="URL",
        envvar="HEADWATER_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        help="URL of the server.",
    )(command)


class Target(NamedTuple):
    """The stream, run or subscription that a command works on, as the user named it."""

    name: str
    base_url: str
    is_url_typed: bool = False
    """Whether --url was typed, so that suggested commands need it too."""

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> str:
        """The path of the stream's URL, which does not depend on the server's address."""
        from urllib.parse import urlsplit

        from headwater.client import stream_url

        return urlsplit(stream_url(self.base_url, self.name)).path

    def command(self, verb: str, *arguments: str) -> str:
        """Return a command on this stream, ready to be pasted into a shell."""
        url = ("--url", self.base_url) if self.is_url_typed else ()
        return shlex.join(("headwater", verb, self.name, *arguments, *url))


def stream_target(name: str, url: str) -> Target:
    """Check the stream and the server that a command was given."""
    from headwater.client import origin_of, stream_url

    source = click.get_current_context().get_parameter_source("url")
    try:
        origin_of(stream_url(url, name))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return Target(name, url, source is ParameterSource.COMMANDLINE)


def server_target(url: str, name: str = "") -> Target:
    """Check the server of a command that works on something other than a stream."""
    from headwater.client import origin_of

    try:
        origin_of(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return Target(name, url)


@contextmanager
def connected(target: Target, progress: Progress | None = None) -> Iterator["Client"]:
    """Open a client for a block; slow responses and failures are reported to the user."""
    progress = progress or Progress()
    progress.show("Waiting for the server …")
    with reported(target), make_client(target, progress) as client:
        try:
            yield client
        finally:
            progress.clear()


def make_client(
    target: Target,
    progress: Progress,
    *,
    patient: bool = False,
    on_retry: Callable[[ClientError, float], None] | None = None,
) -> "Client":
    """Return a client for a command.

    A short command fails within a second without a server; a long-running one is `patient`, and
    waits while the server restarts.
    """
    from headwater.client import Client, Retry

    retry = Retry(attempts=20) if patient else Retry(attempts=4)
    return Client(target.base_url, retry=retry, on_retry=on_retry or OutageNotice(progress))


@contextmanager
def reported(target: Target) -> Iterator[None]:
    """Report a failure in a block as one sentence, without a traceback."""
    try:
        yield
    except HeadwaterError as error:
        raise click.ClickException(sentence(error, target)) from None


def sentence(error: HeadwaterError, target: Target) -> str:
    """Return the message of an error, with a command that helps if there is one."""
    if isinstance(error, StreamNotFound) and error.code == "stream-not-found":
        return f"There is no stream {target}; create it with: {target.command('create')}"
    return str(error)


class OutageNotice:
    """Reports once per outage that the server does not answer."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last = self._since = float("-inf")
        self._reported = False

    def __call__(self, error: ClientError, delay: float) -> None:
        """Record a pause before another attempt."""
        now = time.monotonic()
        if now - self._last > _NEW_OUTAGE_SECONDS:
            self._since, self._reported = now, False
        self._last = now
        if not self._reported and now + delay - self._since >= NOTICE_SECONDS:
            self._reported = True
            self._progress.clear()
            why = error.reason if isinstance(error, Unreachable | ConnectionLost) else str(error)
            click.echo(f"The server does not answer ({why.rstrip('.')}); trying again.", err=True)


# --- Values of options and arguments, checked before anything is sent.

_NEVER_IN_OFFSETS: Final = frozenset(" ,&=?/")  # PROTOCOL 8
_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)


def offset(text: str) -> str:
    """Check an offset that a server returned, a sentinel, or a position: OFFSET,NUMBER."""
    start, comma, skipped = text.partition(",")
    printable = start.isascii() and start.isprintable() and not set(start) & _NEVER_IN_OFFSETS
    if not start or not printable or (comma and not _NUMBER.fullmatch(skipped)):
        raise click.BadParameter(
            f"'{text}' is not an offset: use one that a command printed, or -1."
        )
    return text


def content_type(text: str) -> str:
    """Check a media type, with or without parameters."""
    if media_type(text) == "" or not text.isascii() or not text.isprintable():
        raise click.BadParameter(f"'{text}' is not a content type such as text/plain.")
    return text


def timestamp(text: str) -> str:
    """Check a time in RFC 3339 format."""
    expiry = parse_expiry(None, text)
    if isinstance(expiry, BadHeader):
        raise click.BadParameter(f"'{text}' is not {expiry.expected}.")
    return text


def check_expiry(ttl: int | None, expires_at: str | None) -> None:
    """Refuse --ttl together with --expires-at."""
    if ttl is not None and expires_at is not None:
        raise click.UsageError("--ttl and --expires-at exclude each other.")


def media_type(content_type: str) -> str:
    """Return a content type without parameters, in lower case."""
    return content_types.media_type(content_type) or ""


def body_of(messages: Sequence[str], content_type: str) -> bytes:
    """Join the messages of a command line into one request body."""
    from headwater.client import join_messages
    from headwater.protocol.framing import check_json

    if not messages:
        return b""
    # The bytes that the shell passed, whatever the locale.
    encoded = [message.encode("utf-8", "surrogateescape") for message in messages]
    if is_json(media_type(content_type)):
        for text, message in zip(encoded, messages, strict=True):
            wrong = check_json(text)
            if wrong is not None:
                hint = """a text needs quotes, as in '"hello"'"""
                raise click.ClickException(f"'{message}' is not JSON ({hint}): {wrong}.")
    return join_messages(encoded, content_type)


# --- Text for the terminal.


def counted(number: int, plural: str, singular: str | None = None) -> str:
    """Format a number of things; `singular` defaults to the plural without its s."""
    return f"{number:,} {(singular or plural.removesuffix('s')) if number == 1 else plural}"


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print names and values in two columns."""
    width = max(len(name) for name, _ in fields) + 1
    for name, value in fields:
        click.echo(f"{name + ':':<{width}} {value}")


# --- Standard output for data.

_BREAKS_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")


class Output:
    """Writes batches of a stream to standard output until the reader of a pipe closes it."""

    def __init__(self) -> None:
        self._file = sys.stdout.buffer
        self.is_closed = False
        """Whether the reader of the pipe has closed it."""

    @property
    def is_file(self) -> bool:
        """Whether the output is a regular file, so that the user does not see it."""
        return stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)

    def write(self, batch: "Batch", *, flush: bool) -> None:
        """Write a batch: JSON messages one per line, other data as it is."""
        try:
            self._file.write(lines_of(batch.messages()) if batch.is_json else batch.data)
            if flush:
                self._file.flush()
        except BrokenPipeError:
            self.is_closed = True

    def finish(self) -> None:
        """Flush the buffer, or discard it if the pipe is closed."""
        try:
            self._file.flush()
        except BrokenPipeError:
            self.is_closed = True
        if self.is_closed:
            # The interpreter flushes once more at exit, and would report the broken pipe.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._file.fileno())
            os.close(null)

    def watch(self, on_close: Callable[[], None]) -> None:
        """Call `on_close` as soon as the reader closes the pipe, even if nothing is written."""
        number = self._file.fileno()
        mode = os.fstat(number).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            threading.Thread(target=self._wait, args=(number, on_close), daemon=True).start()

    def _wait(self, number: int, on_close: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(number, 0)  # POLLERR and POLLHUP are reported without being requested
        poll.poll()
        self.is_closed = True
        on_close()


def lines_of(messages: list[bytes]) -> bytes:
    """Put each JSON message on a line of its own."""
    if not messages:
        return b""
    # JSON allows line breaks between tokens, where a space is equivalent, but not in strings.
    return b"\n".join(message.translate(_BREAKS_TO_SPACES) for message in messages) + b"\n"


# --- Files of --resume: the position at which the same command continues.


def read_saved(path: Path, what: str) -> bytes | None:
    """Return the content of a file, or None if nothing has been saved yet."""
    try:
        return path.read_bytes().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.ClickException(f"Can't read {what} in {path}: {error}.") from None


def save(path: Path, content: bytes, what: str) -> None:
    """Replace a file in one step, so that it holds one complete state after any crash."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        with temporary.open("wb") as file:
            file.write(content + b"\n")
            file.flush()
            # Otherwise a power cut could leave an empty file under the final name.
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise click.ClickException(f"Can't save {what} in {path}: {error}.") from None


def _sync_directory(directory: Path) -> None:
    """Make a rename durable: a power cut could otherwise bring back the previous file."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def load_offset(path: Path) -> str | None:
    """Return the saved offset, or None if nothing has been saved yet."""
    content = read_saved(path, "the offset")
    if content is None:
        return None
    with suppress(click.BadParameter, UnicodeDecodeError):
        return offset(content.decode("ascii"))
    raise click.ClickException(
        f"{path} holds no offset; delete it to start from the beginning, or name another file."
    )


def save_offset(path: Path, offset: str) -> None:
    """Save an offset."""
    save(path, offset.encode("ascii"), "the offset")


# --- Signals.

EXIT_CODE: Final = 128 + signal.SIGINT
"""The exit code that shells report for a process ended by SIGINT."""


class SignalGuard(ABC):
    """Handles signals in a block, and restores the previous handlers after it."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.getsignal(number) for number in self._numbers}
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def listen(self) -> None:
        """Install the handlers, or reinstall them after other code has replaced them."""
        for number, previous in self._previous.items():
            # A shell starts a background job with SIGINT ignored, and it stays ignored.
            signal.signal(number, signal.SIG_IGN if previous is signal.SIG_IGN else self._received)

    @abstractmethod
    def _received(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""


class Termination(SignalGuard):
    """SIGTERM ends the block as Ctrl-C does, so that temporary files are removed."""

    def __init__(self) -> None:
        super().__init__(signal.SIGTERM)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)


class Interrupts(SignalGuard):
    """Defers SIGINT while an operation must not be interrupted; a second one is not deferred.

    With `once`, only one KeyboardInterrupt is raised, so that further signals do not interrupt the
    closing report of the command.
    """

    def __init__(self, *, once: bool = False) -> None:
        super().__init__(signal.SIGINT)
        self._once = once
        self._ended = False
        self._deferring = False
        self.pending = False

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            super().__exit__()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Run a block to its end before an interrupt is raised."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        self.check()

    def check(self) -> None:
        """Raise an interrupt that was deferred."""
        if self.pending:
            self._raise()

    def finish(self) -> None:
        """Ignore SIGINT from now on, while the command prints its last message and ends."""
        self._ended = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        if self._ended:
            return
        if self._deferring and not self.pending:
            self.pending = True
        else:
            self._raise()

    def _raise(self) -> NoReturn:
        # Set before the exception is raised: the next SIGINT may come before it is caught.
        self._ended = self._once
        raise KeyboardInterrupt
