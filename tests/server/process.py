"""A real `headwater serve` in a process of its own, with its log at hand."""

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

_LISTENS: Final = re.compile(r"Headwater listens on http://127\.0\.0\.1:(\d+)")
_START_SECONDS: Final = 20.0
_DEFAULTS: Final = ("--port", "0", "--store", "memory")


class ServerProcess:
    """Starts at once; `stop` ends it and gives its exit code."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "headwater", "serve", *_DEFAULTS, *options]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self._lines: list[str] = []
        self._ready = threading.Event()
        self.port = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(_START_SECONDS) or not self.port:
            self.kill()
            raise AssertionError(f"the server did not start:\n{self.log()}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode(errors="replace")
            self._lines.append(line)
            if not self.port and (found := _LISTENS.search(line)):
                self.port = int(found[1])
                self._ready.set()
        self._ready.set()

    def log(self) -> str:
        """Give everything that the process has written."""
        return "".join(self._lines)

    def wait_for_log(self, text: str, seconds: float = 10.0) -> None:
        """Wait until the log holds a text."""
        until = time.monotonic() + seconds
        while text not in self.log():
            assert time.monotonic() < until, f"{text!r} is not in the log:\n{self.log()}"
            time.sleep(0.02)

    def rss(self) -> int:
        """Measure the memory of the process, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def connections(self) -> int:
        """Count the connections that the process holds open, whatever their state."""
        port = f":{self.port:04X}"
        rows = Path(f"/proc/{self.process.pid}/net/tcp").read_text(encoding="ascii").splitlines()
        # A row is: number, local address, remote address, state, …, inode; 0 is no process's.
        owned = [row.split() for row in rows[1:]]
        return sum(row[1].endswith(port) and row[3] != "0A" and row[9] != "0" for row in owned)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def exit_code(self, seconds: float = 15.0) -> int:
        """Wait until the process has ended by itself."""
        code = self.process.wait(seconds)
        self._close()
        return code

    def stop(self) -> int:
        """Ask it to stop, and wait."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(5)
        if self.process.stderr is not None:
            self.process.stderr.close()
