"""When to save: which journal file comes next, how often a checkpoint is made for it, and what
becomes of one that fails."""

import asyncio
import errno
import fcntl
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from headwater.protocol.lifecycle import Append
from headwater.protocol.producers import ProducerClaim
from headwater.storage.disk import checkpointer
from headwater.storage.disk.journal import journal_path
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.segments import segment_path
from headwater.storage.disk.store import DiskStore
from headwater.storage.refusals import StoreUnwritable
from headwater.storage.store import StreamInfo
from tests.storage.disk.steps import immutable, journals, segments, until_at_rest, with_store
from tests.suites.steps import BINARY, T0, append, close, content, create, expect
from tests.support.patience import PATIENCE_SECONDS, until

_QUICK: Final = DiskOptions(
    durability="os", tail_budget=1 << 20, journal_bytes=1 << 18, checkpoint_seconds=0.1
)


def has_failed_since(store: DiskStore, before: float) -> bool:
    """Return whether another checkpoint has failed."""
    return store._checkpointer._failed_at > before


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_closing_while_a_journal_file_is_made_ready_keeps_the_one_that_is_needed(
    tmp_path: Path,
) -> None:
    first, second = b"x" * 600_000, b"y" * 600_000

    async def close_early(store: DiskStore) -> None:
        await create(store, "a", BINARY)
        await append(store, "a", first, BINARY)  # half of what has the next file made ready
        late = asyncio.create_task(append(store, "a", second, BINARY))
        await asyncio.sleep(0)
        await store.close()
        await late

    async def read(store: DiskStore) -> None:
        assert await content(store, "a") == first + second

    with_store(tmp_path / "data", close_early)
    with_store(tmp_path / "data", read)


def test_large_batches_soon_have_a_journal_file_that_is_filled(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY)
        unfilled: set[int] = set()
        for _ in range(400):
            await append(store, "a", b"x" * 1_200_000, BINARY)
            if store._commits.journal.is_filled:
                break
            unfilled.add(store._commits.journal.number)
        assert store._commits.journal.is_filled
        assert len(unfilled) == 1

    with_store(tmp_path / "data", scenario, DiskOptions(durability="fsync"))


def test_a_busy_store_that_saves_by_the_clock_keeps_to_filled_files(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY)
        unfilled: set[int] = set()
        while store._commits.journal.number <= 6:
            for _ in range(30):  # enough to be busy, and too little to fill a file
                await append(store, "a", b"x" * 20_000, BINARY)
            journal = store._commits.journal
            if not journal.is_filled:
                unfilled.add(journal.number)
            store._checkpointer._tick()
            await until_at_rest(store)
        assert len(unfilled) <= 2

    with_store(tmp_path / "data", scenario, DiskOptions(checkpoint_seconds=3600))


def test_a_store_with_little_to_save_fills_no_file(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY, b"little")
        await until(lambda: store.metrics.checkpoints)
        assert not store._commits.journal.is_filled

    with_store(tmp_path / "data", scenario, DiskOptions(checkpoint_seconds=0.02))


def test_a_busy_store_saves_by_the_clock_between_two_batches(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY)
        before = store.metrics.checkpoints
        ended = asyncio.Event()

        async def work() -> None:
            while not ended.is_set():
                await append(store, "a", b"x", BINARY)

        workers = [asyncio.create_task(work()) for _ in range(16)]
        # A full journal file is a reason for two of them at most.
        await until(lambda: store.metrics.checkpoints - before >= 8, "checkpoints by the clock")
        ended.set()
        await asyncio.gather(*workers)

    options = DiskOptions(checkpoint_seconds=0.1, journal_bytes=1 << 28)
    with_store(tmp_path / "data", scenario, options)


def test_many_short_records_fill_a_journal_file(tmp_path: Path) -> None:
    """However short they are, a start would replay them one by one."""
    options = DiskOptions(durability="os", checkpoint_seconds=3600, journal_records=100)

    async def scenario(store: DiskStore) -> None:
        await create(store)
        for _ in range(150):
            await append(store)
        await until(lambda: store.metrics.checkpoints > 0)

    with_store(tmp_path / "data", scenario, options)


