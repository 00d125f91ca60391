"""Directories under names that are durable."""

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import os, sys
from pathlib import Path
from headwater.storage.disk.files import make_directory

def note(event, arguments):
    if event == "open" and arguments[2] & os.O_DIRECTORY:
        print(arguments[0])

sys.addaudithook(note)
for path in sys.argv[1:]:
    make_directory(Path(path))
"""


def opened_by_making(*paths: Path) -> list[str]:
    """Make directories, and tell which ones were opened for it, as they are to be synced."""
    command = [sys.executable, "-c", _SCRIPT, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_new_directory_is_synced_into_the_one_above_it_and_so_are_those(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "data"
    synced = opened_by_making(folder, folder / "journal")
    assert folder.joinpath("journal").is_dir()
    assert sorted(synced) == sorted(
        str(path) for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b", folder)
    )


def test_a_directory_that_is_there_is_left_alone(tmp_path: Path) -> None:
    assert opened_by_making(tmp_path) == []
