"""A real uvicorn process with one of our ASGI applications, for tests."""

import re
import subprocess
import sys
import threading
from typing import Final, Self

from tests.conformance.suite import ROOT

_READY: Final = re.compile(r"running on (http://\S+)")


class AsgiProcess:
    """`module:app` under uvicorn on a free port, from `with` to its end."""

    def __init__(self, app: str) -> None:
        self._app = app
        self.url = ""
        self.log: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", self._app, "--port", "0", "--no-access-log"],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if ready := _READY.search(line):
                self.url = ready[1]
                break
        assert self.url, f"uvicorn did not start: {''.join(self.log)}"
        self._reader = threading.Thread(
            target=self.log.extend, args=(self._process.stderr,), daemon=True
        )
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        self._reader.join(timeout=20)
        assert self._process.stderr is not None
        self._process.stderr.close()
