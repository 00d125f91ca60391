"""Recovery: a torn batch is cut off, real damage stops the start and is named."""

import asyncio
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest

from headwater.errors import NewerFormat, StoreDamaged, StoreLocked
from headwater.protocol.expiry import Expiry
from headwater.protocol.offsets import START as OFFSET_START
from headwater.protocol.producers import ProducerClaim
from headwater.protocol.refusals import StreamNotFound
from headwater.storage.disk.catalog import FILE, Catalog
from headwater.storage.disk.journal import START
from headwater.storage.disk.journal_reader import JournalEntry, read_journal
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.segments import segment_path
from headwater.storage.disk.store import DiskStore
from headwater.storage.refusals import BytesDamaged
from tests.storage.disk.steps import SMALL, crashed, flip, journals, segments, with_store
from tests.suites.steps import BINARY, T0, append, close, content, create, fork, head, read
from tests.support.disk_faults import DiskFaults
from tests.support.server import ServerProcess
from tests.support.wire import Wire

UNSYNCED = DiskOptions(durability="os", journal_bytes=16 * 1024, checkpoint_seconds=3600)
UNSAVED = DiskOptions(durability="os", journal_bytes=1024 * 1024, checkpoint_seconds=3600)
"""Likewise, with a journal file that is not full before the test ends."""


async def three_appends(store: DiskStore) -> None:
    """Create a stream, and append to it in three batches."""
    await create(store, content_type=BINARY, body=b"first ")
    await append(store, body=b"second ", content_type=BINARY)
    await append(store, body=b"third", content_type=BINARY, producer=ProducerClaim("p", 0, 0))


async def whole(store: DiskStore) -> bytes:
    return await content(store)


async def appends_of_many_pages(store: DiskStore) -> None:
    """Create a stream, and append more to it than a page holds."""
    await create(store, "long", BINARY)
    for _ in range(3):
        await append(store, "long", b"x" * 4000, BINARY)


def records_of(folder: Path) -> list[JournalEntry]:
    return [item for item in read_journal(journals(folder)[0]) if isinstance(item, JournalEntry)]


def test_what_was_acknowledged_is_there_after_a_crash(tmp_path: Path) -> None:
    async def live(store: DiskStore) -> None:
        await three_appends(store)
        await fork(store, "f", "s")
        await append(store, "f", b" own", BINARY, seq="7")
        await create(store, "closed", body=b"1")
        await close(store, "closed")
        await create(store, "deleted")
        await store.delete("deleted", T0)
        await create(store, "kept", BINARY, b"kept")
        await fork(store, "its fork", "kept")
        await store.delete("kept", T0)

    async def look(store: DiskStore) -> None:
        assert await content(store) == b"first second third"
        assert await content(store, "f") == b"first second third own"
        assert await content(store, "its fork") == b"kept"
        assert (await head(store, "closed")).closed
        assert await store.head("deleted", T0) == StreamNotFound("deleted")
        again = ProducerClaim("p", 0, 0)
        assert (await append(store, body=b"x", content_type=BINARY, producer=again)).repeated

    copy = crashed(tmp_path / "data", live, tmp_path / "copy")
    assert records_of(copy)
    with_store(copy, look)
    with_store(copy, look)


def test_a_batch_that_is_torn_at_any_byte_is_cut_off(tmp_path: Path) -> None:
    copy = crashed(tmp_path / "data", three_appends, tmp_path / "copy")
    path = journals(copy)[0]
    entries = records_of(copy)
    before_last = entries[-2].position + 8 + len(entries[-2].body)
    end = entries[-1].position + 8 + len(entries[-1].body)
    stored = path.read_bytes()
    assert not stored[end:].strip(b"\0")
    for position in range(before_last, end):
        for rest in (b"", bytes(len(stored) - position)):
            torn = tmp_path / "torn"
            shutil.copytree(copy, torn)
            (torn / "journal" / path.name).write_bytes(stored[:position] + rest)
            # What is missing may have been zeros anyway.
            complete = (stored[:position] + rest)[:end] == stored[:end]
            expected = b"first second third" if complete else b"first second "
            assert with_store(torn, whole, UNSYNCED) == expected, position
            shutil.rmtree(torn)


