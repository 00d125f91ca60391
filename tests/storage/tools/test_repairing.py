"""A repair saves what is whole, says what it drops, and leaves other streams alone."""

import asyncio
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from headwater.errors import StoreLocked
from headwater.protocol.offsets import Offset
from headwater.protocol.producers import ProducerClaim
from headwater.storage.disk.checking import check
from headwater.storage.disk.journal import BATCH_HEADER, Entry
from headwater.storage.disk.records import HEADER as RECORD_HEADER
from headwater.storage.disk.records import AppendRecord, CreateRecord, decode
from headwater.storage.disk.repairing import Repair, prepare
from headwater.storage.disk.segments import BLOCK, EXTENT_HEADER
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import Chunk
from tests.storage.tools.conftest import Sample
from tests.storage.tools.stores import (
    Contents,
    Filler,
    contents,
    extents_of,
    flip,
    journals,
    killed,
    number_of,
    segment_of,
    segments,
    with_store,
)
from tests.storage.tools.test_checking import entries, hashes
from tests.suites.steps import BINARY, JSON, PLENTY, T0, append, create, fork, head, read


def repaired(folder: Path) -> Repair:
    """Repair a directory, which must need it, and see that it is well afterwards."""
    with prepare(folder) as repair:
        assert repair.needed
        repair.install()
    assert check(folder).damages == []
    assert not (folder / "repairing").exists()
    return repair


def damaged_block(sample: Sample, path: str, index: int) -> int:
    """Flip a bit in a block of a large stream; gives where in the stream the block begins."""
    extent = extents_of(sample.folder, path)[0]
    flip(segment_of(sample.folder, extent), extent.position + index * BLOCK + 99)
    return extent.start + index * BLOCK


def assert_prefixes(found: Contents, written: Contents, affected: set[str]) -> None:
    """Each affected stream is a prefix of what it was; all others are as they were."""
    for path, data in written.items():
        if path in affected:
            assert data.startswith(found[path]), path
        else:
            assert found[path] == data, path


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


def test_a_repair_tells_of_both_checks_and_of_what_lies_between(killed: Sample) -> None:
    for file in killed.folder.glob("catalog.db*"):
        file.unlink()
    told: list[tuple[int, int]] = []
    with prepare(killed.folder, lambda done, total: told.append((done, total))):
        begun = [other for one, other in pairwise(told) if other[0] < one[0]]
        assert len(begun) == 2
    assert all(done <= total for done, total in told)


def test_a_directory_in_use_is_refused(closed: Sample) -> None:
    async def scenario(_store: DiskStore) -> None:
        with pytest.raises(StoreLocked, match="is in use by process"), prepare(closed.folder):
            pass

    with_store(closed.folder, scenario)


# Segments


def test_a_damaged_block_cuts_its_stream_there(killed: Sample) -> None:
    cut = damaged_block(killed, "large/binary", 1)
    repair = repaired(killed.folder)
    (line,) = repair.dropped
    assert line.startswith(f"Bytes {cut} to {len(killed.written['large/binary'])} (stream ")
    assert "large/binary" in line
    found = contents(killed.folder)
    assert found["large/binary"] == killed.written["large/binary"][:cut]
    assert_prefixes(found, killed.written, {"large/binary"})


def test_a_json_stream_is_cut_behind_a_message_and_its_fork_with_it(killed: Sample) -> None:
    cut = damaged_block(killed, "large/json", 1)
    repaired(killed.folder)
    found = contents(killed.folder)
    whole = killed.written["large/json"]
    kept = whole[: whole.rfind(b"\n", 0, cut) + 1]
    assert found["large/json"] == found["fork"] == kept
    json.loads(b"[" + kept[:-2] + b"]")
    assert_prefixes(found, killed.written, {"large/json", "fork"})


def test_offsets_of_what_was_lost_are_refused_for_ever(killed: Sample) -> None:
    number = number_of(killed.folder, "large/binary")
    cut = damaged_block(killed, "large/binary", 1)
    repaired(killed.folder)

    async def scenario(store: DiskStore) -> None:
        lost = Offset(number, cut + 10)
        kept = Offset(number, cut - 10)
        assert not isinstance(await store.read("large/binary", lost, PLENTY, T0), Chunk)
        before = await read(store, "large/binary", kept)
        assert before.end == Offset(number, cut)
        await append(store, "large/binary", b"x" * 100, BINARY)
        assert not isinstance(await store.read("large/binary", lost, PLENTY, T0), Chunk)
        after = await read(store, "large/binary", before.end)
        assert after.joined() == b"x" * 100

    with_store(killed.folder, scenario)


