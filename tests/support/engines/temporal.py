"""Temporal: its development server, from the wheel that holds the command line."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.engines.process import answers_tcp, free_port, running


@contextmanager
def start_temporal(folder: Path) -> Iterator[str]:
    """Start a server that keeps nothing on disk, and give its address."""
    binary = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which(
        "temporal"
    )
    if binary is None:
        pytest.fail("Temporal is missing: run 'make test', which installs it.")
    port = free_port()
    command = [
        *(binary, "server", "start-dev", "--headless", "--ip", "127.0.0.1"),
        *("--port", str(port), "--http-port", str(free_port()), "--metrics-port", str(free_port())),
        *("--log-level", "error"),
    ]
    address = f"127.0.0.1:{port}"

    def is_healthy() -> bool:
        """Ask the server itself: its port is open before it serves."""
        health = [binary, "operator", "cluster", "health", "--address", address]
        return (
            answers_tcp(port)
            and not subprocess.run(health, capture_output=True, check=False).returncode
        )

    with running("Temporal", command, folder / "temporal.log", is_healthy):
        yield address
