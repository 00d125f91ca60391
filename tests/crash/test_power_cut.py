"""The power goes again and again, and nothing that a server acknowledged is ever lost.

A killed process leaves in the system what it has written, synced or not; a power cut leaves what
is on the disk. So only here is it seen whether segments and the catalog are durable before what
they replace, journal files that are written over, is gone.

`HEADWATER_POWER_CUTS=100 python -m pytest tests/crash/test_power_cut.py` is a longer run,
`HEADWATER_CRASH_SEED` repeats the choices of another one.
"""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from headwater.storage.disk.offline.info import read_info
from tests.crash.actors import Client, Gate, start_clients
from tests.crash.checking import check
from tests.crash.disk_image import DiskImage, disk_image
from tests.crash.ledger import Ledger
from tests.crash.options import BUSY
from tests.support.patience import wait_until
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.kills, pytest.mark.needs_root]

CUTS: Final = int(os.environ.get("HEADWATER_POWER_CUTS", "6"))
SEED: Final = os.environ.get("HEADWATER_CRASH_SEED") or str(time.time_ns())

_SIZE: Final = 96 * 1024 * 1024


class Run:
    """One disk, the clients, and the server of the moment."""

    def __init__(self, disk: DiskImage) -> None:
        self.disk = disk
        self.random = random.Random(SEED)
        self.gate = Gate()
        self.ledger = Ledger()
        self.saved: Counter[str] = Counter()
        """What the servers have done besides writing journals."""
        self.clients: list[Client] = []
        self.server = self.start()

    def start(self) -> ServerProcess:
        server = ServerProcess(*BUSY, store=self.disk.place / "data").launch()
        assert server.listens(), f"the server did not start (seed {SEED}):\n{server.log()}"
        return server

    def begin(self) -> None:
        """Let the clients start."""
        self.clients = start_clients(self.gate, self.ledger, SEED, self.server.port)

    def cut(self) -> None:
        """Let the clients work until the power goes; the server is left dead."""
        before = self.ledger.requests
        self.gate.open(self.server.port)
        wait_until(lambda: self.ledger.requests > before + 10, "the work of the clients")
        wait_until(self.has_saved, "checkpoints and a compaction", pause=0.1)
        time.sleep(self.random.uniform(0, 1.5))  # Any moment will do: it is the one of the cut.
        self.saved.update(self.measured())
        # It must not report the errors that it gets once its disk is gone.
        self.server.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.server.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.disk.cut_power()
        code = self.server.kill()
        self.gate.shut()
        assert code == -9, f"the server died unexpectedly (seed {SEED}):\n{self.server.log()}"

    def measured(self) -> dict[str, int]:
        """Count what the server of the moment has done besides writing journals."""
        found = read_info(self.disk.place / "data").metrics
        return {name: found.get(name, 0) for name in ("checkpoints", "compactions")}

    def has_saved(self) -> bool:
        """Return whether the server has made checkpoints, and one of the servers a compaction."""
        here = self.measured()
        return here["checkpoints"] > 1 and here["compactions"] + self.saved["compactions"] > 0

    def restart(self) -> None:
        """Start the next server on what the disk holds, and check it."""
        self.disk.restore_power()
        self.server = self.start()
        wrong = check(self.ledger, self.server.port, self.random)
        assert not wrong, f"seed {SEED}:\n" + "\n".join(wrong[:20])

    def end(self) -> None:
        self.gate.end()
        for client in self.clients:
            client.join(60)
        self.server.kill()


@pytest.mark.timeout(60 + 10 * CUTS)
def test_nothing_acknowledged_is_lost_whenever_the_power_goes(tmp_path: Path) -> None:
    with disk_image(tmp_path, _SIZE) as disk:
        run = Run(disk)
        try:
            run.begin()
            for _ in range(CUTS):
                run.cut()
                run.restart()
            assert run.ledger.requests > 10 * CUTS, "the clients have hardly done anything"
            assert run.saved["checkpoints"] > CUTS, "hardly anything was saved"
            assert run.saved["compactions"] > 0, "nothing was compacted"
        finally:
            run.end()
