"""Progress of the commands over a data directory, as a person sees it on a terminal."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from typing import Final

from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.repairs import damaged_block

LATE: Final = """
import sys
from pathlib import Path
from headwater.cli.data_directory import Progress
from headwater.storage.disk.offline.check import check
from headwater.storage.disk.offline.repair import prepare

began = iter([0.0])
progress = Progress("Checking", clock=lambda: next(began, 2.1))  # from 2 s on it is shown
if sys.argv[1] == "check":
    check(Path(sys.argv[2]), progress)
else:
    with prepare(Path(sys.argv[2]), progress.begin):
        pass
progress.finish()
"""
"""What the commands do, after as long as they are silent."""


def bars(*arguments: str) -> list[str]:
    """Run the program on a terminal; gives each bar as it was at last."""
    terminal, its_end = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", LATE, *arguments], stderr=its_end) as process:
        os.close(its_end)
        shown = b""
        with suppress(OSError):  # how a terminal says that nobody has it open any more
            while piece := os.read(terminal, 65536):
                shown += piece
    os.close(terminal)
    assert process.returncode == 0, shown
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    return [line.rpartition("\r")[2] for line in lines if "%" in line]


def ended(line: str) -> tuple[str, bool]:
    """Take a bar apart: its label, and whether it got to its end."""
    label, _, rest = line.partition("  [")
    return label.removeprefix("\x1b[?25l"), "100%" in rest


def test_a_check_of_a_killed_store_gets_to_its_end(killed: Sample) -> None:
    assert [ended(line) for line in bars("check", str(killed.folder))] == [("Checking", True)]


def test_a_repair_says_what_each_of_its_bars_is(killed: Sample) -> None:
    damaged_block(killed, "large/binary", 1)
    assert [ended(line) for line in bars("repair", str(killed.folder))] == [
        ("Checking", True),
        ("Working out the repair", True),
        ("Checking the result", True),
    ]
    assert not (killed.folder / "repairing").exists()
