"""A repair saves what is whole, says what it drops, and leaves other streams alone."""

import os
import shutil
import subprocess

import pytest

from headwater.errors import StoreLocked
from headwater.storage.disk.offline.check import Progress, check
from headwater.storage.disk.offline.repair import prepare
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.repairs import assert_prefixes, damaged_block, repaired
from tests.storage.disk.offline.stores import contents, flip, journals, segments, with_store
from tests.storage.disk.offline.test_check import entries, hashes
from tests.suites.steps import BINARY, append
from tests.support.disk_faults import DiskFaults
from tests.support.faulty import faulty_command, faulty_environment


def test_a_directory_that_is_well_is_left_alone(killed: Sample) -> None:
    before = hashes(killed.folder)
    with prepare(killed.folder) as repair:
        assert not repair.needed
    assert hashes(killed.folder) == before


def test_a_repair_that_is_not_installed_changes_nothing(killed: Sample) -> None:
    damaged_block(killed, "large/binary", 1)
    before = hashes(killed.folder)
    with prepare(killed.folder) as repair:
        assert repair.needed
    assert hashes(killed.folder) == before


def test_a_repair_reports_progress_of_both_checks_and_its_preparation(killed: Sample) -> None:
    for file in killed.folder.glob("catalog.db*"):
        file.unlink()
    reported: dict[str, list[tuple[int, int]]] = {}

    def begin(label: str) -> Progress:
        reported[label] = []
        return lambda done, total: reported[label].append((done, total))

    with prepare(killed.folder, begin):
        assert list(reported) == ["Checking", "Preparing the repair", "Checking the result"]
    for parts in reported.values():
        assert parts == sorted(parts)
        done, total = parts[-1]
        assert done == total > 0


def test_a_directory_in_use_is_refused(closed: Sample) -> None:
    async def scenario(_store: DiskStore) -> None:
        with pytest.raises(StoreLocked, match="is in use by process"), prepare(closed.folder):
            pass

    with_store(closed.folder, scenario)


@pytest.mark.parametrize("point", ["repair-kept", "repair-in-place", "repair-switched"])
def test_a_repair_that_is_killed_can_be_repeated(killed: Sample, point: str) -> None:
    cut = damaged_block(killed, "large/binary", 1)
    done = subprocess.run(
        faulty_command(DiskFaults(point), "repair", str(killed.folder)),
        env={**os.environ, **faulty_environment()},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -9
    if point == "repair-switched":
        assert check(killed.folder).damages == []
    else:
        repaired(killed.folder)
    found = contents(killed.folder)
    assert found["large/binary"] == killed.written["large/binary"][:cut]
    assert_prefixes(found, killed.written, {"large/binary"})


def test_what_was_replaced_is_kept(killed: Sample) -> None:
    damaged_block(killed, "large/binary", 1)
    before = {path.name: path.read_bytes() for path in killed.folder.rglob("*.log")}
    with prepare(killed.folder) as repair:
        kept = repair.install()
    assert {path.name: path.read_bytes() for path in (kept / "journal").iterdir()} == before
    assert (kept / "catalog.db").exists()
    assert segments(kept)
    # It is a damaged directory still, and can be looked into.
    for file in segments(killed.folder):
        target = kept / "segments" / file.name
        if not target.exists():
            shutil.copy(file, target)
    assert check(kept).damages


def test_a_repaired_store_takes_appends_and_restarts(killed: Sample) -> None:
    file = journals(killed.folder)[0]
    flip(file, entries(file)[10].position + 30)
    repaired(killed.folder)
    before = contents(killed.folder)

    async def scenario(store: DiskStore) -> None:
        await append(store, "large/binary", b"more", BINARY)

    with_store(killed.folder, scenario)
    after = contents(killed.folder)
    assert after == {**before, "large/binary": before["large/binary"] + b"more"}
