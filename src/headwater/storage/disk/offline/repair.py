"""Repairing a data directory: what is whole is kept, what is dropped is told.

Nothing is changed in place. A new catalog is made beside the old one: the journal, as far as it can
be applied, goes into one new segment, as in a checkpoint; streams with damaged bytes are cut at the
first hole; bytes that have to move go into another new segment. The result is checked. Only then
the directory is changed, in an order in which a crash at any point loses nothing:

1. what will be replaced or deleted is kept in `damaged-<time>/`, and synced;
2. the new segments and an empty journal file are put in their places: nobody refers to them yet;
3. the new catalog takes the place of the old one by one rename, which is the moment of the repair;
4. journal files and segments that it does not refer to are deleted, as a start would do.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from headwater.errors import StoreError
from headwater.storage.disk import catalog, checkpoint
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.data_directory import DirectoryLock
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import sync_directory, sync_file
from headwater.storage.disk.journal import JournalWriter, journal_numbers, journal_path
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.offline.catalog_repair import (
    CatalogRepair,
    all_streams,
    needed_segments,
    put_meta,
    put_streams,
    read_rows,
    write_catalog,
)
from headwater.storage.disk.offline.check import CheckReport, Progress, check, no_progress
from headwater.storage.disk.offline.salvage import SalvageReplay, UnnamedStream
from headwater.storage.disk.offline.view import (
    DirectoryView,
    copy_file,
    explain_disk_full,
    open_segments,
    require_data,
    take_view,
)
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.segments import segment_numbers, segment_path

_WORK: Final = "repairing"

Begin = Callable[[str], Progress]
"""Told what begins; gives whom to tell how far it is."""


def begin_silently(_label: str) -> Progress:
    """Tell nobody."""
    return no_progress


class Repair(msgspec.Struct):
    """A repair that is ready to be installed, or has nothing to do."""

    folder: Path
    report: CheckReport
    dropped: list[str] = []
    recovered: list[str] = []
    streams: int = 0
    """How many streams there are afterwards."""
    _staging_dir: Path | None = None
    _faults: Faults = NO_FAULTS

    @property
    def needed(self) -> bool:
        return self._staging_dir is not None

    def install(self) -> Path:
        """Put the repaired state in the place of the damaged one; gives where that one is kept."""
        assert self._staging_dir is not None  # noqa: S101 - only asked for where it is needed
        with _room(self.folder):
            return _Installation(self.folder, self._staging_dir, self.report, self._faults).run()


@contextmanager
def prepare(
    folder: Path, begin: Begin = begin_silently, faults: Faults = NO_FAULTS
) -> Iterator[Repair]:
    """Work out a repair, holding the directory's lock; `install` it within the block."""
    require_data(folder)
    work = folder / _WORK
    with DirectoryLock(folder):
        report = check(folder, begin("Checking"), live=False)
        repair = Repair(folder, report, _faults=faults)
        if not report.damages:
            yield repair
            return
        shutil.rmtree(work, ignore_errors=True)
        try:
            with (
                _room(folder),
                take_view(folder, work / "old", live=False) as view,
                ExitStack() as held,
            ):
                _RepairBuilder(repair, view, work / "new", held, begin).run()
            yield repair
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _room(folder: Path) -> AbstractContextManager[None]:
    return explain_disk_full(folder, "what is repaired", "make some, and repair it again")


