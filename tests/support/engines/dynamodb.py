"""DynamoDB, as ministack: an emulator whose transactions are atomic.

It wants another botocore than our driver, so it lives in an environment of its own, which is made
once beside the one that the tests run in.
"""

import fcntl
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.support.engines.process import free_port, running

REQUIREMENTS = Path(__file__).parents[3] / "requirements" / "ministack.txt"
_tables = count(1)


class Dynamo:
    """A server."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def run_store_url(self, endpoint: str = "") -> str:
        """Name a run store in a table that is not there yet."""
        name = f"runs-{os.getpid()}-{next(_tables)}"
        return f"dynamodb://{name}?region=eu-central-1&endpoint={endpoint or self.url}"


def _environment() -> Path:
    """Make the emulator's environment where it is missing or of another version."""
    home = Path(sys.prefix) / "engines"
    home.mkdir(exist_ok=True)
    folder, made = home / "ministack", home / "ministack.txt"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text() != REQUIREMENTS.read_text():
            pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
            for command in (
                [sys.executable, "-m", "venv", "--clear", folder],
                [*pip, "install", "--quiet", "--require-hashes", "-r", REQUIREMENTS],
            ):
                done = subprocess.run(
                    list(map(str, command)), capture_output=True, text=True, check=False
                )
                if done.returncode:
                    pytest.fail(f"ministack can't be installed:\n{done.stderr[-2000:]}")
            made.write_text(REQUIREMENTS.read_text())
    return folder / "bin" / "ministack"


@contextmanager
def start_dynamodb(folder: Path) -> Iterator[Dynamo]:
    """Start the emulator, empty, with credentials that it takes."""
    port = free_port()
    server = Dynamo(port)
    env = {
        **os.environ,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "dynamodb",
        "LOG_LEVEL": "WARNING",
        "HOME": str(folder),
    }

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"{server.url}/_ministack/health", timeout=1):
                return True
        except (OSError, urllib.error.URLError):
            return False

    given = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    before = {name: os.environ.get(name) for name in given}
    with running("ministack", [_environment()], folder / "dynamodb.log", is_ready, env):
        os.environ.update(given)
        try:
            yield server
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
