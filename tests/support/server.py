"""A real `headwater serve` process for tests."""

import re
import subprocess
import sys
import threading
from typing import Final, Self

_DEFAULTS: Final = ("--port", "0", "--store", "memory")
_READY: Final = re.compile(r"Headwater listens on (http://\S+)")


class ServerProcess:
    """A server on a free port, from `with` to its end; options go to the command line."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.url = ""
        self.log: list[str] = []
        """Every line that the server has written to stderr."""

    @property
    def pid(self) -> int:
        return self._running().pid

    def __enter__(self) -> Self:
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "headwater", "serve", *_DEFAULTS, *self._options],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)
            if ready := _READY.search(line):
                self.url = ready[1]
                break
        else:
            process.wait()
            process.stderr.close()
            raise RuntimeError(f"the server did not start: {''.join(self.log)}")
        # A pipe that nobody reads would block the server once it is full.
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Ask the server to stop, as Ctrl-C or a supervisor would; gives its exit code."""
        return self._end(kill=False)

    def kill(self) -> None:
        """End the server as a crash would."""
        self._end(kill=True)

    def _end(self, *, kill: bool) -> int:
        process = self._running()
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            code = process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            assert self._reader is not None
            self._reader.join(timeout=20)
            assert process.stderr is not None
            process.stderr.close()
        return code

    def _drain(self) -> None:
        process = self._running()
        assert process.stderr is not None
        self.log.extend(process.stderr)

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the server has not been started"
        return self._process