@pytest.mark.parametrize("what", ["streams", "producers"])
def test_what_holds_memory_without_bytes_is_saved_in_time(tmp_path: Path, what: str) -> None:
    options = DiskOptions(durability="os", checkpoint_seconds=3600, tail_budget=400_000)

    async def scenario(store: DiskStore) -> None:
        await create(store)
        for number in range(100):
            if what == "streams":
                await create(store, f"s{number}")
            else:
                producer_id = f"{number}" + "x" * 1000
                await append(store, producer=ProducerClaim(producer_id, 0, 0))
        await until(lambda: store.metrics.checkpoints > 0)

    with_store(tmp_path / "data", scenario, options)


def test_streams_that_are_not_saved_yet_are_evicted_when_they_are(tmp_path: Path) -> None:
    options = DiskOptions(durability="os", checkpoint_seconds=0.1, max_loaded_streams=10)

    async def scenario(store: DiskStore) -> None:
        for first in range(0, 3000, 500):
            await asyncio.gather(*(create(store, f"s{first + at}") for at in range(500)))
        await until(lambda: len(store._registry) <= 10)
        assert await content(store, "s17") == b"[]"

    with_store(tmp_path / "data", scenario, options)


def test_a_store_that_has_stopped_saves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY, b"first")
        store._commits.stop("sync failed", OSError(errno.EIO, os.strerror(errno.EIO)))
        before = journals(folder)
        store._checkpointer._tick()
        assert store._checkpointer._has_unsaved()
        assert (store._journal.preparing, store._checkpointer._running) == (None, None)
        await store.close()
        assert (journals(folder), segments(folder)) == (before, [])

    with_store(folder, scenario, DiskOptions(durability="os", checkpoint_seconds=3600))


@pytest.mark.needs_root
def test_a_segment_that_can_not_be_deleted_holds_up_nothing_and_goes_later(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        await create(store, "old", BINARY, b"first")
        await until(lambda: store.metrics.checkpoints == 1)
        (segment,) = segments(folder)
        await create(store, "a", BINARY)
        with immutable(segment):
            await store.delete("old", T0)
            await until(lambda: store._checkpointer._undeleted_segments, "the attempt to delete it")
            async with asyncio.timeout(PATIENCE_SECONDS):
                for _ in range(60):
                    await append(store, "a", b"x" * 50_000, BINARY)
            assert segment.exists()
        await append(store, "a", b"x", BINARY)
        await until(lambda: not segment.exists())

    with_store(folder, scenario, _QUICK)


@pytest.mark.needs_root
def test_a_journal_file_that_can_not_go_is_no_failed_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY, b"first")
        (journal,) = journals(folder)
        with immutable(journal):
            await until(lambda: store.metrics.checkpoints >= 1)
            for _ in range(10):
                await append(store, "a", b"x" * 50_000, BINARY)
                await until(lambda: not store._checkpointer._has_unsaved())
            assert journal.exists()
            assert store.metrics.checkpoints > 5
        await append(store, "a", b"last", BINARY)
        await until(lambda: not journal.exists())

    async def look(store: DiskStore) -> None:
        assert await content(store, "a") == b"first" + b"x" * 500_000 + b"last"

    with_store(folder, scenario, _QUICK)
    with_store(folder, look)


@pytest.mark.needs_root
def test_a_store_starts_where_what_it_does_not_need_can_not_be_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with_store(folder, partial(create, path="a", content_type=BINARY, body=b"first"))
    orphan = segment_path(folder / "segments", 99)
    orphan.write_bytes(b"of a checkpoint that never finished")
    old = journal_path(folder / "journal", 0)
    old.write_bytes(b"saved long ago")

    async def look(store: DiskStore) -> None:
        assert await content(store, "a") == b"first"

    with immutable(orphan), immutable(old):
        with_store(folder, look)
        assert orphan.exists()
        assert old.exists()
    with_store(folder, look)
    assert not orphan.exists()
    assert not old.exists()


