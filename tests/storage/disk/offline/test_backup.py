"""A backup is consistent, whatever the server does meanwhile."""

import asyncio
import json
import os
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest

from headwater.client import Client
from headwater.errors import StoreDamaged, StoreError
from headwater.storage.disk.offline.backup import backup
from headwater.storage.disk.offline.check import check
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.offline import stores
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.stores import (
    BUSY,
    Contents,
    Filler,
    command,
    contents,
    flip,
    journals,
    query,
    segments,
    with_store,
)
from tests.storage.disk.offline.test_check import entries
from tests.suites.steps import T0, create, fork
from tests.support.disk_faults import DiskFaults
from tests.support.faulty import faulty_command, faulty_environment
from tests.support.patience import until, wait_until
from tests.support.server import ServerProcess


@pytest.mark.parametrize("link", [True, False])
def test_the_copy_of_a_stopped_store_is_the_same(
    killed: Sample, tmp_path: Path, link: bool
) -> None:
    copied = backup(killed.folder, tmp_path / "copy", link=link)
    assert check(tmp_path / "copy").damages == []
    shared = [path.stat().st_nlink for path in segments(tmp_path / "copy")]
    assert shared == [2 if link else 1] * copied.segments
    assert copied.linked == (copied.segments if link else 0)
    assert contents(tmp_path / "copy") == killed.written
    assert contents(killed.folder) == killed.written


def test_the_journal_is_copied_without_what_was_reserved(killed: Sample, tmp_path: Path) -> None:
    copied = backup(killed.folder, tmp_path / "copy")
    (file,) = journals(tmp_path / "copy")
    last = entries(file)[-1]
    assert file.stat().st_size == copied.journal_bytes == last.position + 8 + len(last.body)
    assert not list((tmp_path / "copy").glob("unfinished"))


def test_an_empty_directory_is_taken_and_others_are_not(closed: Sample, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    backup(closed.folder, target)
    before = sorted(target.rglob("*"))
    with pytest.raises(StoreError, match="already exists"):
        backup(closed.folder, target)
    assert sorted(target.rglob("*")) == before


def test_a_damaged_journal_is_not_passed_on(killed: Sample, tmp_path: Path) -> None:
    flip(journals(killed.folder)[0], entries(journals(killed.folder)[0])[3].position + 20)
    with pytest.raises(StoreDamaged, match="headwater repair"):
        backup(killed.folder, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_missing_segment_is_reported(killed: Sample, tmp_path: Path) -> None:
    segments(killed.folder)[0].unlink()
    with pytest.raises(StoreDamaged, match="the file is missing"):
        backup(killed.folder, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("point", ["backup-begun", "backup-copied"])
def test_a_backup_that_is_killed_is_not_taken_for_a_whole_one(
    killed: Sample, tmp_path: Path, point: str
) -> None:
    target = tmp_path / "copy"
    done = subprocess.run(
        faulty_command(DiskFaults(point), "backup", str(killed.folder), str(target)),
        env={**os.environ, **faulty_environment()},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert (target / "unfinished").exists() == (point == "backup-copied")
    left = sorted(target.rglob("*"))
    server = ServerProcess(store=target).launch()
    assert not server.listens()
    assert server.exit_code() == 1
    assert f"'{target / 'catalog.db'}' is damaged" in server.log()
    assert set(left) <= set(target.rglob("*"))
    assert check(target).damages
    with pytest.raises(StoreError, match="already exists"):
        backup(killed.folder, target)


def has_saved(store: DiskStore, checkpoints: int) -> bool:
    """Return whether a store has made that many checkpoints."""
    return store.metrics.checkpoints >= checkpoints


def test_backups_under_checkpoints_and_compactions_are_prefixes_of_the_truth(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    filler = Filler(7)
    taken: list[tuple[Path, Contents]] = []

    async def scenario(store: DiskStore) -> None:
        writing = asyncio.create_task(filler.fill(store, 1_000_000))
        for number in range(4):
            due = store.metrics.checkpoints + 6
            await until(partial(has_saved, store, due), "checkpoints beside the writer")
            taken.append((tmp_path / f"copy{number}", filler.acknowledged()))
            how = ["--copy"] if number % 2 else []
            await command("backup", str(folder), str(taken[-1][0]), *how)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    with_store(folder, scenario, BUSY)
    assert query(folder, "SELECT max(id) FROM segments") > [(20,)]
    for target, acknowledged in taken:
        assert check(target).damages == []
        found = contents(target)
        assert acknowledged.keys() <= found.keys()
        for path, data in found.items():
            assert data.startswith(acknowledged.get(path, b"")), path
            assert filler.written[path].startswith(data), path


def test_a_server_started_on_the_copy_has_what_was_acknowledged_before(tmp_path: Path) -> None:
    """Writers go on against a real server while it is copied; each remembers its own appends."""
    folder, copy = tmp_path / "data", tmp_path / "copy"
    done: dict[str, int] = {}
    stop = threading.Event()

    def write(url: str, path: str) -> None:
        with Client(url) as client:
            stream = client.stream(path)
            stream.create(content_type="application/json")
            number = 0
            while not stop.is_set():
                stream.append(json.dumps(number).encode(), content_type="application/json")
                done[path] = number
                number += 1

    with ServerProcess("--store", str(folder)) as server:
        writers = [
            threading.Thread(target=write, args=(server.url, f"w/{index}")) for index in range(4)
        ]
        for writer in writers:
            writer.start()
        try:
            wait_until(lambda: len(done) == 4 and min(done.values()) >= 30, "enough appends")
            before = dict(done)
            backup(folder, copy)
            afterwards = dict(done)
        finally:
            stop.set()
            for writer in writers:
                writer.join()
    assert check(copy).damages == []
    with ServerProcess("--store", str(copy)) as server, Client(server.url) as client:
        for path, number in before.items():
            (chunk,) = client.stream(path).read()
            found = [json.loads(message) for message in chunk.messages()]
            assert found == list(range(len(found)))
            # One more than was acknowledged when it ended may have been in flight.
            assert number < len(found) <= afterwards[path] + 2


def test_streams_that_only_the_journal_has_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        for path in ("a", "b", "c", "source"):
            await create(store, path)
        await fork(store, "fork", "source")
        await store.delete("c", T0)
        await store.delete("source", T0)

    stores.killed(folder, scenario)
    assert check(folder).streams == 3
    assert backup(folder, tmp_path / "copy").streams == 3
    assert len(contents(tmp_path / "copy")) == 3