def test_a_store_goes_on_after_a_torn_batch(tmp_path: Path) -> None:
    async def go_on(store: DiskStore) -> bytes:
        claim = ProducerClaim("p", 0, 0)
        answer = await append(store, body=b"again", content_type=BINARY, producer=claim)
        assert not answer.repeated
        return await content(store)

    copy = crashed(tmp_path / "data", three_appends, tmp_path / "copy")
    last = records_of(copy)[-1]
    flip(journals(copy)[0], last.position + 10)
    second = crashed(copy, go_on, tmp_path / "second")
    assert with_store(second, whole) == b"first second again"


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_a_flipped_bit_before_the_last_batch_stops_the_start_and_is_named(
    tmp_path: Path, place: int
) -> None:
    copy = crashed(tmp_path / "data", three_appends, tmp_path / "copy")
    path = journals(copy)[0]
    first = records_of(copy)[0]
    flip(path, START + place)
    stored = path.read_bytes()
    with pytest.raises(StoreDamaged, match="headwater repair") as damage:
        with_store(copy, whole)
    assert damage.value.file == str(path)
    assert START <= damage.value.position <= first.position
    assert path.read_bytes() == stored, "the evidence was changed"


def test_damage_that_stops_a_start_is_reported_with_its_streams(tmp_path: Path) -> None:
    async def one(store: DiskStore) -> None:
        await create(store, "old", BINARY)

    async def more(store: DiskStore) -> None:
        await create(store, "new", BINARY)
        for path in ("old", "new", "new"):
            await append(store, path, b"x" * 40, BINARY)

    with_store(tmp_path / "data", one)
    copy = crashed(tmp_path / "data", more, tmp_path / "copy")
    path = journals(copy)[0]
    stored = path.read_bytes()
    creation, first, second, _ = records_of(copy)
    # Whose creation is damaged is known by its number alone.
    for record, named in (
        (creation, "stream 2"),
        (first, "stream 1, old"),
        (second, "stream 2, new"),
    ):
        flip(path, record.position + 30)
        with pytest.raises(StoreDamaged) as damage:
            with_store(copy, whole)
        assert damage.value.reason.endswith(f"match its checksum ({named})")
        path.write_bytes(stored)


def test_a_journal_file_that_is_missing_stops_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with_store(folder, three_appends)
    (lost,) = journals(folder)
    lost.unlink()
    with pytest.raises(StoreDamaged, match="missing") as damage:
        with_store(folder, whole)
    assert damage.value.file == str(lost)


def test_a_gap_between_journal_files_stops_the_start(tmp_path: Path) -> None:
    copy = crashed(tmp_path / "data", three_appends, tmp_path / "copy")
    (first,) = journals(copy)
    first.rename(first.with_name(f"{2:016d}.log"))
    with pytest.raises(StoreDamaged, match="missing") as damage:
        with_store(copy, whole)
    assert damage.value.file == str(first)


def test_a_journal_file_whose_first_page_is_zeros_stops_the_start(tmp_path: Path) -> None:
    """Such a page is what some disks return; a file that was never used has zeros only."""
    copy = crashed(tmp_path / "data", appends_of_many_pages, tmp_path / "copy", UNSAVED)
    path = journals(copy)[0]
    with path.open("r+b") as file:
        file.write(bytes(4096))
    with pytest.raises(StoreDamaged, match="its header is not that") as damage:
        with_store(copy, whole)
    assert damage.value.file == str(path)


@pytest.mark.parametrize("content", [b"", bytes(10_000)], ids=["emptied", "zeros"])
def test_a_journal_file_that_is_empty_but_followed_by_another_stops_the_start(
    tmp_path: Path, content: bytes
) -> None:
    """Only the file after all that were used may be unused."""
    first = crashed(tmp_path / "data", three_appends, tmp_path / "first", UNSAVED)
    copy = crashed(first, appends_of_many_pages, tmp_path / "copy", UNSAVED)
    lost, _ = journals(copy)
    lost.write_bytes(content)
    with pytest.raises(StoreDamaged, match="its header is not that") as damage:
        with_store(copy, whole)
    assert damage.value.file == str(lost)


def test_a_start_that_is_broken_off_can_be_repeated(tmp_path: Path) -> None:
    """The only journal file must not be gone at any moment of a start."""
    folder = tmp_path / "data"
    with_store(folder, three_appends)
    for _ in range(3):
        server = ServerProcess(store=folder, faults=DiskFaults("recovery-replayed:1")).launch()
        assert not server.listens()
        assert server.exit_code() == -9, server.log()
    assert with_store(folder, whole) == b"first second third"


def test_restarts_without_writes_leave_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with_store(folder, three_appends)
    with_store(folder, whole)  # takes the spare that the first checkpoint left
    before = sorted(folder.rglob("*"))
    for _ in range(3):
        with_store(folder, whole)
    assert sorted(folder.rglob("*")) == before


def _newer(header: bytes) -> bytes:
    """Raise the version in the header of a file by one, checksum included."""
    magic, version, reserved, number = struct.unpack("<8sIIQ", header[:24])
    changed = struct.pack("<8sIIQ", magic, version + 1, reserved, number)
    return changed + struct.pack("<I", crc32(changed))


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    copy = crashed(tmp_path / "data", three_appends, tmp_path / "copy")
    path = journals(copy)[0]
    stored = path.read_bytes()
    path.write_bytes(_newer(stored[:START]) + stored[START:])
    with pytest.raises(NewerFormat, match="newer"):
        with_store(copy, whole)