class _RepairBuilder:
    """Makes the repaired state in a folder of its own."""

    def __init__(
        self, repair: Repair, view: DirectoryView, staging_dir: Path, held: ExitStack, begin: Begin
    ) -> None:
        self._repair = repair
        self._begin = begin
        self._progress = begin("Working out the repair")
        self._report = repair.report
        self._view = view
        self._staging_dir = staging_dir
        self._segments = staging_dir / "segments"
        self._segments.mkdir(parents=True)
        (staging_dir / "journal").mkdir()
        self._numbers = segment_numbers(view.folder / "segments")
        self._files = open_segments(view.folder, self._numbers, held)
        self._held = held
        self._done = 0
        self._total = sum(file.size for file in self._files.values()) + sum(
            path.stat().st_size for path in view.journals
        )
        self._rebuilt = self._report.catalog_damaged
        self._behind = self._rebuilt or self._report.journals_missing
        """The catalog may lack what segments have."""

    def run(self) -> None:
        next_epoch, complete = self._copy_catalog()
        segment = max([*self._numbers, *self._view.missing_segments, 0]) + 1
        with closing(sqlite3.connect(self._staging_dir / catalog.FILE, isolation_level=None)) as db:
            db.execute("BEGIN")
            catalog_repair = CatalogRepair(
                db, self._files, self._staging_dir, segment + 1, self._held, self._told
            )
            found = (
                self._adopt(db, catalog_repair, next_epoch, complete=complete)
                if self._behind
                else {}
            )
            db.execute("COMMIT")
            replay = self._replay(found, segment)
            self._files |= open_segments(self._staging_dir, [segment], self._held)
            db.execute("BEGIN")
            for number in replay.truncated:
                catalog_repair.cut(number)
            if not self._rebuilt:
                catalog_repair.repair_broken(self._report.broken_streams)
            catalog_repair.finish()
            put_meta(db, "clean", 0)
            db.execute("COMMIT")
            db.execute("PRAGMA journal_mode=DELETE")
            needed = needed_segments(db)
            self._repair.streams = sum(not row.deleted for row in all_streams(db))
        self._repair.dropped += [*replay.dropped, *catalog_repair.dropped]
        self._repair.recovered += replay.recovered
        self._told(self._total)
        self._verify(needed)
        self._repair._staging_dir = self._staging_dir

    def _told(self, count: int) -> None:
        self._done += count
        self._progress(min(self._done, self._total), self._total)

    def _copy_catalog(self) -> tuple[int, bool]:
        """Begin with the catalog as it is, or with what can be read of it."""
        old = self._view.catalog
        if self._rebuilt or old is None:
            rows = read_rows(self._view.folder, self._staging_dir.with_name("readable"))
            write_catalog(self._staging_dir, rows, self._view.folder / "journal")
            return rows.next_epoch, rows.complete
        shutil.copyfile(old, self._staging_dir / catalog.FILE)
        with closing(sqlite3.connect(old)) as db:
            (number,) = db.execute("SELECT value FROM meta WHERE key = 'next_epoch'").fetchone()
        return int(number), True

    def _adopt(
        self,
        db: sqlite3.Connection,
        catalog_repair: CatalogRepair,
        next_epoch: int,
        *,
        complete: bool,
    ) -> dict[int, UnnamedStream]:
        """List what segments hold, also where the catalog knew nothing of it."""
        known: set[int] = set()
        sources: set[int] = set()
        for row in all_streams(db):
            known.add(row.id)
            sources.add(row.source)
            end = catalog_repair.repair_stream(row.id, row.start, None, row.content_type)
            if end < row.end:
                catalog_repair.cut(row.id)
                self._repair.dropped.append(
                    f"Bytes {end} to {row.end} (stream {row.id}, {row.path}) are dropped."
                )
            put_streams(db, [row._replace(end=end)])
        found = {}
        for number in sorted(catalog_repair.streams_in_segments() - known):
            if complete and number < next_epoch and number not in sources:
                continue  # it had been deleted
            start = catalog_repair.first_byte(number)
            end = catalog_repair.repair_stream(number, start, None, "application/octet-stream")
            if end > start:
                found[number] = UnnamedStream(start, end, catalog_repair.content_type(number))
        return found

    def _replay(self, found: dict[int, UnnamedStream], segment: int) -> SalvageReplay:
        """Bring the journal into the catalog, as a recovery and a checkpoint would."""
        view = self._view
        numbers = journal_numbers(view.folder / "journal")
        store = Catalog(self._staging_dir)
        try:
            metrics = store.meta("metrics")
            first = int(store.meta("journal_from"))
            following = max([*numbers, first]) + 1
            registry = Registry(store, int(store.meta("next_epoch")))
            replay = SalvageReplay(registry, found, time.time())
            replay.run(view.journals, self._told)
            snapshot = checkpoint.take(registry, following)
            checkpoint.write(snapshot, self._segments, segment, store, EngineMetrics())
            if metrics is not None:
                store.put("metrics", metrics)
        finally:
            store.close()
        JournalWriter(self._staging_dir / "journal", following, 0).close()
        return replay

    def _verify(self, needed: set[int]) -> None:
        """Check the result as a whole, with the segments that stay linked into it."""
        for number in needed:
            target = segment_path(self._segments, number)
            if not target.exists():
                _link(segment_path(self._view.folder / "segments", number), target)
        left = check(self._staging_dir, self._begin("Checking the result"), live=False).damages
        if left:
            raise StoreError(
                f"The repair would leave damage behind, so nothing was changed: {left[0]}. "
                "Please report this, with the output of 'headwater check'."
            )


