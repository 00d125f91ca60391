"""Starting the servers under test, each alone on its core, and stopping exactly those again."""

from __future__ import annotations

import http.client
import json
import os
import resource
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.wire import HOST

NODE_MODULES_VARIABLE = "HEADWATER_BENCH_NODE_MODULES"
_START_SECONDS = 30.0
_STOP_SECONDS = 5.0
_HERE = Path(__file__).resolve().parent
_PEER_PACKAGE = Path("@durable-streams") / "server" / "package.json"
_FILES_NEEDED = 4096


class ServerError(Exception):
    """A server under test did not start; the message ends with the last lines it wrote."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """How to start one server: its command for a port and a data folder, and its readiness."""

    label: str
    command: Callable[[int, Path], list[str]]
    ready_path: str | None = None


def headwater(store: str, python: str = sys.executable) -> ServerSpec:
    """Describe our server on the memory or on the disk engine."""

    def command(port: int, data: Path) -> list[str]:
        where = "memory" if store == "memory" else str(data)
        return [python, "-m", "headwater", "serve", "--port", str(port), "--store", where]

    return ServerSpec(f"headwater ({store})", command, "/readyz")


def version(python: str) -> str:
    """Name a Python as it names itself."""
    told = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or python


def custom(template: str) -> ServerSpec:
    """Describe any server by a command line with {port} and perhaps {data} in it."""

    def command(port: int, data: Path) -> list[str]:
        filled = {"{port}": str(port), "{data}": str(data)}
        words = shlex.split(template)
        for placeholder, value in filled.items():
            words = [word.replace(placeholder, value) for word in words]
        return words

    return ServerSpec(shlex.split(template)[0], command)


def peer(mode: str) -> ServerSpec:
    """Describe the public Node server in memory or in file mode."""

    def command(port: int, data: Path) -> list[str]:
        words = ["node", str(_HERE / "peer.mjs"), "--port", str(port)]
        return words if mode == "memory" else [*words, "--data-dir", str(data)]

    return ServerSpec(f"node {peer_version()} ({mode})", command)


def peer_version() -> str:
    """Return the version of the installed peer, or say that there is none."""
    folder = Path(os.environ.get(NODE_MODULES_VARIABLE, _HERE.parent / "node_modules"))
    try:
        return str(json.loads((folder / _PEER_PACKAGE).read_text())["version"])
    except (OSError, KeyError, ValueError):
        raise ServerError(
            "the peer is not installed: run `npm install` in the repository, or let"
            f" {NODE_MODULES_VARIABLE} name a node_modules folder that holds it"
        ) from None


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core the server gets and which one the load generator."""

    server: int | None
    generator: int | None

    @classmethod
    def choose(cls) -> Cores:
        """Take the first two cores this process may use, or none if there is only one."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(usable[0], usable[1]) if len(usable) > 1 else cls(None, None)

    def pin_generator(self) -> None:
        """Bind this process to the generator's core and let it open enough sockets."""
        if self.generator is not None:
            os.sched_setaffinity(0, {self.generator})
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < _FILES_NEEDED:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES_NEEDED, hard), hard))

    @contextmanager
    def inherited_by_server(self) -> Iterator[None]:
        """Move this process to the server's core while it starts the server.

        A child inherits the affinity and so does every thread it starts, which setting it on
        the child's process id afterwards would not reach.
        """
        if self.server is None:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.server})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


@contextmanager
def running(spec: ServerSpec, cores: Cores, data_root: Path | None) -> Iterator[int]:
    """Run a server on a fresh port and a fresh data folder, and yield the port."""
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=data_root) as scratch:
        port = free_port()
        data = Path(scratch) / "data"
        data.mkdir()
        log = Path(scratch) / "server.log"
        with log.open("wb") as output:
            try:
                with cores.inherited_by_server():
                    process = subprocess.Popen(
                        spec.command(port, data),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
            except OSError as error:
                raise ServerError(f"{spec.label} cannot be started: {error}") from error
        try:
            _wait_until_ready(spec, process, port, log)
            yield port
        finally:
            _stop(spec, process)


def free_port() -> int:
    """Find a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(
    spec: ServerSpec, process: subprocess.Popen[bytes], port: int, log: Path
) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"{spec.label} ended with code {process.returncode}:{_tail(log)}")
        if _is_ready(spec, port):
            return
        time.sleep(0.02)
    raise ServerError(f"{spec.label} was not ready after {_START_SECONDS:g} s:{_tail(log)}")


def _is_ready(spec: ServerSpec, port: int) -> bool:
    try:
        if spec.ready_path is None:
            socket.create_connection((HOST, port), timeout=1).close()
            return True
        connection = http.client.HTTPConnection(HOST, port, timeout=1)
        try:
            connection.request("GET", spec.ready_path)
            return connection.getresponse().status == 200
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-8:]
    return "".join(f"\n    {line}" for line in lines)


def _stop(spec: ServerSpec, process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"  {spec.label} ignored SIGTERM for {_STOP_SECONDS:g} s: killed", file=sys.stderr)
        process.kill()
        process.wait(_STOP_SECONDS)
