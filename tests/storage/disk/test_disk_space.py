"""Directories under names that are durable, and the reserve of a disk."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from headwater.storage.disk.disk_space import DiskSpace
from tests.support.patience import PATIENCE_SECONDS

_SCRIPT = """
import os, sys
from pathlib import Path
from headwater.storage.disk.fsync import make_directory

def note(event, arguments):
    if event == "open" and arguments[2] & os.O_DIRECTORY:
        print(arguments[0])

sys.addaudithook(note)
for path in sys.argv[1:]:
    make_directory(Path(path))
"""


def opened_by_making(*paths: Path) -> list[str]:
    """Create directories; return those that were opened, as they are to be synced."""
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


def test_a_reserve_that_several_threads_use_knows_whether_it_is_held(tmp_path: Path) -> None:
    """A checkpoint, a compaction and the loop use it from three threads."""
    reserve = DiskSpace(tmp_path, 4096)
    rounds = 300
    begin, end = Barrier(4, timeout=PATIENCE_SECONDS), Barrier(4, timeout=PATIENCE_SECONDS)

    def repeat(action: Callable[[], bool]) -> None:
        for _ in range(rounds):
            begin.wait()
            action()
            end.wait()

    with ThreadPoolExecutor(3) as threads:
        for action in (reserve.hold, reserve.hold, reserve.release):
            threads.submit(repeat, action)
        lies = 0
        for _ in range(rounds):
            begin.wait()
            end.wait()
            lies += reserve.held != (tmp_path / "RESERVE").exists()
    assert lies == 0


def test_only_one_of_those_who_release_a_reserve_gets_its_room(tmp_path: Path) -> None:
    reserve = DiskSpace(tmp_path, 4096)
    assert not reserve.release()
    with ThreadPoolExecutor(2) as threads:
        for _ in range(100):
            assert reserve.hold()
            begin = Barrier(2, timeout=PATIENCE_SECONDS)

            def release(begin: Barrier = begin) -> bool:
                begin.wait()
                return reserve.release()

            released = [threads.submit(release) for _ in range(2)]
            assert sorted(each.result() for each in released) == [False, True]
