"""A repair of the catalog finds the bytes of all streams in segments and journal."""

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headwater.storage.disk.offline.check import check
from headwater.storage.disk.offline.info import read_info
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.repairs import damaged_block, repaired
from tests.storage.disk.offline.stores import Filler, contents, number_of, with_store
from tests.suites.steps import BINARY, JSON, T0, create, head


def test_a_lost_catalog_is_rebuilt_from_segments_and_journal(killed: Sample) -> None:
    numbers = {path: number_of(killed.folder, path) for path in killed.written}
    for file in killed.folder.glob("catalog.db*"):
        file.unlink()
    repair = repaired(killed.folder)
    found = contents(killed.folder)
    for path, data in killed.written.items():
        if path == "fork":
            # It inherited from a stream that is no longer known as its source.
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


def test_a_catalog_older_than_its_segments_lists_all_of_their_bytes(tmp_path: Path) -> None:
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


def test_damaged_metrics_prevent_neither_a_repair_nor_info(closed: Sample) -> None:
    """No checksum covers them, and a check does not read them."""
    with closing(sqlite3.connect(closed.folder / "catalog.db")) as db, db:
        db.execute("UPDATE meta SET value = CAST(x'7bff7d' AS TEXT) WHERE key = 'metrics'")
    assert check(closed.folder).damages == []
    assert read_info(closed.folder).metrics == {}
    damaged_block(closed, "large/binary", 1)
    repaired(closed.folder)
    assert contents(closed.folder)["large/json"] == closed.written["large/json"]