def test_a_repaired_stream_goes_on_with_its_producers_and_can_be_deleted(killed: Sample) -> None:
    damaged_block(killed, "large/binary", 1)
    repaired(killed.folder)

    async def scenario(store: DiskStore) -> None:
        repeated = await append(
            store, "large/binary", b"x", BINARY, producer=ProducerClaim("p", 0, 0)
        )
        assert repeated.repeated
        path = "large/binary"
        assert await store.delete(path, T0) is None
        await create(store, path, BINARY, b"again")

    with_store(killed.folder, scenario)
    assert check(killed.folder).damages == []
    assert contents(killed.folder)["large/binary"] == b"again"


def test_a_closed_stream_stays_closed(killed: Sample) -> None:
    damaged_block(killed, "large/json", 0)
    repaired(killed.folder)

    async def scenario(store: DiskStore) -> None:
        info = await head(store, "fork")
        assert info.closed
        assert info.tail.byte == 0

    with_store(killed.folder, scenario)


def test_damaged_headers_lose_nothing(killed: Sample) -> None:
    flip(segments(killed.folder)[0], 3)
    extent = extents_of(killed.folder, "large/binary")[0]
    flip(segment_of(killed.folder, extent), extent.position - EXTENT_HEADER)
    repair = repaired(killed.folder)
    assert repair.dropped == []
    assert contents(killed.folder) == killed.written


def test_a_missing_segment_takes_only_what_it_held(killed: Sample) -> None:
    extent = extents_of(killed.folder, "large/binary")[-1]
    lost = segment_of(killed.folder, extent)
    streams = {
        path
        for path in killed.written
        if any(segment_of(killed.folder, item) == lost for item in extents_of(killed.folder, path))
    }
    lost.unlink()
    repaired(killed.folder)
    found = contents(killed.folder)
    assert_prefixes(found, killed.written, streams)
    assert len(found["large/binary"]) == extent.start


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_of_a_segment_costs_one_stream_at_most(killed: Sample, seed: int) -> None:
    chance = random.Random(seed)
    file = chance.choice(segments(killed.folder))
    flip(file, chance.randrange(file.stat().st_size), chance.randrange(8))
    affected = {finding.path for finding in check(killed.folder).damages if finding.path}
    repaired(killed.folder)
    forks = {"fork"} if "large/json" in affected else set()
    assert len(affected) <= 1
    assert_prefixes(contents(killed.folder), killed.written, affected | forks)


# The journal


def stream_in(entry: Entry) -> int:
    return decode(entry.body).stream


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_record_costs_one_stream_what_comes_behind_it(killed: Sample, seed: int) -> None:
    chance = random.Random(seed)
    file = journals(killed.folder)[0]
    entry = chance.choice(entries(file)[:-1])
    number = stream_in(entry)
    size = RECORD_HEADER.size + len(entry.body)
    flip(file, entry.position + chance.randrange(size), chance.randrange(8))
    paths = {path for path in killed.written if number_of(killed.folder, path) == number}
    repair = repaired(killed.folder)
    assert f"journal/{file.name}, bytes {entry.position} to" in repair.dropped[0]
    found = contents(killed.folder)
    assert_prefixes(found, killed.written, paths)
    record = decode(entry.body)
    assert isinstance(record, AppendRecord)
    assert all(len(found[path]) == record.start for path in paths)


def test_a_damaged_batch_header_loses_nothing(killed: Sample) -> None:
    file = journals(killed.folder)[0]
    flip(file, entries(file)[5].position - BATCH_HEADER + 6)
    repaired(killed.folder)
    assert contents(killed.folder) == killed.written


def test_a_damaged_header_of_the_last_batch_of_a_file_loses_nothing(twice_killed: Sample) -> None:
    file = journals(twice_killed.folder)[0]
    flip(file, entries(file)[-1].position - BATCH_HEADER + 5)
    repaired(twice_killed.folder)
    assert contents(twice_killed.folder) == twice_killed.written


