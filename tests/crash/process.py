"""A real `headwater serve` on a data directory, made to be killed."""

import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headwater.storage.disk import faults

_READY: Final = re.compile(r"Headwater listens on http://127\.0\.0\.1:(\d+)")
_START_SECONDS: Final = 30.0

BUSY: Final = (
    *("--memory-budget-bytes", "65536", "--journal-bytes", "32768"),
    *("--checkpoint-interval", "0.2", "--chunk-bytes", "32768"),
    *("--max-loaded-streams", "8", "--max-open-segments", "4"),
    *("--long-poll-timeout", "0.3", "--sse-duration", "1"),
)
"""Options with which a server saves, compacts and lets go of streams all the time."""


class DiskServer:
    """One process over one directory; `port` is 0 where it died before it listened."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        armed: str = "",
        limit: Callable[[], None] | None = None,
        wait: bool = True,
    ) -> None:
        self.folder = folder
        self.port = 0
        self._lines: list[str] = []
        self._settled = threading.Event()
        serve = (sys.executable, "-m", "headwater", "serve", "--port", "0")
        self.process = subprocess.Popen(
            [*serve, "--store", str(folder), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, faults.VARIABLE: armed},
            preexec_fn=limit,  # noqa: PLW1509 - sets a limit, and no thread of ours holds a lock then
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            self.wait_until_settled()

    def wait_until_settled(self) -> None:
        """Wait until the server listens, or has died on the way there."""
        assert self._settled.wait(_START_SECONDS), f"the server does not start:\n{self.log()}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            if not self.port and (found := _READY.search(line)):
                self.port = int(found[1])
                self._settled.set()
        self._settled.set()

    def log(self) -> str:
        """Give everything that the process has written."""
        return "".join(self._lines)

    def dies_within(self, seconds: float) -> bool:
        """Wait for the process to end by itself."""
        pidfd = os.pidfd_open(self.process.pid)
        try:
            ended, _, _ = select.select([pidfd], [], [], seconds)
        finally:
            os.close(pidfd)
        return bool(ended)

    def kill(self) -> int:
        """End it as a crash would, unless it has ended; gives the exit code."""
        self.process.kill()
        return self._close()

    def stop(self) -> int:
        """Ask it to stop, and wait."""
        self.process.terminate()
        return self._close()

    def wait(self) -> int:
        """Wait until it has ended by itself."""
        return self._close()

    def _close(self) -> int:
        code = self.process.wait(30)
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def rss(self) -> int:
        """Measure the memory of the process, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def open_files(self) -> int:
        """Count the files that the process has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def wait_for_log(self, text: str, seconds: float = 10.0) -> None:
        """Wait until the log holds a text."""
        until = time.monotonic() + seconds
        while text not in self.log():
            assert time.monotonic() < until, f"{text!r} is not in the log:\n{self.log()}"
            time.sleep(0.02)
