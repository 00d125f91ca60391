"""Documents on disk: kept through restarts, checkpoints and repairs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.steps import crashed, until_at_rest

OFTEN = DiskOptions(checkpoint_seconds=0.01, journal_bytes=4096)


def run(
    folder: Path, scenario: Callable[[DiskStore], Awaitable[None]], options: DiskOptions
) -> None:
    async def opened() -> None:
        store = DiskStore(folder, options)
        await store.open()
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(opened())


def test_documents_survive_a_restart_and_so_do_deletions(tmp_path: Path) -> None:
    async def first(store: DiskStore) -> None:
        await store.put_documents({"a/1": b"one", "a/2": b"two", "b": b"\x00\xff"})

    async def second(store: DiskStore) -> None:
        assert await store.get_documents("") == {"a/1": b"one", "a/2": b"two", "b": b"\x00\xff"}
        await store.put_documents({"a/1": None, "a/2": b"three"})

    async def third(store: DiskStore) -> None:
        assert await store.get_documents("a/") == {"a/2": b"three"}

    for scenario in (first, second, third):
        run(tmp_path / "data", scenario, DiskOptions())


def test_documents_that_no_checkpoint_has_saved_come_back_from_the_journal(tmp_path: Path) -> None:
    async def put(store: DiskStore) -> None:
        await store.put_documents({"a": b"1", "b": b"2"})
        await store.put_documents({"a": None})

    async def look(store: DiskStore) -> None:
        assert await store.get_documents("") == {"b": b"2"}

    run(crashed(tmp_path / "data", put, tmp_path / "copy"), look, DiskOptions())


def test_documents_stay_visible_while_checkpoints_move_them(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        expected: dict[str, bytes] = {}
        for number in range(300):
            key = f"k/{number % 40:02d}"
            value = b"%d" % number if number % 7 else None
            await store.put_documents({key: value})
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
            assert await store.get_documents("k/") == dict(sorted(expected.items()))
            if number % 20 == 0:
                await until_at_rest(store)

    run(tmp_path / "data", scenario, OFTEN)


def test_two_prefixes_that_look_alike_are_distinguished(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await store.put_documents(
            {"link/a/x": b"1", "link/a": b"2", "link/ab/x": b"3", "link/a0": b"4"}
        )
        for _ in range(2):
            assert list(await store.get_documents("link/a/")) == ["link/a/x"]
            await until_at_rest(store)

    run(tmp_path / "data", scenario, OFTEN)
