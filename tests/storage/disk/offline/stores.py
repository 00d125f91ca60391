"""Data directories for the tools: filled through a real store, then looked at, or damaged."""

import asyncio
import json
import random
import shutil
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from headwater.protocol.offsets import START
from headwater.protocol.producers import ProducerClaim
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.journal import JournalWriter
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.segments import Extent
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import Chunk
from tests.suites.steps import BINARY, JSON, PLENTY, T0, append, close, create, fork

Answer = TypeVar("Answer")
Contents = dict[str, bytes]

QUIET: Final = DiskOptions(durability="os", journal_bytes=2 << 20, checkpoint_seconds=3600)
"""A checkpoint comes only when the store is closed, or where over a MiB is written at once."""


def with_store(
    folder: Path, work: Callable[[DiskStore], Awaitable[Answer]], options: DiskOptions = QUIET
) -> Answer:
    """Do something with a store, and close it."""

    async def scenario() -> Answer:
        store = DiskStore(folder, options)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(scenario())


def killed(folder: Path, work: Callable[[DiskStore], Awaitable[Answer]]) -> Answer:
    """Do something with a store, and leave the directory as a kill would: with its journal."""
    live = folder.with_name(f"{folder.name}-live")
    if folder.exists():
        folder.rename(live)

    async def scenario(store: DiskStore) -> Answer:
        answer = await work(store)
        shutil.copytree(live, folder)
        return answer

    answer = with_store(live, scenario)
    shutil.rmtree(live)
    return answer


async def read_all(store: DiskStore, path: str) -> bytes | None:
    """Return the stored bytes of a stream, or None if it is unreadable."""
    chunk = await store.read(path, START, PLENTY, T0)
    return chunk.joined() if isinstance(chunk, Chunk) else None


def contents(folder: Path) -> Contents:
    """Open a directory with a store, and read every stream."""

    async def scenario(store: DiskStore) -> Contents:
        found = {}
        for path in await asyncio.to_thread(paths, folder):
            data = await read_all(store, path)
            assert data is not None, path
            found[path] = data
        return found

    with_store(folder, _nothing)  # so that the catalog has what the journal had
    return with_store(folder, scenario)


def with_records(folder: Path, records: Sequence[Sequence[bytes]]) -> None:
    """Make a directory whose journal holds these records, each in a batch of its own."""
    for part in ("journal", "segments"):
        (folder / part).mkdir(parents=True)
    Catalog(folder).close()
    journal = JournalWriter(folder / "journal", 1, 0)
    for record in records:
        journal.write([record])
    journal.close()


BUSY: Final = DiskOptions(
    durability="os", tail_budget=400_000, journal_bytes=65_536, checkpoint_seconds=0.03
)
"""A checkpoint every few milliseconds, and a compaction after every eighth."""


async def _nothing(_store: DiskStore) -> None:
    """Let the store recover, and save."""


def paths(folder: Path) -> list[str]:
    """List the streams that the catalog has."""
    return [str(path) for (path,) in query(folder, "SELECT path FROM streams WHERE NOT deleted")]


def query(folder: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    """Ask the catalog."""
    with closing(sqlite3.connect(folder / "catalog.db")) as db:
        return db.execute(sql, values).fetchall()


def number_of(folder: Path, path: str) -> int:
    """Find the number of a stream."""
    ((number,),) = query(folder, "SELECT id FROM streams WHERE path = ?", path)
    assert isinstance(number, int)
    return number


def extents_of(folder: Path, path: str) -> list[Extent]:
    """List where the bytes of a stream lie."""
    rows = query(
        folder,
        "SELECT stream, e.start, length, segment, position FROM extents e "
        "JOIN streams s ON s.id = stream WHERE path = ? ORDER BY e.start",
        path,
    )
    return [Extent(*row) for row in rows]  # type: ignore[arg-type] # integers by the schema


async def command(*arguments: str) -> str:
    """Run a `headwater` command that must succeed, in a process of its own beside this one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headwater", *arguments, stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (out + err).decode()
    return out.decode()


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Turn one bit of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def journals(folder: Path) -> list[Path]:
    """List the journal files, oldest first."""
    return sorted((folder / "journal").glob("*.log"))


def segments(folder: Path) -> list[Path]:
    """List the segments, oldest first."""
    return sorted((folder / "segments").glob("*.seg"))


def segment_of(folder: Path, extent: Extent) -> Path:
    """Find the file of an extent."""
    return folder / "segments" / f"{extent.segment:016d}.seg"


class Filler:
    """Appends at random to some streams, and remembers what it did."""

    def __init__(self, seed: int, streams: int = 8) -> None:
        self._random = random.Random(seed)
        self._streams = streams
        self._types: dict[str, str] = {}
        self._seq: dict[str, int] = {}
        self.written: Contents = {}
        """The appends that were submitted."""
        self._acknowledged: dict[str, int] = {}

    def acknowledged(self) -> Contents:
        """Return the appends acknowledged so far."""
        return {path: self.written[path][:end] for path, end in self._acknowledged.items()}

    async def fill(self, store: DiskStore, count: int) -> None:
        """Append so many times, to one stream or another."""
        for _ in range(count):
            path = f"s/{self._random.randrange(self._streams)}"
            if path not in self._types:
                self._types[path] = self._random.choice([JSON, BINARY])
                self.written[path] = b""
                await create(store, path, self._types[path])
            await self.append(store, path, self._random.choice([10, 100, 1000]))

    async def append(self, store: DiskStore, path: str, size: int) -> None:
        """Append about so many bytes, as a producer."""
        media = self._types[path]
        if media == JSON:
            body = json.dumps({"n": len(self.written[path]), "x": "y" * size}).encode()
            self.written[path] += body + b",\n"
        else:
            body = self._random.randbytes(size)
            self.written[path] += body
        seq = self._seq.get(path, -1) + 1
        self._seq[path] = seq
        await append(store, path, body, media, producer=ProducerClaim("p", 0, seq))
        self._acknowledged[path] = len(self.written[path])

    async def add_large(self, store: DiskStore, path: str, media: str, size: int) -> None:
        """Create a stream of several blocks."""
        self._types[path] = media
        await create(store, path, media)
        self.written[path] = b""
        while len(self.written[path]) < size:
            await self.append(store, path, 10_000)

    async def add_fork(self, store: DiskStore, path: str, source: str) -> None:
        """Fork a stream at its tail."""
        await fork(store, path, source)
        self._types[path] = self._types[source]
        self.written[path] = self.written[source]

    async def end(self, store: DiskStore, path: str) -> None:
        """Close a stream."""
        await close(store, path)


def filled(folder: Path, seed: int, *, journal: bool = True) -> Filler:
    """Make a directory with several segments and, if wanted, a journal that is not saved yet."""
    filler = Filler(seed)

    async def first(store: DiskStore) -> None:
        await filler.fill(store, 40)
        await filler.add_large(store, "large/json", JSON, 300_000)
        await filler.add_large(store, "large/binary", BINARY, 540_000)
        await filler.add_fork(store, "fork", "large/json")
        await filler.append(store, "fork", 50)

    async def second(store: DiskStore) -> None:
        await filler.fill(store, 40)
        await filler.append(store, "large/json", 50)
        await filler.append(store, "large/binary", 50)
        await filler.end(store, "fork")

    async def third(store: DiskStore) -> None:
        await filler.fill(store, 60)

    with_store(folder, first)
    with_store(folder, second)
    if journal:
        killed(folder, third)
    return filler
