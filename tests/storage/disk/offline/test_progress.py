"""Progress of the commands over a data directory, as it appears on a terminal."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from typing import Final

from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.repairs import damaged_block

LATE: Final = """
import itertools, sys
from pathlib import Path
from headwater.cli._progress import Progress
from headwater.storage.disk.offline.check import check
from headwater.storage.disk.offline.repair import prepare

progress = Progress("Checking", clock=itertools.count(0, 10).__next__)  # each text is due
if sys.argv[1] == "check":
    check(Path(sys.argv[2]), progress)
else:
    with prepare(Path(sys.argv[2]), progress.begin):
        pass
progress.clear()
"""
"""What the commands do, with a clock by which each step takes long."""


def ends(*arguments: str) -> list[tuple[str, str]]:
    """Run the program on a terminal; returns the last line of each label, taken apart."""
    terminal, its_end = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", LATE, *arguments], stderr=its_end) as process:
        os.close(its_end)
        shown = b""
        with suppress(OSError):  # how a terminal reports that no process has it open any more
            while piece := os.read(terminal, 65536):
                shown += piece
    os.close(terminal)
    assert process.returncode == 0, shown
    lines = [line.partition(": ") for line in shown.decode().split("\r\x1b[K") if "%" in line]
    return list({label: (label, rest[:5]) for label, _, rest in lines}.values())


def test_a_check_of_a_killed_store_gets_to_its_end(killed: Sample) -> None:
    assert ends("check", str(killed.folder)) == [("Checking", "100 %")]


def test_each_part_of_a_repair_has_a_label(killed: Sample) -> None:
    damaged_block(killed, "large/binary", 1)
    assert ends("repair", str(killed.folder)) == [
        ("Checking", "100 %"),
        ("Preparing the repair", "100 %"),
        ("Checking the result", "100 %"),
    ]
    assert not (killed.folder / "repairing").exists()