@pytest.mark.parametrize("bit", range(32))
def test_a_damaged_length_costs_its_own_stream_and_no_other(tmp_path: Path, bit: int) -> None:
    folder = tmp_path / "data"
    paths = [f"s{number}" for number in range(6)]

    async def scenario(store: DiskStore) -> None:
        for path in paths:
            await create(store, path, BINARY)
        async with asyncio.TaskGroup() as group:  # in one batch
            for path in paths:
                group.create_task(append(store, path, path.encode() * 50, BINARY))
        await append(store, "s5", b"last", BINARY)

    killed(folder, scenario)
    file = journals(folder)[0]
    (place,) = (
        entry.position
        for entry in entries(file)
        if isinstance(record := decode(entry.body), AppendRecord) and record.data.startswith(b"s0")
    )
    flip(file, place + bit // 8, bit % 8)
    repair = repaired(folder)
    (line,) = repair.dropped
    assert "(stream 1, s0)" in line
    assert "It can't be known whether more streams" in line
    expected = {path: path.encode() * 50 for path in paths}
    assert contents(folder) == {**expected, "s0": b"", "s5": b"s5" * 50 + b"last"}
    assert number_of(folder, "s0") > 6, "offsets of what is lost would be those of what comes"
    assert [number_of(folder, path) for path in paths[1:]] == [2, 3, 4, 5, 6]


def test_each_of_several_damaged_records_in_a_row_is_named(killed: Sample) -> None:
    file = journals(killed.folder)[0]
    found = entries(file)
    index = next(
        index
        for index, (one, other) in enumerate(pairwise(found))
        if one.end + BATCH_HEADER == other.position and stream_in(one) != stream_in(other)
    )
    for entry in found[index : index + 2]:
        flip(file, entry.position + RECORD_HEADER.size + 30)
    named = {stream_in(entry) for entry in found[index : index + 2]}
    repair = repaired(killed.folder)
    assert all(any(f"(stream {number}, " in line for line in repair.dropped) for number in named)


def test_a_damaged_journal_header_loses_nothing(killed: Sample) -> None:
    flip(journals(killed.folder)[0], 2)
    repaired(killed.folder)
    assert contents(killed.folder) == killed.written


def test_a_missing_journal_file_loses_what_it_held(killed: Sample) -> None:
    journals(killed.folder)[0].unlink()
    repaired(killed.folder)
    found = contents(killed.folder)
    assert_prefixes(found, killed.written, set(killed.written))
    assert found["large/binary"] == killed.written["large/binary"]


def test_a_stream_whose_creation_is_lost_is_found_under_its_number(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        await create(store, "one")
        await create(store, "two")
        await append(store, "one", b'{"a": 1}')
        await append(store, "two", b'{"b": 1}')
        await fork(store, "three", "one")
        await append(store, "three", b'{"c": 1}')

    killed(folder, scenario)
    file = journals(folder)[0]
    creation = entries(file)[0]
    assert isinstance(decode(creation.body), CreateRecord)
    flip(file, creation.position + 30)
    repair = repaired(folder)
    assert repair.recovered == [
        "Stream 1 lost its path and its settings: it is now recovered/1, application/json."
    ]
    assert contents(folder) == {
        "recovered/1": b'{"a": 1},\n',
        "two": b'{"b": 1},\n',
        "three": b'{"a": 1},\n{"c": 1},\n',
    }


def test_a_deletion_that_is_lost_does_not_block_the_path(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def first(store: DiskStore) -> None:
        await create(store, "s", body=b"1")

    async def second(store: DiskStore) -> None:
        await store.delete("s", T0)
        await create(store, "s", body=b"2")
        await append(store, "s", b"3")

    with_store(folder, first)
    killed(folder, second)
    file = journals(folder)[0]
    flip(file, entries(file)[0].position + 12)
    repaired(folder)
    assert contents(folder) == {"s": b"2,\n3,\n"}


# The catalog


def test_a_lost_source_takes_nothing_of_what_its_forks_and_theirs_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        await create(store, "a", BINARY, b"aaaa")
        await fork(store, "b", "a")
        await append(store, "b", b"bbbb", BINARY)
        await fork(store, "c", "b")
        await append(store, "c", b"cccc", BINARY)
        await create(store, "other", BINARY, b"other")

    with_store(folder, scenario)
    with closing(sqlite3.connect(folder / "catalog.db")) as db:
        db.execute("DELETE FROM streams WHERE path = 'a'")
        db.commit()
    repaired(folder)
    found = contents(folder)
    assert found == {
        "recovered/1": b"aaaa",
        "b": b"aaaabbbb",
        "c": b"aaaabbbbcccc",
        "other": b"other",
    }


def test_a_source_that_is_lost_with_its_bytes_leaves_what_its_forks_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def source(store: DiskStore) -> None:
        await create(store, "a", BINARY, b"aaaa")

    async def forks(store: DiskStore) -> None:
        await fork(store, "b", "a")
        await append(store, "b", b"bbbb", BINARY)
        await fork(store, "c", "b")
        await append(store, "c", b"cccc", BINARY)
        await fork(store, "d", "c")

    with_store(folder, source)
    (lost,) = segments(folder)
    with_store(folder, forks)
    lost.unlink()
    with closing(sqlite3.connect(folder / "catalog.db")) as db:
        db.execute("DELETE FROM streams WHERE path = 'a'")
        db.execute("DELETE FROM extents WHERE stream = 1")
        db.execute("DELETE FROM segments WHERE id = 1")
        db.commit()
    repair = repaired(folder)
    assert any("which is lost" in line for line in repair.dropped)
    assert contents(folder) == {"b": b"bbbb", "c": b"bbbbcccc", "d": b"bbbbcccc"}


def test_a_lost_catalog_is_rebuilt_from_segments_and_journal(killed: Sample) -> None:
    numbers = {path: number_of(killed.folder, path) for path in killed.written}
    for file in killed.folder.glob("catalog.db*"):
        file.unlink()
    repair = repaired(killed.folder)
    found = contents(killed.folder)
    for path, data in killed.written.items():
        if path == "fork":
            # What it inherited belonged to a stream of which nobody knows that it was its source.
            inherited = len(data) - len(found[f"recovered/{numbers[path]}"])
            assert found[f"recovered/{numbers[path]}"] == data[inherited:]
        else:
            assert found[f"recovered/{numbers[path]}"] == data
    assert len(found) == len(repair.recovered) == len(killed.written)

    async def media(store: DiskStore) -> dict[str, str]:
        return {path: (await head(store, path)).config.content_type for path in found}

    types = with_store(killed.folder, media)
    assert types[f"recovered/{numbers['large/json']}"] == JSON
    assert types[f"recovered/{numbers['large/binary']}"] == BINARY


def test_a_deleted_stream_does_not_come_back_while_the_catalog_can_be_read(
    closed: Sample,
) -> None:
    async def scenario(store: DiskStore) -> None:
        await store.delete("large/binary", T0)

    with_store(closed.folder, scenario)
    with closing(sqlite3.connect(closed.folder / "catalog.db")) as db, db:
        db.execute("UPDATE segments SET live = live + 1")
    repaired(closed.folder)
    found = contents(closed.folder)
    assert found == {p: data for p, data in closed.written.items() if p != "large/binary"}


def test_a_damaged_first_page_of_the_catalog_loses_nothing(closed: Sample) -> None:
    with (closed.folder / "catalog.db").open("r+b") as file:
        file.write(b"\xff" * 4096)
    repair = repaired(closed.folder)
    assert repair.recovered == []
    assert contents(closed.folder) == closed.written


def test_a_damaged_description_of_a_table_loses_nothing(closed: Sample) -> None:
    file = closed.folder / "catalog.db"
    file.write_bytes(file.read_bytes().replace(b"ttl INTEGER", b"tul INTEGER"))
    repair = repaired(closed.folder)
    assert "no such column: ttl" in repair.report.damages[0].what
    assert (repair.dropped, repair.recovered) == ([], [])
    assert contents(closed.folder) == closed.written


@pytest.mark.parametrize("seed", range(10))
def test_whatever_page_of_the_catalog_is_lost_the_bytes_are_not(closed: Sample, seed: int) -> None:
    chance = random.Random(seed)
    file = closed.folder / "catalog.db"
    page = chance.randrange(file.stat().st_size // 4096)
    with file.open("r+b") as opened:
        opened.seek(page * 4096)
        opened.write(chance.randbytes(4096))
    repaired(closed.folder)
    found = set(contents(closed.folder).values())
    assert {data for path, data in closed.written.items() if path != "fork"} <= found


def test_a_catalog_that_fell_behind_takes_over_what_segments_have(tmp_path: Path) -> None:
    """Its write-ahead log is lost, and with it a checkpoint whose journal is gone already."""
    folder, older = tmp_path / "data", tmp_path / "older"
    filler = Filler(4)

    async def more(store: DiskStore) -> None:
        await filler.fill(store, 50)

    with_store(folder, more)
    shutil.copytree(folder, older)
    with_store(folder, more)

    async def new_stream(store: DiskStore) -> None:
        await create(store, "new", body=b"1")

    with_store(folder, new_stream)
    shutil.copy(older / "catalog.db", folder / "catalog.db")
    assert any("missing" in finding.what for finding in check(folder).damages)
    repaired(folder)
    found = contents(folder)
    (recovered,) = found.keys() - filler.written.keys()
    assert recovered.startswith("recovered/")
    assert found == {**filler.written, recovered: b"1,\n"}


# Crashes


@pytest.mark.parametrize("point", ["repair-kept", "repair-in-place", "repair-switched"])
def test_a_repair_that_is_killed_can_be_repeated(killed: Sample, point: str) -> None:
    cut = damaged_block(killed, "large/binary", 1)
    done = subprocess.run(
        [sys.executable, "-m", "headwater", "repair", str(killed.folder), "--yes"],
        env={**os.environ, "HEADWATER_FAULTS": point},
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
