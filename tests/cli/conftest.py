"""The command line over a real server."""

import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Final

import pytest
from click.testing import CliRunner

from headwater.cli import main
from headwater.client import Client
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess

_NEEDS_DESCRIPTORS: Final = frozenset({"append", "read"})
"""Commands that read standard input or write standard output by its descriptor."""
_SHOWS_PROGRESS: Final = """
import sys
from headwater.cli._progress import Progress

Progress().show("due")
sys.stdin.read()
"""


def wait_until_progress_is_due() -> None:
    """Return once a command that has begun before would have shown its progress."""
    terminal, its_end = pty.openpty()
    with (
        os.fdopen(terminal, "rb", buffering=0) as shown,
        subprocess.Popen(
            [sys.executable, "-c", _SHOWS_PROGRESS], stdin=subprocess.PIPE, stderr=its_end
        ) as process,
    ):
        os.close(its_end)
        assert b"due" in shown.read(100)
        process.communicate()


class Headwater:
    """Runs `headwater` commands against one server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(
        self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end, in this process where that makes no difference."""
        if arguments[0] in _NEEDS_DESCRIPTORS:
            return self.run_process(*arguments, stdin=stdin, env=env)
        result = CliRunner().invoke(
            main,
            arguments,
            input=stdin,
            env={"HEADWATER_URL": self.url, **(env or {})},
            prog_name="python -m headwater",
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return subprocess.CompletedProcess(
            arguments, result.exit_code, result.stdout_bytes, result.stderr_bytes
        )

    def run_process(
        self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end in a process of its own."""
        return subprocess.run(
            self._command(arguments),
            input=stdin,
            capture_output=True,
            env=self._environment(env),
            check=False,
            timeout=60,
        )

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command that must succeed, and return what it printed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    @contextmanager
    def start(
        self,
        *arguments: str,
        stdin: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command and leave it to the test, with pipes."""
        process = subprocess.Popen(
            self._command(arguments),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=self._environment(None),
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "headwater", *arguments]

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        environment = {**os.environ, "HEADWATER_URL": self.url, **(more or {})}
        # Else the interpreter would flush where the command has to.
        environment.pop("PYTHONUNBUFFERED", None)
        return environment


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Processes started from a job in the background would ignore SIGINT, as this one does."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--sse-duration", "0.3") as process:
        yield process


@pytest.fixture
def headwater(server: ServerProcess) -> Headwater:
    return Headwater(server.url)


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(server.url) as between:
        yield between


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


@pytest.fixture
def path() -> str:
    return f"test/{uuid.uuid4()}"


@pytest.fixture
def server_url(server: ServerProcess) -> str:
    return server.url
