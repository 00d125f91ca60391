"""A real server is killed again and again, and nothing that it acknowledged is ever lost.

`HEADWATER_CRASH_KILLS=200 python -m pytest tests/crash` is the full run, `HEADWATER_CRASH_SEED`
repeats the choices of another one.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from headwater.storage.disk.faults import KILL_POINTS
from tests.crash.actors import Client, Gate, start_clients
from tests.crash.checking import check
from tests.crash.ledger import Ledger
from tests.crash.options import BUSY
from tests.support.disk_faults import DiskFaults
from tests.support.patience import wait_until
from tests.support.server import ServerProcess
from tests.support.wire import Lost

pytestmark = pytest.mark.kills

KILLS: Final = int(os.environ.get("HEADWATER_CRASH_KILLS", "20"))
SEED: Final = os.environ.get("HEADWATER_CRASH_SEED") or str(time.time_ns())

_PATIENCE: Final = 60.0
"""Seconds after which a point that was not reached is given up."""


class Kill(NamedTuple):
    """How one server ends."""

    point: str
    """A named point, or nothing for a random moment."""
    times: int = 1

    @property
    def in_recovery(self) -> bool:
        return self.point.startswith("recovery")

    def __str__(self) -> str:
        return f"{self.point or 'any moment'}:{self.times}"


def plan(kills: int, choose: random.Random) -> Iterator[Kill]:
    """Every point the first time that it is reached; then later times, and moments between."""
    for number in range(kills):
        turn, place = divmod(number, len(KILL_POINTS) + 4)
        if place >= len(KILL_POINTS):
            yield Kill("")
            continue
        point = KILL_POINTS[place]
        if point.startswith("recovery"):
            yield Kill(point)
        elif point.startswith("compaction"):
            yield Kill(point, 1 + turn % 2)
        elif point.startswith("journal-") and not point.endswith(("delete", "deleted")):
            yield Kill(point, choose.choice([1, 2, 3, 10, 50, 150]))
        else:
            yield Kill(point, 1 + turn % 5)


class Run:
    """One data directory, its clients, and the server of the moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.random = random.Random(SEED)
        self.gate = Gate()
        self.ledger = Ledger()
        self.reached: set[str] = set()
        self.clients: list[Client] = []
        self.armed = ""
        """The point at which the server of the moment dies, if it is one that work reaches."""
        self.server = self.start()

    def begin(self) -> None:
        """Make the streams that all share, and let the clients start."""
        self.clients = start_clients(self.gate, self.ledger, SEED, self.server.port)

    def start(self, armed: str = "") -> ServerProcess:
        """Start a server that must come up, unless a fault kills it on the way."""
        faults = DiskFaults(armed) if armed else None
        server = ServerProcess(*BUSY, store=self.folder, faults=faults).launch()
        if not server.listens():
            code = server.exit_code()
            assert code == -9, f"the server did not start (seed {SEED}):\n{server.log()}"
            assert armed, server.log()
        return server

    def kill(self, kill: Kill) -> None:
        """Let the clients work until the server dies as planned; it is left dead."""
        self.gate.open(self.server.port)
        if self.armed:
            if self.server.dies_within(_PATIENCE):
                self.reached.add(kill.point)
        else:
            before = self.ledger.requests
            wait_until(lambda: self.ledger.requests > before + 10, "the work of the clients")
            time.sleep(
                self.random.uniform(0, 0.5)
            )  # Any moment will do: it is the one of the kill.
        code = self.server.kill()
        self.gate.shut()
        assert code == -9, (
            f"the server died unexpectedly (seed {SEED}, {kill}):\n{self.server.log()}"
        )
        if kill.in_recovery:
            self.server = self.start(f"{kill.point}:1")
            assert not self.server.listens(), f"{kill.point} was not reached (seed {SEED})"
            self.reached.add(kill.point)
        elif not kill.point and self.random.random() < 0.5:
            server = ServerProcess(*BUSY, store=self.folder).launch()
            server.dies_within(self.random.uniform(0.1, 0.6))
            assert server.kill() == -9, f"no start (seed {SEED}):\n{server.log()}"

    def restart(self, kill: Kill | None) -> None:
        """Start the next server, armed for its end, and check what it has."""
        self.armed = str(kill) if kill and kill.point and not kill.in_recovery else ""
        while True:
            self.server = self.start(self.armed)
            try:
                wrong = (
                    check(self.ledger, self.server.port, self.random)
                    if self.server.listens()
                    else []
                )
            except Lost:
                wrong = []
            else:
                assert not wrong, f"seed {SEED}, next {kill}:\n" + "\n".join(wrong[:20])
                if self.server.listens():
                    return
            # A checkpoint of what was recovered has reached the point already.
            assert self.armed, f"the server died unexpectedly (seed {SEED}):\n{self.server.log()}"
            assert self.server.kill() == -9
            self.reached.add(kill.point if kill else "")
            self.armed = ""  # the next one is killed at any moment

    def end(self) -> None:
        self.gate.end()
        for client in self.clients:
            client.join(60)
        self.server.kill()


@pytest.mark.timeout(60 + 10 * KILLS)
def test_nothing_acknowledged_is_lost_whenever_the_server_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path / "data")
    try:
        run.begin()
        kills = list(plan(KILLS, run.random))
        run.server.kill()
        for kill in kills:
            run.restart(kill)
            run.kill(kill)
        run.restart(None)
        assert run.ledger.requests > 10 * KILLS, "the clients have hardly done anything"
        if len(KILL_POINTS) <= KILLS:
            missed = set(KILL_POINTS) - run.reached
            assert not missed, f"never reached with seed {SEED}: {sorted(missed)}"
    finally:
        run.end()