def test_a_newer_catalog_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with_store(folder, three_appends)
    catalog = Catalog(folder)
    catalog.put("version", 99)
    catalog.close()
    with pytest.raises(NewerFormat, match="99"):
        with_store(folder, whole)


def test_a_newer_catalog_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with_store(folder, three_appends)
    with closing(sqlite3.connect(folder / FILE)) as db:
        db.execute("UPDATE meta SET value = value + 1 WHERE key = 'version'")
        db.execute("DROP TABLE documents")
        db.commit()
    with pytest.raises(NewerFormat):
        with_store(folder, whole)
    with closing(sqlite3.connect(folder / FILE)) as db:
        assert not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'documents'").fetchall()


def test_a_catalog_of_version_1_is_taken_over(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def go_on(store: DiskStore) -> bytes:
        await append(store, body=b" fourth", content_type=BINARY)
        return await whole(store)

    with_store(folder, three_appends)
    with closing(sqlite3.connect(folder / FILE)) as db:  # its rows are of today's form
        db.execute("UPDATE meta SET value = 1 WHERE key = 'version'")
        db.commit()
    assert with_store(folder, go_on) == with_store(folder, whole) == b"first second third fourth"
    with closing(sqlite3.connect(folder / FILE)) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone() == (2,)


def test_a_newer_segment_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    """A start does not open segments: the version of the catalog is above that of its files."""
    folder = tmp_path / "data"
    with_store(folder, partial(create, path="other", content_type=BINARY, body=b"other"))
    with_store(folder, three_appends)
    _, path = segments(folder)
    stored = path.read_bytes()
    path.write_bytes(_newer(stored[:28]) + stored[28:])

    async def look(store: DiskStore) -> None:
        with pytest.raises(NewerFormat, match=path.name):
            await read(store)
        assert await content(store, "other") == b"other"

    with_store(folder, look)
    assert path.read_bytes()[28:] == stored[28:]


def many_streams(folder: Path) -> None:
    """Fill several pages of the catalog, and leave appends to all of it in the journal."""

    async def creations(store: DiskStore) -> None:
        for number in range(300):
            await create(store, f"stream/{number:06d}", BINARY, b"x")

    with_store(folder, creations, UNSYNCED)


def lose_pages(folder: Path) -> None:
    """Write over the pages of the catalog that hold streams."""
    path = folder / FILE
    stored = path.read_bytes()
    size = int.from_bytes(stored[16:18], "big")
    for at in range(size, len(stored), size):
        if b"stream/0001" in stored[at : at + size]:
            stored = stored[:at] + b"\xff" * size + stored[at + size :]
    path.write_bytes(stored)


def test_a_damaged_page_of_the_catalog_stops_a_start_that_needs_it(tmp_path: Path) -> None:
    async def appends(store: DiskStore) -> None:
        for number in range(300):
            await append(store, f"stream/{number:06d}", b"y", BINARY)

    folder = tmp_path / "data"
    many_streams(folder)
    copy = crashed(folder, appends, tmp_path / "copy", UNSAVED)
    lose_pages(copy)
    with pytest.raises(StoreDamaged, match="SQLite: "):
        with_store(copy, whole, UNSAVED)


def test_a_damaged_page_of_the_catalog_is_reported_to_requests_that_need_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    many_streams(folder)
    lose_pages(folder)
    server = ServerProcess(store=folder).start()
    try:
        with Wire(server.port) as wire:
            asked = [
                wire.ask_stream(
                    method, "stream/000150", {"Content-Type": BINARY}, b"x" * (len(method) == 4)
                )
                for method in ("GET", "POST", "PUT", "DELETE")
            ]
            assert wire.ask_stream("PUT", "new", {"Content-Type": BINARY}).status in {201, 500}
        for answer in asked:
            assert FILE in answer.problem(500, "stream-damaged")["detail"]
    finally:
        server.stop()
    assert "Traceback" not in server.log()


def test_a_catalog_that_is_none_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with_store(folder, three_appends)
    (folder / FILE).write_bytes(b"not a database, but long enough to look like one" * 100)
    with pytest.raises(StoreDamaged, match=FILE):
        with_store(folder, whole)


def test_segments_that_no_checkpoint_finished_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with_store(folder, three_appends)
    kept = segments(folder)
    orphan = segment_path(folder / "segments", 77)
    orphan.write_bytes(b"half a segment")
    assert with_store(folder, whole) == b"first second third"
    assert segments(folder) == kept


def _flip_content(path: Path) -> None:
    flip(path, path.read_bytes().index(b"a" * 1000) + 500)


def _make_unreadable(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")  # there is nothing at its first addresses: EIO


@pytest.mark.parametrize("harm", [_flip_content, _make_unreadable, Path.unlink])
def test_a_damaged_segment_takes_its_streams_down_and_no_other(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async def look(store: DiskStore) -> None:
        damaged = await store.read("a", OFFSET_START, 10_000, T0)
        assert isinstance(damaged, BytesDamaged)
        assert str(first) in damaged.place
        assert await content(store, "b") == b"b" * 1000
        await append(store, "a", b"more", BINARY)
        tail = await read(store, "a", (await head(store, "a")).tail)
        assert tail.joined() == b""

    folder = tmp_path / "data"
    for path in ("a", "b"):
        with_store(folder, partial(create, path=path, content_type=BINARY, body=_thousand(path)))
    first, _ = segments(folder)
    harm(first)
    with_store(folder, look)


def test_a_damaged_header_of_a_segment_takes_no_stream_down(tmp_path: Path) -> None:
    async def look(store: DiskStore) -> None:
        for path in ("a", "b"):
            assert await content(store, path) == _thousand(path)

    folder = tmp_path / "data"
    for path in ("a", "b"):
        with_store(folder, partial(create, path=path, content_type=BINARY, body=_thousand(path)))
    flip(segments(folder)[0], 3)
    with_store(folder, look)


def _thousand(path: str) -> bytes:
    return path.encode() * 1000


def test_a_second_store_on_the_same_folder_reports_who_has_it(tmp_path: Path) -> None:
    async def another(store: DiskStore) -> None:
        with pytest.raises(StoreLocked, match="in use by process"):
            await DiskStore(store.folder).open()
        await create(store)

    with_store(tmp_path / "data", another)


def test_a_second_server_on_the_same_folder_ends_with_a_sentence(tmp_path: Path) -> None:
    first = ServerProcess(store=tmp_path / "data").start()
    try:
        second = ServerProcess(store=tmp_path / "data").launch()
        assert not second.listens()
        assert second.exit_code() == 1
        assert second.log().startswith("Error: ")
        assert f"in use by process {first.pid}" in second.log()
        assert "Traceback" not in second.log()
    finally:
        first.stop()


def test_a_store_that_did_not_open_releases_its_folder(tmp_path: Path) -> None:
    copy = crashed(tmp_path / "data", three_appends, tmp_path / "copy")
    flip(journals(copy)[0], START + 2)

    async def twice() -> None:
        for _ in range(2):
            with pytest.raises(StoreDamaged):
                await DiskStore(copy, SMALL).open()

    asyncio.run(twice())


def test_durability_os_survives_the_end_of_the_process(tmp_path: Path) -> None:
    copy = crashed(tmp_path / "data", three_appends, tmp_path / "copy", UNSYNCED)
    assert with_store(copy, whole, UNSYNCED) == b"first second third"


def test_what_a_crash_did_to_a_sliding_window_outlives_an_orderly_stop(tmp_path: Path) -> None:
    """The access that a crash has lost is not forgotten by the second start after it either."""
    folder, copy = tmp_path / "data", tmp_path / "copy"

    def opened(place: Path, now: float) -> DiskStore:
        return DiskStore(place, SMALL, clock=lambda: now)

    async def scenario() -> None:
        store = opened(folder, 1000)
        await store.open()
        await create(store, expiry=Expiry(ttl=3600), now=1000)
        await store.close()
        store = opened(folder, 3000)
        await store.open()
        await read(store, now=4000)
        shutil.copytree(folder, copy)  # a crash: the access was not saved
        await store.close()
        for started in (4100, 4300):
            store = opened(copy, started)
            await store.open()
            assert await store.expire(4700, 100) == 0
            await store.close()
        store = opened(copy, 7000)
        await store.open()
        assert await store.expire(4100 + 3599, 100) == 0
        assert await store.expire(4100 + 3601, 100) == 1
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("left", ["journal and segments", "segments"])
def test_an_empty_catalog_is_not_replaced_by_a_new_one(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "data"
    with_store(folder, three_appends)
    (folder / FILE).write_bytes(b"")
    for path in folder.glob(f"{FILE}-*"):
        path.unlink()
    if left == "segments":
        for path in journals(folder):
            path.unlink()
    kept = segments(folder)
    with pytest.raises(StoreDamaged, match="the file is empty, but there are streams here"):
        with_store(folder, whole)
    assert (folder / FILE).stat().st_size == 0
    assert segments(folder) == kept


def test_a_catalog_that_can_not_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with_store(folder, three_appends)
    (folder / FILE).rename(tmp_path / "elsewhere")
    (folder / FILE).mkdir()
    with pytest.raises(IsADirectoryError, match=FILE):
        with_store(folder, whole)