class _Installation:
    """Puts the repaired state in the place of the damaged one."""

    def __init__(
        self, folder: Path, staging_dir: Path, report: CheckReport, faults: Faults
    ) -> None:
        self._folder = folder
        self._staging_dir = staging_dir
        self._faults = faults
        self._damaged_files = {finding.file for finding in report.damages}
        with closing(sqlite3.connect(staging_dir / catalog.FILE)) as db:
            self._needed = needed_segments(db)

    def run(self) -> Path:
        kept = self._keep()
        self._faults.reach("repair-kept")
        self._put_in_place()
        self._faults.reach("repair-in-place")
        self._switch()
        self._faults.reach("repair-switched")
        self._clean()
        return kept

    def _keep(self) -> Path:
        stamp = f"damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        kept = self._folder / stamp
        count = 1
        while kept.exists():
            count += 1
            kept = self._folder / f"{stamp}-{count}"
        for part in (kept, kept / "journal", kept / "segments"):
            part.mkdir()
        for path in self._folder.glob(f"{catalog.FILE}*"):
            _copy(path, kept / path.name)
        for path in (self._folder / "journal").glob("*.log"):
            _copy(path, kept / "journal" / path.name)
        for number in segment_numbers(self._folder / "segments"):
            path = segment_path(self._folder / "segments", number)
            if number not in self._needed or f"segments/{path.name}" in self._damaged_files:
                _link(path, kept / "segments" / path.name)
        for part in (kept / "journal", kept / "segments", kept, self._folder):
            sync_directory(part)
        return kept

    def _put_in_place(self) -> None:
        for part in ("segments", "journal"):
            (self._folder / part).mkdir(exist_ok=True)
            for path in (self._staging_dir / part).iterdir():
                target = self._folder / part / path.name
                if not target.exists():
                    path.rename(target)
            sync_directory(self._folder / part)

    def _switch(self) -> None:
        old = self._folder / catalog.FILE
        try:  # what the old one's write-ahead log holds must not be lost if we die right here
            with closing(sqlite3.connect(old)) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.DatabaseError:
            pass
        new = self._staging_dir / catalog.FILE
        sync_file(new)
        # Left behind, these would be applied to the new catalog.
        for suffix in ("-wal", "-shm"):
            old.with_name(old.name + suffix).unlink(missing_ok=True)
        new.replace(old)
        sync_directory(self._folder)

    def _clean(self) -> None:
        journals = self._folder / "journal"
        numbers = journal_numbers(journals)
        for number in numbers[:-1]:
            journal_path(journals, number).unlink()
        for number in segment_numbers(self._folder / "segments"):
            if number not in self._needed:
                segment_path(self._folder / "segments", number).unlink()


def _link(path: Path, target: Path) -> None:
    """Share a file that never changes, or copy it where that can't be done."""
    try:
        os.link(path, target)
    except OSError:
        _copy(path, target)


def _copy(path: Path, target: Path) -> None:
    copy_file(path, target)
    sync_file(target)
