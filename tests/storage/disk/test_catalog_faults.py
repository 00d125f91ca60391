"""A catalog that is unreadable in places: every request is answered, and nothing is lost."""

import asyncio
from pathlib import Path

import pytest

from headwater.errors import StoreDamaged
from headwater.protocol.refusals import StreamNotFound
from headwater.storage.disk.catalog import FILE
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import StreamInfo
from tests.storage.disk.steps import with_store
from tests.suites.steps import T0, TEXT, append, content, create, expect, fork

_PAGE = 4096


def test_an_unreadable_page_refuses_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def fill(store: DiskStore) -> None:
        await create(store, "source", TEXT, b"x")
        for number in range(500):
            await create(store, f"other/{number:06d}", TEXT, b"x")
        await fork(store, "fork", "source")

    async def delete_the_fork(store: DiskStore) -> None:
        other = "other/000400"
        await append(store, other, b"y", TEXT)
        async with asyncio.timeout(60):
            with pytest.raises(StoreDamaged):  # its source is counted down
                await store.delete("fork", T0)
            assert await store.delete("other/000401", T0) is None
            assert await content(store, other) == b"xy"
            await store.close()

    async def look(store: DiskStore) -> None:
        assert await content(store, "other/000400") == b"xy"
        assert await store.head("other/000401", T0) == StreamNotFound("other/000401")
        assert expect(StreamInfo, await store.head("fork", T0)).path == "fork"

    with_store(folder, fill, DiskOptions(durability="os"))
    _spoil(folder / FILE, b"sourcetext/plain")
    with_store(folder, delete_the_fork)
    with_store(folder, look)


def _spoil(path: Path, text: bytes) -> None:
    """Overwrite the page that holds a text."""
    whole = path.read_bytes()
    assert whole.count(text) == 1
    at = whole.index(text) // _PAGE * _PAGE
    path.write_bytes(whole[:at] + b"\xff" * _PAGE + whole[at + _PAGE :])
