"""A real `headwater serve` process for tests, and what it shares with other logging processes."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from tests.support.compiled import server_environment
from tests.support.disk_faults import DiskFaults
from tests.support.faulty import faulty_command, faulty_environment

_READY: Final = re.compile(r"Headwater listens on (http://\S+)")
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0


class LoggedProcess:
    """A process that logs to stderr and reports there the URL on which it listens.

    A thread reads stderr from start to end, so that a full pipe never blocks the process.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        ready: re.Pattern[str],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        limit: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._command = command
        self._ready = ready
        self._folder = folder
        self._environment = environment or {}
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._settled = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.url = ""
        """Empty until the process listens."""
        self.lines: list[str] = []
        """Every line of the log, with its end."""

    def launch(self) -> Self:
        """Start the process without waiting until it listens."""
        assert self._process is None, f"{self._name} has been started before"
        self._process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=self._limit,  # noqa: PLW1509 - sets a limit, no thread of ours holds a lock
        )
        self._reader.start()
        return self

    def start(self) -> Self:
        """Start the process and wait until it listens."""
        self.launch()
        if not self.listens():
            self.kill()
            raise AssertionError(f"{self._name} did not start:\n{self.log()}")
        return self

    def listens(self) -> bool:
        """Wait until the process listens or has ended; return whether it listens."""
        if not self._settled.wait(_START_SECONDS):
            self.kill()
            raise AssertionError(f"{self._name} takes too long to start:\n{self.log()}")
        return bool(self.url)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port on which the process listens."""
        port = urlsplit(self.url).port
        assert port is not None, f"{self._name} does not listen:\n{self.log()}"
        return port

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def is_running(self) -> bool:
        return self._started().poll() is None

    def log(self) -> str:
        """Return everything that the process has logged."""
        return "".join(self.lines)

    def wait_for_log(self, text: str, seconds: float = 60.0) -> None:
        """Wait until the log contains a text."""
        until = time.monotonic() + seconds
        while text not in self.log():
            assert time.monotonic() < until, f"{text!r} is not in the log:\n{self.log()}"
            time.sleep(0.02)

    def rss(self) -> int:
        """Measure the resident memory of the process, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def open_files(self) -> int:
        """Count the files and sockets that the process has open."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def connections(self) -> int:
        """Count the connections that the process holds open, in any state."""
        port = f":{self.port:04X}"
        rows = Path(f"/proc/{self.pid}/net/tcp").read_text(encoding="ascii").splitlines()
        # A row is: number, local address, remote address, state, …, inode; inode 0 has no owner.
        owned = [row.split() for row in rows[1:]]
        return sum(row[1].endswith(port) and row[3] != "0A" and row[9] != "0" for row in owned)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._started().send_signal(number)

    def dies_within(self, seconds: float) -> bool:
        """Wait for the process to end by itself; return whether it did."""
        if not self.is_running:
            return True
        descriptor = os.pidfd_open(self.pid)
        try:
            ended, _, _ = select.select([descriptor], [], [], seconds)
        finally:
            os.close(descriptor)
        return bool(ended)

    def exit_code(self, seconds: float = _STOP_SECONDS) -> int:
        """Wait until the process has ended, and return its exit code."""
        process = self._started()
        code = process.wait(seconds)
        self._reader.join(_STOP_SECONDS)
        assert process.stderr is not None
        process.stderr.close()
        return code

    def stop(self) -> int:
        """Ask the process to stop, as a supervisor would, and return its exit code."""
        self._started().terminate()
        try:
            return self.exit_code()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> int:
        """End the process as a crash would, unless it has ended; return its exit code."""
        self._started().kill()
        return self.exit_code()

    def _read(self) -> None:
        stderr = self._started().stderr
        assert stderr is not None
        # Bytes are split at "\n" only: a stray "\r" in the log must stay visible to tests.
        for raw in stderr:
            line = raw.decode(errors="replace")
            self.lines.append(line)
            if not self.url and (found := self._ready.search(line)):
                self.url = found[1]
                self._settled.set()
        self._settled.set()

    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self._name} has not been started"
        return self._process


class ServerProcess(LoggedProcess):
    """`headwater serve` on a free port, in memory unless `store` is a data directory.

    It runs the sources or the compiled wheel: see `tests.support.compiled`. Options go to the
    command line. `faults` are passed to its disk store; `limit` runs in the new
    process before the server does.
    """

    def __init__(
        self,
        *options: str,
        store: Path | None = None,
        faults: DiskFaults | None = None,
        environment: Mapping[str, str] | None = None,
        limit: Callable[[], None] | None = None,
    ) -> None:
        if faults is None:
            serve = [sys.executable, "-m", "headwater", "serve"]
            found = server_environment()
        else:
            serve = faulty_command(faults, "serve")
            found = faulty_environment()
        super().__init__(
            "the server",
            [*serve, "--port", "0", "--store", str(store or "memory"), *options],
            _READY,
            environment={**found, **(environment or {})},
            limit=limit,
        )
