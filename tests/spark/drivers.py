"""Drivers in processes of their own, which a test can kill with everything below them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

KILLS: Final = int(os.environ.get("HEADWATER_SPARK_KILLS", "3"))
"""`make test` kills three times; a longer run is asked for by the environment."""


@contextmanager
def driver(module: str, *arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module until the end of the block, where it is killed; it tells its troubles to a file.

    Not to a pipe: whatever outlives the driver would hold it open.
    """
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_all(process.pid)
        process.wait(20)


def kill_all(driver: int) -> None:
    """Kill a driver with its JVM, and its Python workers, which are a group of their own."""
    left_over = workers(driver)
    with suppress(ProcessLookupError):
        os.killpg(driver, signal.SIGKILL)
    for worker in left_over:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def workers(driver: int) -> list[int]:
    """Find the Python workers below a driver, most of them children of one daemon."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended meanwhile
            processes[int(entry.name)] = (int(stat.rpartition(")")[2].split()[1]), command)
    below = {driver}
    for _ in range(6):
        below |= {pid for pid, (parent, _) in processes.items() if parent in below}
    return [
        pid
        for pid in below - {driver}
        if b"pyspark." in processes[pid][1] and b"java" not in processes[pid][1].split(b"\0")[0]
    ]
