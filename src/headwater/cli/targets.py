"""What every command over a stream needs: which stream, on which server, and a client for it."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from headwater.errors import (
    ClientError,
    ConnectionLost,
    HeadwaterError,
    StreamNotFound,
    Unreachable,
)

if TYPE_CHECKING:
    from headwater.client import Client, Stream

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
    from headwater.client.messages import origin_of, stream_url

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
