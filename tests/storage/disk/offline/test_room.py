"""On a full disk the commands report the folder and what to do, and remove their files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.storage.disk.disk_space import free_bytes
from tests.storage.disk.offline import stores
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.repairs import damaged_block
from tests.storage.disk.offline.stores import QUIET, contents, journals
from tests.storage.disk.offline.test_check import hashes
from tests.suites.steps import create
from tests.support.small_disk import MountDisk


def run(*arguments: str, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with a folder of its own for temporary files."""
    return subprocess.run(
        [sys.executable, "-m", "headwater", *arguments],
        env={**os.environ, "TMPDIR": str(temporary or "/tmp")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def fill(place: Path, *, left: int) -> Path:
    """Fill a file system, and leave so much room."""
    ballast = place / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free_bytes(place) - left)
    return ballast


@pytest.mark.parametrize("size", ["16k", "80k", "104k"])
def test_a_check_says_that_there_is_no_room_for_its_copies(
    killed: Sample, mount_disk: MountDisk, size: str
) -> None:
    place = mount_disk(size)
    done = run("check", str(killed.folder), temporary=place)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: Not enough disk space in '{place}' for copies of the journal and the catalog: "
        "free some, or set TMPDIR to a folder with more.\n"
    )
    assert not list(place.iterdir())


def test_a_full_disk_is_not_taken_for_damage(killed: Sample, mount_disk: MountDisk) -> None:
    place = mount_disk("16m")
    shutil.copytree(killed.folder, place / "data")
    (place / "data" / "catalog.db-shm").unlink()
    fill(place, left=0)
    done = run("check", str(place / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: Not enough disk space in '{place / 'data'}' for the files that SQLite needs "
        "to read the catalog: free some.\n"
    )


def test_what_a_journal_file_is_filled_with_takes_no_room(
    tmp_path: Path, mount_disk: MountDisk
) -> None:
    folder = tmp_path / "data"
    stores.killed(folder, create)
    (file,) = journals(folder)
    with file.open("r+b") as opened:
        opened.seek(QUIET.journal_bytes)
        opened.write(bytes(30 << 20))
    done = run("check", str(folder), temporary=mount_disk("1m"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("size", ["16k", "80k", "600k"])
def test_a_backup_says_that_there_is_no_room_for_it(
    killed: Sample, mount_disk: MountDisk, size: str
) -> None:
    place = mount_disk(size)
    done = run("backup", str(killed.folder), str(place / "copy"), "--copy")
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: Not enough disk space in '{place / 'copy'}' for the backup: free some there, "
        "or choose another target.\n"
    )
    assert not list(place.iterdir())


def test_a_repair_says_that_there_is_no_room_for_it(killed: Sample, mount_disk: MountDisk) -> None:
    place = mount_disk("16m")
    folder = place / "data"
    shutil.copytree(killed.folder, folder)
    damaged_block(Sample(folder, killed.filler), "large/binary", 1)
    before = hashes(folder)
    ballast = fill(place, left=16 * 1024)
    done = run("repair", str(folder), "--yes")
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: Not enough disk space in '{folder}' for the repair: free some, and "
        "repair it again.\n"
    )
    assert hashes(folder) == before
    ballast.unlink()
    assert run("repair", str(folder), "--yes").returncode == 0
    assert contents(folder).keys() == killed.written.keys()


def test_a_file_that_can_not_be_read_is_named(killed: Sample) -> None:
    path = stores.segments(killed.folder)[0]
    path.unlink()
    path.symlink_to("/proc/self/mem")  # there is nothing at its first addresses: EIO
    done = run("check", str(killed.folder))
    assert done.returncode == 1
    assert done.stderr == f"Error: Can't use '{path}': Input/output error.\n"