def test_a_checkpoint_that_can_not_be_committed_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the catalog's log must not grow: SQLite does not take that for a full disk."""
    monkeypatch.setattr(checkpointer, "_RETRY_SECONDS", 0.1)
    folder = tmp_path / "data"
    paths = [f"{number:04d}/{'long' * 250}" for number in range(1000)]

    async def scenario(store: DiskStore) -> None:
        with files_up_to(3 << 19):
            for path in paths:
                await create(store, path, BINARY, b"x")
            await until(lambda: store._checkpointer._failed_snapshot is not None)
            for _ in range(4):
                before = store._checkpointer._failed_at
                await append(store, paths[0], b"y", BINARY)
                await until(partial(has_failed_since, store, before), "another attempt")
            await until(lambda: store._checkpointer._running is None)
            assert store._checkpointer._failed_snapshot is not None
            known = {number for number, _, _ in store._catalog.segments()}
            assert {int(path.stem) for path in segments(folder)} == known
            assert len(journals(folder)) <= 4, "each attempt has turned to another file"
        await until(lambda: not store._checkpointer._has_unsaved())

    async def look(store: DiskStore) -> None:
        assert await content(store, paths[0]) == b"xyyyy"
        for path in paths[1:]:
            assert await content(store, path) == b"x"

    with_store(folder, scenario, DiskOptions(durability="os", checkpoint_seconds=0.1))
    with_store(folder, look)


def test_a_checkpoint_that_is_tried_again_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog's log must not grow, so the segment is written and then not committed."""
    monkeypatch.setattr(checkpointer, "_RETRY_SECONDS", 0.1)
    paths = [f"{number:04d}/{'long' * 250}" for number in range(1000)]

    async def scenario(store: DiskStore) -> None:
        with files_up_to(3 << 19):
            for path in paths:
                await create(store, path, BINARY, b"x")
            await until(lambda: store._checkpointer._failed_snapshot is not None)
            before = store._checkpointer._failed_at
            await append(store, paths[0], b"y", BINARY)
            await until(partial(has_failed_since, store, before), "another attempt")
        await until(
            lambda: not store._checkpointer._has_unsaved() and store._checkpointer._running is None
        )
        assert store.metrics.segment_bytes == len(paths) + 1
        saved = json.loads(store._catalog.meta("metrics", ""))
        assert saved["segment_bytes"] == len(paths) + 1
        assert saved["checkpoints"] == store.metrics.checkpoints

    with_store(tmp_path, scenario, DiskOptions(durability="os", checkpoint_seconds=0.1))


def test_what_is_owed_goes_with_what_was_deleted_since_where_room_is_lacking(
    tmp_path: Path,
) -> None:
    """A segment does not fit; what is deleted meanwhile makes it smaller."""
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        await create(store, "c", BINARY)
        await until(
            lambda: not store._checkpointer._has_unsaved() and store._checkpointer._running is None
        )
        for name in "ab":
            await create(store, name, BINARY, b"x" * 150_000)
        await close(store, "c")
        with files_up_to(1 << 18):
            await until(lambda: store._checkpointer._failed_snapshot is not None)
            await store.delete("a", T0)
            await until(lambda: not store._checkpointer._has_unsaved())

    async def look(store: DiskStore) -> None:
        assert await content(store, "b") == b"x" * 150_000
        found = await store.head("c", T0)
        assert isinstance(found, StreamInfo)
        assert found.closed

    options = DiskOptions(durability="os", journal_bytes=1 << 18, checkpoint_seconds=0.3)
    with_store(folder, scenario, options)
    with_store(folder, look)


def test_a_refusal_says_whether_room_helps_or_a_restart_or_patience(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY)
        request = Append(BINARY, b"x")
        with files_up_to(4096):
            answer = await store.append("a", Append(BINARY, b"x" * 8192), T0)
        refused = expect(StoreUnwritable, answer)
        assert (refused.full, refused.stopped) == (True, False)

        journal = store._commits.journal
        own, journal.fd = journal.fd, _sealed(journal.position)
        refused = expect(StoreUnwritable, await store.append("a", request, T0))
        assert (refused.full, refused.stopped) == (False, False)
        os.close(journal.fd)
        journal.fd = own
        await append(store, "a", b"works", BINARY)

        store._commits.stop("sync failed", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        refused = expect(StoreUnwritable, await store.append("a", request, T0))
        assert (refused.full, refused.stopped) == (False, True)

    options = DiskOptions(journal_bytes=4096, checkpoint_seconds=3600)
    with_store(tmp_path / "data", scenario, options)


def _sealed(size: int) -> int:
    """Make a file that can't be written to, and can be cut."""
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    return fd
