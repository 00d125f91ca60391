"""The public Node server as a process, for tests that any server must pass."""

import subprocess
from pathlib import Path
from typing import Self

from bench.servers import free_port
from tests.support.node import NODE

_SCRIPT = Path(__file__).parents[2] / "bench" / "peer.mjs"


class PeerProcess:
    """npm's `@durable-streams/server` in memory on a free port, from `with` to its end."""

    def __init__(self) -> None:
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._process = process = subprocess.Popen(
            [NODE, str(_SCRIPT), "--port", str(self._port)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if "listening" not in line:
            process.kill()
            process.wait()
            process.stdout.close()
            raise RuntimeError("the peer did not start; is it installed? Run: make test")
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
