"""Drivers in processes of their own, which a test can kill with everything below them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

KILLS: Final = int(os.environ.get("HEADWATER_SPARK_KILLS", "3"))
"""`make test` kills three times; a longer run is asked for by the environment."""
ATTEMPTS: Final = 5
"""So often a kill is tried which came when everything was done."""
WORKER: Final = re.compile(rb"[^\0]*python[^\0]*\0.*pyspark\.", re.DOTALL)
"""A Python process of Spark's: most do tasks, some plan and commit for a query."""
EXECUTOR: Final = re.compile(rb"[^\0]*java\0.*CoarseGrainedExecutorBackend\0", re.DOTALL)


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
    """Kill a driver with its JVM, and what it has started as groups of their own."""
    left_over = below(driver, EXECUTOR) + below(driver, WORKER)
    with suppress(ProcessLookupError):
        os.killpg(driver, signal.SIGKILL)
    for process in left_over:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def below(ancestor: int, what: re.Pattern[bytes]) -> list[int]:
    """Find the processes below another whose command lines match."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended meanwhile
            processes[int(entry.name)] = (int(stat.rpartition(")")[2].split()[1]), command)
    found = {ancestor}
    for _ in range(6):
        found |= {pid for pid, (parent, _) in processes.items() if parent in found}
    return sorted(pid for pid in found - {ancestor} if what.match(processes[pid][1]))
