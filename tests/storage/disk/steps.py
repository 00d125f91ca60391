"""How tests of the disk engine open and end stores, and look at what lies in their folders."""

import asyncio
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from tests.support.patience import until

Given = TypeVar("Given")
Scenario = Callable[[DiskStore], Awaitable[Given]]

SMALL: Final = DiskOptions(journal_bytes=16 * 1024, checkpoint_seconds=3600)
"""Checkpoints when a journal file is full or the store is closed, and at no other time."""


def with_store(
    folder: Path, scenario: Scenario[Given], options: DiskOptions | None = None
) -> Given:
    """Run a scenario on an open store, and close it."""

    async def run() -> Given:
        store = DiskStore(folder, options or SMALL)
        await store.open()
        try:
            return await scenario(store)
        finally:
            await store.close()

    return asyncio.run(run())


def crashed(
    folder: Path, scenario: Scenario[object], target: Path, options: DiskOptions | None = None
) -> Path:
    """Run a scenario, and return a copy of what a crash right after it would leave.

    Nothing may be saved meanwhile, or the copy would be of several moments.
    """

    async def then_copy(store: DiskStore) -> None:
        await scenario(store)
        shutil.copytree(folder, target)

    with_store(folder, then_copy, options)
    return target


async def until_at_rest(store: DiskStore) -> None:
    """Wait until a checkpoint has everything, and no compaction or eviction runs."""
    saver = store._checkpointer
    await until(
        lambda: (
            not saver._has_unsaved()
            and saver._running is None
            and saver._journal.preparing is None
            and not saver._compactor._busy
            and not saver._evicting
        ),
        "the last checkpoint",
    )


def journals(folder: Path) -> list[Path]:
    return sorted((folder / "journal").glob("*.log"))


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "segments").glob("*.seg"))


def flip(path: Path, position: int) -> None:
    """Turn one bit of a file round."""
    with path.open("rb+") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """Keep a file from being changed, renamed and deleted, as an operator may do; needs root."""
    subprocess.run(["chattr", "+i", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)
