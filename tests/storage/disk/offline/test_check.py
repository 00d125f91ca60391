"""A check finds every damage and names it, and changes nothing."""

import asyncio
import os
import random
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from headwater.errors import NewerFormat, StoreDamaged, StoreError
from headwater.storage.disk.journal import BATCH_HEADER, START
from headwater.storage.disk.journal_reader import JournalEntry, read_journal
from headwater.storage.disk.offline.check import CheckReport, check
from headwater.storage.disk.records import HEADER as RECORD_HEADER
from headwater.storage.disk.segments import BLOCK, EXTENT_HEADER
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.stores import (
    BUSY,
    Filler,
    command,
    contents,
    extents_of,
    flip,
    journals,
    number_of,
    query,
    segment_of,
    segments,
    with_store,
)
from tests.storage.disk.offline.stores import killed as killed_store
from tests.suites.steps import BINARY, append, create


def hashes(folder: Path) -> dict[str, str]:
    """Sum up every file of a directory that holds data: not the lock, nor shared memory."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm") and path.name != "LOCK"
    ]
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in files}


def entries(path: Path) -> list[JournalEntry]:
    """List the records of a journal file."""
    return [item for item in read_journal(path) if isinstance(item, JournalEntry)]


def used(path: Path) -> int:
    """Return the end of the records in a journal file."""
    last = entries(path)[-1]
    return last.position + RECORD_HEADER.size + len(last.body)


def only_damage(report: CheckReport) -> str:
    """Return the only damage of a report."""
    (finding,) = report.damages
    return str(finding)


def test_what_a_store_has_written_is_well(killed: Sample, closed: Sample) -> None:
    report = check(killed.folder)
    assert (report.damages, report.notes) == ([], [])
    assert (report.records, report.streams) == (60, len(killed.written))
    assert report.extents > report.streams
    assert check(closed.folder).damages == []


def test_a_directory_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a data directory"):
        check(tmp_path)
    with pytest.raises(StoreError, match="There is no directory"):
        check(tmp_path / "none")


def test_nothing_is_changed(closed: Sample) -> None:
    flip(segments(closed.folder)[0], 500)
    before = hashes(closed.folder)
    check(closed.folder)
    assert hashes(closed.folder) == before


def test_a_damaged_block_is_named(killed: Sample) -> None:
    extent = extents_of(killed.folder, "large/binary")[0]
    file = segment_of(killed.folder, extent)
    flip(file, extent.position + BLOCK + 17)
    number = number_of(killed.folder, "large/binary")
    assert only_damage(check(killed.folder)) == (
        f"segments/{file.name}, byte {extent.position + BLOCK}: bytes {BLOCK} to {2 * BLOCK} "
        f"are damaged (stream {number}, large/binary)"
    )


def test_a_damaged_extent_header_is_named(killed: Sample) -> None:
    extent = extents_of(killed.folder, "fork")[0]
    file = segment_of(killed.folder, extent)
    flip(file, extent.position - 5)
    found = only_damage(check(killed.folder))
    assert found.startswith(f"segments/{file.name}, byte {extent.position - EXTENT_HEADER}: ")
    assert found.endswith("fork)")


def test_a_damaged_file_header_is_named(killed: Sample) -> None:
    flip(segments(killed.folder)[0], 9)
    found = only_damage(check(killed.folder))
    assert found.startswith(f"segments/{segments(killed.folder)[0].name}, byte 0: its header")


def test_a_missing_segment_is_named_with_its_streams(killed: Sample) -> None:
    extent = extents_of(killed.folder, "fork")[0]
    file = segment_of(killed.folder, extent)
    file.unlink()
    found = [str(finding) for finding in check(killed.folder).damages]
    assert f"segments/{file.name}: the file is missing" in found
    assert any(line.endswith("fork)") for line in found)


def test_a_missing_journal_file_is_named(killed: Sample) -> None:
    file = journals(killed.folder)[0]
    file.unlink()
    assert only_damage(check(killed.folder)) == f"journal/{file.name}: the file is missing"


def test_a_damaged_record_is_named(killed: Sample) -> None:
    file = journals(killed.folder)[0]
    record = entries(file)[20]
    flip(file, record.position + RECORD_HEADER.size + 40)
    findings = check(killed.folder).damages
    assert findings[0].file == f"journal/{file.name}"
    assert findings[0].position == record.position
    ((_, path),) = findings[0].streams
    assert path in killed.written


def test_streams_that_only_the_journal_knows_are_named_with_their_paths(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        paths = [f"s/{number}" for number in range(7)]
        for path in paths:
            await create(store, path, BINARY)
        await asyncio.gather(*(append(store, path, b"x" * 50, BINARY) for path in paths))
        await append(store, "s/0", b"last", BINARY)

    killed_store(folder, scenario)
    (file,) = journals(folder)
    batch = entries(file)[-8:-1]
    flip(file, batch[2].position + 30)
    assert only_damage_about(folder).endswith(" (stream 3, s/2)")
    with file.open("r+b") as opened:  # none of the batch is whole
        for record in batch:
            opened.seek(record.position + 4)
            opened.write(b"\0\0\0\0")
    named = "; ".join(f"stream {number}, s/{number - 1}" for number in range(1, 6))
    assert only_damage_about(folder).endswith(f" ({named}; and 2 more)")


def only_damage_about(folder: Path) -> str:
    """Return the only damage of a checksum; others may follow from it."""
    (found,) = (str(item) for item in check(folder).damages if "checksum" in item.what)
    return found


def test_a_stream_number_that_can_not_be_is_not_looked_for(killed: Sample) -> None:
    file = journals(killed.folder)[0]
    record = entries(file)[20]
    flip(file, record.position + RECORD_HEADER.size + 8, bit=7)
    assert any("checksum" in finding.what for finding in check(killed.folder).damages)
    with pytest.raises(StoreDamaged, match="match its checksum"):
        contents(killed.folder)


def test_an_unfinished_write_at_the_end_is_no_damage(killed: Sample) -> None:
    file = journals(killed.folder)[0]
    last = entries(file)[-1]
    os.truncate(file, used(file) - 3)
    report = check(killed.folder)
    assert report.damages == []
    where = last.position - BATCH_HEADER
    (note,) = report.notes
    assert note.startswith(f"journal/{file.name}, byte {where}: an unfinished write;")


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_bit_of_a_segment_is_found(killed: Sample, seed: int) -> None:
    chance = random.Random(seed)
    file = chance.choice(segments(killed.folder))
    position = chance.randrange(file.stat().st_size)
    flip(file, position, chance.randrange(8))
    findings = check(killed.folder).damages
    assert findings
    assert all(finding.file == f"segments/{file.name}" for finding in findings)
    # The checksum of a block follows it; all other damage is found in place.
    assert findings[0].position is not None
    assert findings[0].position <= position


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_bit_of_the_journal_is_found(killed: Sample, seed: int) -> None:
    chance = random.Random(seed)
    file = journals(killed.folder)[0]
    last = entries(file)[-1].position - BATCH_HEADER
    position = chance.randrange(last)
    flip(file, position, chance.randrange(8))
    findings = check(killed.folder).damages
    assert findings[0].file == f"journal/{file.name}"
    assert findings[0].position is not None
    assert findings[0].position <= position


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_bit_before_the_last_batch_of_all_files_is_found(
    twice_killed: Sample, seed: int
) -> None:
    """The last batch of a file had been synced if another file follows it."""
    chance = random.Random(seed)
    files = journals(twice_killed.folder)
    assert len(files) == 2
    file = files[seed % 2]
    last = entries(file)[-1].position - BATCH_HEADER
    # Every other time in the last batch of the first file, its header included.
    position = chance.randrange(last) if seed % 4 else chance.randrange(last, used(file))
    flip(file, position, chance.randrange(8))
    findings = check(twice_killed.folder).damages
    assert findings[0].file == f"journal/{file.name}"
    assert findings[0].position is not None
    assert findings[0].position <= position
    with pytest.raises(StoreDamaged, match=file.name):
        contents(twice_killed.folder)


def test_a_flipped_bit_in_the_last_batch_can_only_be_taken_for_an_unfinished_write(
    killed: Sample,
) -> None:
    file = journals(killed.folder)[0]
    last = entries(file)[-1].position
    for position in (last - BATCH_HEADER, last - BATCH_HEADER + 5, last - 1, last, last + 30):
        flip(file, position)
        report = check(killed.folder)
        assert report.damages == []
        assert len(report.notes) == 1
        flip(file, position)


@pytest.mark.parametrize("seed", range(10))
def test_a_page_of_the_catalog_that_is_no_more_is_found(closed: Sample, seed: int) -> None:
    chance = random.Random(seed)
    file = closed.folder / "catalog.db"
    page = chance.randrange(file.stat().st_size // 4096)
    with file.open("r+b") as opened:
        opened.seek(page * 4096)
        opened.write(chance.randbytes(4096))
    report = check(closed.folder)
    assert report.catalog_damaged
    assert {finding.file for finding in report.damages} >= {"catalog.db"}


@pytest.mark.parametrize("seed", range(10))
def test_a_flipped_bit_of_the_catalog_is_found_or_touches_no_stream(
    closed: Sample, seed: int
) -> None:
    chance = random.Random(seed)
    file = closed.folder / "catalog.db"
    flip(file, chance.randrange(file.stat().st_size), chance.randrange(8))
    if not check(closed.folder).damages:
        assert contents(closed.folder) == closed.written


def test_a_lost_catalog_is_found(closed: Sample) -> None:
    (closed.folder / "catalog.db").unlink()
    assert only_damage(check(closed.folder)) == "catalog.db: the file is missing"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE streams SET forks = 7 WHERE path = 'large/json'", "has 1 forks, not 7"),
        ("UPDATE segments SET live = live + 1", "live bytes, not"),
        ("DELETE FROM streams WHERE path = 'large/binary'", "unknown stream"),
        ("UPDATE streams SET end = end + 1 WHERE path = 'fork'", "are not listed"),
        ("DELETE FROM extents WHERE start > 0", "are not listed"),
        ("UPDATE extents SET position = position + 1", "header of the extent"),
        ("UPDATE meta SET value = 2 WHERE key = 'next_epoch'", "higher number than any"),
    ],
)
def test_a_catalog_that_contradicts_itself_is_found(closed: Sample, change: str, what: str) -> None:
    with closing(sqlite3.connect(closed.folder / "catalog.db")) as db, db:
        db.execute(change)
    assert any(what in finding.what for finding in check(closed.folder).damages)


def test_a_newer_format_is_refused(closed: Sample) -> None:
    with closing(sqlite3.connect(closed.folder / "catalog.db")) as db, db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'version'")
    with pytest.raises(NewerFormat, match="has format 99"):
        check(closed.folder)


def test_progress_is_reported_in_bytes(killed: Sample) -> None:
    reported: list[tuple[int, int]] = []
    check(killed.folder, lambda done, total: reported.append((done, total)))
    assert reported == sorted(reported)
    assert len(reported) > 10
    done, total = reported[-1]
    files = (*segments(killed.folder), *journals(killed.folder), *killed.folder.glob("catalog.db*"))
    assert done == total <= sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("lost", ["catalog.db", "segments", "journal"])
def test_progress_ends_at_the_end_whatever_is_lost(killed: Sample, lost: str) -> None:
    path = killed.folder / lost
    for file in path.iterdir() if path.is_dir() else [path]:
        file.unlink()
    reported: list[tuple[int, int]] = []
    assert check(killed.folder, lambda done, total: reported.append((done, total))).damages
    assert reported == sorted(reported)
    done, total = reported[-1]
    assert done == total > 0


def test_progress_is_reported_while_a_large_catalog_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with_store(folder, create)
    with closing(sqlite3.connect(folder / "catalog.db")) as db, db:
        db.executemany(
            "INSERT INTO streams SELECT ?, ?, content_type, ttl, expires_at, instant, "
            "last_access, deadline, 0, 0, closed, closed_by, last_seq, deleted, forks, source, "
            "origin, inherited FROM streams WHERE id = 1",
            ((number, f"many/{number}") for number in range(2, 50_000)),
        )
        db.execute("UPDATE meta SET value = 50000 WHERE key = 'next_epoch'")
    reported: list[int] = []
    report = check(folder, lambda done, _total: reported.append(done))
    assert (report.damages, report.streams) == ([], 49_999)
    assert reported.count(0) > 1, "nothing was reported before the catalog was done"


def test_a_store_that_is_being_written_is_well(tmp_path: Path) -> None:
    """With checkpoints and compactions all the time, files vanish while they are checked."""
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> list[str]:
        writing = asyncio.create_task(Filler(3).fill(store, 1_000_000))
        answers = [await command("check", str(folder)) for _ in range(6)]
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        return answers

    answers = with_store(folder, scenario, BUSY)
    assert all(answer.startswith("No damage found: ") for answer in answers)
    assert len(set(answers)) > 1
    assert query(folder, "SELECT max(id) FROM segments") > [(20,)]


def test_the_first_batch_begins_where_the_header_ends(killed: Sample) -> None:
    """What the positions in these tests rest on."""
    first = entries(journals(killed.folder)[0])[0]
    assert first.position == START + BATCH_HEADER
