"""The commands over a data directory: what they print, and how they end."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.cli._progress import Progress, size_of
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.stores import contents, extents_of, flip, segment_of
from tests.storage.disk.offline.test_check import hashes
from tests.support.patience import wait_until
from tests.support.server import ServerProcess


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "headwater", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def damage(sample: Sample) -> None:
    """Flip a bit in the first block of a stream."""
    extent = extents_of(sample.folder, "large/binary")[0]
    flip(segment_of(sample.folder, extent), extent.position + 300_000)


def test_check_ends_with_a_sentence(closed: Sample) -> None:
    done = run("check", str(closed.folder))
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"No damage found: {len(closed.written)} streams, ")


def test_check_lists_damage_and_ends_with_1(closed: Sample) -> None:
    damage(closed)
    done = run("check", str(closed.folder))
    assert done.returncode == 1
    first, last = done.stdout.splitlines()
    assert "large/binary" in first
    assert last.startswith("Found 1 damage in ")
    assert last.endswith(f"headwater repair {closed.folder}")


def test_repair_asks_first(closed: Sample) -> None:
    damage(closed)
    before = hashes(closed.folder)
    done = run("repair", str(closed.folder), stdin="n\n")
    assert done.returncode == 1
    assert done.stdout.endswith("Nothing was changed.\n")
    assert hashes(closed.folder) == before
    done = run("repair", str(closed.folder), stdin="y\n")
    assert done.returncode == 0
    assert run("check", str(closed.folder)).returncode == 0


def test_a_command_that_is_terminated_removes_its_files(closed: Sample) -> None:
    damage(closed)
    before = hashes(closed.folder)
    with subprocess.Popen(
        [sys.executable, "-m", "headwater", "repair", str(closed.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        asked = ""
        while "Repair it like this?" not in asked:
            asked += process.stdout.read(1)
        assert (closed.folder / "repairing").exists()
        state = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: ") S " in state.read_text(), "waiting for the answer")
        process.terminate()
        assert process.wait(60) == 143
    assert hashes(closed.folder) == before
    assert not (closed.folder / "repairing").exists()


def test_repair_says_what_it_dropped_and_where_the_rest_is_kept(closed: Sample) -> None:
    damage(closed)
    done = run("repair", str(closed.folder), "--yes")
    assert done.returncode == 0, done.stderr
    found, dropped, last = done.stdout.splitlines()
    assert found.startswith("Damage: segments/")
    assert "large/binary) are dropped." in dropped
    (kept,) = closed.folder.glob("damaged-*")
    assert last == (
        f"Repaired {closed.folder}: it now has {len(closed.written)} streams. "
        f"The replaced files are in {kept}."
    )


def test_repair_of_what_is_well_says_so(closed: Sample) -> None:
    done = run("repair", str(closed.folder))
    assert done.returncode == 0
    assert done.stdout.startswith("Nothing to repair: ")


def test_backup_prints_the_sizes(closed: Sample, tmp_path: Path) -> None:
    done = run("backup", str(closed.folder), str(tmp_path / "copy"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Copied {len(closed.written)} streams to {tmp_path / 'copy'}: ")
    assert re.search(r" shared with 8\d\d\.\d KiB, ", done.stdout)
    assert contents(tmp_path / "copy") == closed.written


@pytest.mark.parametrize("command", ["check", "repair", "backup", "info"])
def test_what_can_not_be_done_is_one_sentence(command: str, tmp_path: Path) -> None:
    more = [str(tmp_path / "copy")] if command == "backup" else []
    done = run(command, str(tmp_path / "none"), *more)
    assert done.returncode == 1
    assert done.stderr == f"Error: There is no directory '{tmp_path / 'none'}'.\n"


def test_info_prints_lines_or_json(closed: Sample) -> None:
    lines = dict(
        line.split(maxsplit=1) for line in run("info", str(closed.folder)).stdout.splitlines()
    )
    assert lines["server:"] == "not running"
    assert lines["streams:"].startswith(f"{len(closed.written)} (1 closed, 1 fork")
    found = json.loads(run("info", str(closed.folder), "--json").stdout)
    assert found["streams"] == len(closed.written)
    assert found["metrics"]["sync_seconds"].keys() == {"count", "mean", "p50", "p99", "max"}


def test_all_but_repair_work_beside_a_running_server(closed: Sample, tmp_path: Path) -> None:
    with ServerProcess("--store", str(closed.folder)) as server:
        assert run("check", str(closed.folder)).returncode == 0
        assert run("backup", str(closed.folder), str(tmp_path / "copy")).returncode == 0
        assert f"running, process {server.pid}" in run("info", str(closed.folder)).stdout
        refused = run("repair", str(closed.folder), "--yes")
    assert refused.returncode == 1
    assert f"is in use by process {server.pid}" in refused.stderr


def test_progress_is_silent_for_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = Progress("Checking", every=2.0, clock=lambda: now[0])
    now[0] = 1.95
    progress(1, 4096)
    assert capsys.readouterr().err == ""
    now[0] = 2.05
    progress(2048, 4096)
    progress(2049, 4096)
    progress.clear()
    assert capsys.readouterr().err == "Checking: 50 % of 4.0 KiB\n"


def test_sizes_are_written_for_a_person() -> None:
    assert [size_of(n) for n in (0, 1023, 1024, 5 << 20, 3 << 30, 7 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "7.0 TiB",
    ]


def test_files_of_others_are_left_alone(killed: Sample, tmp_path: Path) -> None:
    others = [
        killed.folder / "journal" / "notes.log",
        killed.folder / "journal" / "12.log",
        killed.folder / "segments" / "notes.seg",
    ]
    for path in others:
        path.write_text("Remember the milk.", encoding="ascii")
    for command in (("check",), ("info",), ("repair", "--yes")):
        done = run(*command, str(killed.folder))
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert run("backup", str(killed.folder), str(tmp_path / "copy")).returncode == 0
    assert contents(tmp_path / "copy") == contents(killed.folder) == killed.written
    assert all(path.exists() for path in others)
