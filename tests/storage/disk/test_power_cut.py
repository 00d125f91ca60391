"""A power cut leaves what was synced, and nothing else: what a start shows must be among it.

`DiskFaults` copies each journal file as it was when a server synced it, so that a test can put
together the directory that a power cut would have left.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headwater.storage.disk.catalog import FILE
from headwater.storage.disk.journal import BATCH_HEADER
from headwater.storage.disk.journal_reader import JournalEntry, read_journal
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.steps import crashed, journals, with_store
from tests.suites.steps import append, content, create
from tests.support.disk_faults import DiskFaults
from tests.support.server import ServerProcess
from tests.support.wire import BINARY, Lost, Wire

_TYPE = {"Content-Type": BINARY}
_PRODUCER = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}


def killed_before_a_sync(folder: Path) -> None:
    """Have a server die with one batch written that it has not synced."""
    server = ServerProcess(store=folder, faults=DiskFaults("journal-written:2")).start()
    with Wire(server.port) as wire:
        assert wire.ask_stream("PUT", "s", _TYPE).status == 201
        with pytest.raises(Lost):
            wire.ask_stream("POST", "s", {**_TYPE, **_PRODUCER}, b"never synced")
    assert server.exit_code() == -9, server.log()


def lose_last_batch(path: Path) -> None:
    """Make a journal file what it was before its last batch reached the disk."""
    *_, last = (item for item in read_journal(path) if isinstance(item, JournalEntry))
    stored = path.read_bytes()
    at = last.position - BATCH_HEADER
    path.write_bytes(stored[:at] + bytes(len(stored) - at))


def test_what_a_start_has_shown_outlives_a_power_cut(tmp_path: Path) -> None:
    folder, left = tmp_path / "data", tmp_path / "left by a power cut"
    killed_before_a_sync(folder)
    shutil.copytree(folder, left)
    lose_last_batch(journals(left)[-1])

    server = ServerProcess(store=folder, faults=DiskFaults(copy_synced=left / "journal")).start()
    try:
        with Wire(server.port) as wire:
            assert wire.ask_stream("GET", "s?offset=-1").body == b"never synced"
            repeated = wire.ask_stream("POST", "s", {**_TYPE, **_PRODUCER}, b"never synced")
            assert repeated.status == 204
            assert wire.ask_stream("POST", "s", _TYPE, b", acknowledged").status == 204
    finally:
        server.kill()
    shutil.copy(journals(folder)[-1], left / "journal")  # its sync was waited for
    assert with_store(left, content) == b"never synced, acknowledged"


def test_a_start_that_can_not_make_durable_what_it_found_shows_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    killed_before_a_sync(folder)
    server = ServerProcess(store=folder, faults=DiskFaults("recovery-sync-fails:1")).launch()
    assert not server.listens()
    assert server.exit_code() == 1
    assert server.log().startswith("Error: ")
    assert "Traceback" not in server.log()
    assert with_store(folder, content) == b"never synced"


def test_a_start_that_found_nothing_new_syncs_no_old_file(tmp_path: Path) -> None:
    folder, synced = tmp_path / "data", tmp_path / "synced"
    with_store(folder, create)
    synced.mkdir()
    ServerProcess(store=folder, faults=DiskFaults(copy_synced=synced)).start().stop()
    assert [path.name for path in synced.iterdir()] == [journals(folder)[-1].name]


def test_the_catalog_that_a_start_relies_on_is_not_only_in_its_log(tmp_path: Path) -> None:
    """A commit whose sync never came is seen by a start, and journal files are deleted by it."""

    async def checkpoint(store: DiskStore) -> None:
        await create(store, content_type=BINARY, body=b"x" * 9000)
        await append(store, body=b"y" * 9000, content_type=BINARY)
        while store.metrics.checkpoints == 0:
            await append(store, body=b"z", content_type=BINARY)

    async def nothing(_store: DiskStore) -> None:
        """Let it start."""

    copy = crashed(tmp_path / "data", checkpoint, tmp_path / "copy")
    assert (copy / f"{FILE}-wal").stat().st_size
    started = crashed(copy, nothing, tmp_path / "started")
    (first,) = (path.stem for path in journals(started)[:1])
    (started / f"{FILE}-wal").unlink()
    with closing(sqlite3.connect(started / FILE)) as db:
        ((number,),) = db.execute("SELECT value FROM meta WHERE key = 'journal_from'").fetchall()
    assert number == int(first)
    assert number > 1
