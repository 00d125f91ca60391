"""An engine as a process: started on a free port, waited for, and stopped."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

START_SECONDS = 60


def free_port() -> int:
    """Find a port of loopback that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def answers_tcp(port: int) -> bool:
    """Say whether someone listens on a port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    log: Path,
    is_ready: Callable[[], bool],
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run an engine until the block ends; a test whose engine does not start fails."""
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                list(map(str, command)), stdout=output, stderr=output, env=env, cwd=log.parent
            )
        except OSError as error:
            pytest.fail(f"{name} can't be started: {error}. Run 'make test', which installs it.")
        try:
            until = time.monotonic() + START_SECONDS
            while not is_ready():
                if process.poll() is not None or time.monotonic() > until:
                    tail = log.read_text(errors="replace")[-2000:]
                    pytest.fail(f"{name} did not start; its log ends with:\n{tail}")
                time.sleep(0.02)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
