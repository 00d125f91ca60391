"""A repair of the journal names what is lost, and keeps what other streams and forks wrote."""

import asyncio
import random
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from headwater.storage.disk.journal import BATCH_HEADER
from headwater.storage.disk.journal_reader import JournalEntry
from headwater.storage.disk.records import HEADER as RECORD_HEADER
from headwater.storage.disk.records import AppendRecord, CreateRecord, decode
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.repairs import assert_prefixes, repaired
from tests.storage.disk.offline.stores import (
    contents,
    flip,
    journals,
    killed,
    number_of,
    segments,
    with_store,
)
from tests.storage.disk.offline.test_check import entries
from tests.suites.steps import BINARY, T0, append, create, fork


def stream_in(entry: JournalEntry) -> int:
    return decode(entry.body).stream


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_record_costs_one_stream_its_later_appends(killed: Sample, seed: int) -> None:
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
    assert "It is unknown whether more streams" in line
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
