"""Repairing a data directory: keep everything intact, and report what is dropped.

Nothing is changed in place. A staging directory gets a new catalog. The journal, as far as it can
be applied, goes into a new segment, as in a checkpoint. Streams with damaged bytes are truncated at
the first gap, and bytes that have to move go into another new segment. The result is checked. Only
then is the directory changed, in an order in which a crash at any point loses nothing:

1. Everything that will be replaced or deleted is saved in `damaged-<time>/`, and synced.
2. The new segments and an empty journal file are moved into place: nothing refers to them yet.
3. The new catalog replaces the old one by one rename, which is the moment of the repair.
4. Journal files and segments that it does not refer to are deleted, as a start would do.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
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
    read_only,
    require_data,
    take_view,
)
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.segments import segment_numbers, segment_path

_WORK: Final = "repairing"

Begin = Callable[[str], Progress]
"""A callback that gets the label of a new phase, and returns the callback for its progress."""


def begin_silently(_label: str) -> Progress:
    """Ignore progress."""
    return no_progress


class Repair(msgspec.Struct):
    """A repair that is ready to be installed, or that has nothing to do."""

    folder: Path
    report: CheckReport
    dropped: list[str] = []
    recovered: list[str] = []
    streams: int = 0
    """The number of streams after the repair."""
    _staging_dir: Path | None = None
    _faults: Faults = NO_FAULTS

    @property
    def needed(self) -> bool:
        return self._staging_dir is not None

    def install(self) -> Path:
        """Replace the damaged state; return the folder in which it is saved."""
        assert self._staging_dir is not None  # noqa: S101 - only called if needed
        with _explain_disk_full(self.folder):
            return _Installation(self.folder, self._staging_dir, self.report, self._faults).run()


@contextmanager
def prepare(
    folder: Path, begin: Begin = begin_silently, faults: Faults = NO_FAULTS
) -> Iterator[Repair]:
    """Prepare a repair, with the directory locked; `install` it within the block."""
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
            with _explain_disk_full(folder):
                view = take_view(folder, work / "old", live=False)
                _RepairBuilder(repair, view, work / "new", begin).run()
            yield repair
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _explain_disk_full(folder: Path) -> AbstractContextManager[None]:
    return explain_disk_full(folder, "the repair", "free some, and repair it again")


class _RepairBuilder:
    """Builds the repaired state in a staging directory."""

    def __init__(
        self, repair: Repair, view: DirectoryView, staging_dir: Path, begin: Begin
    ) -> None:
        self._repair = repair
        self._begin = begin
        self._progress = begin("Preparing the repair")
        self._report = repair.report
        self._view = view
        self._staging_dir = staging_dir
        self._segments = staging_dir / "segments"
        self._segments.mkdir(parents=True)
        (staging_dir / "journal").mkdir()
        self._numbers = segment_numbers(view.folder / "segments")
        self._files = open_segments(view.folder, self._numbers)
        self._done = 0
        self._total = sum(file.size for file in self._files.values()) + sum(
            path.stat().st_size for path in view.journals
        )
        self._rebuilt = self._report.catalog_damaged
        self._incomplete = self._rebuilt or self._report.journals_missing
        """Whether the catalog may lack bytes that segments have."""

    def run(self) -> None:
        next_epoch, complete = self._copy_catalog()
        segment = max([*self._numbers, *self._view.missing_segments, 0]) + 1
        with closing(sqlite3.connect(self._staging_dir / catalog.FILE, isolation_level=None)) as db:
            db.execute("BEGIN")
            catalog_repair = CatalogRepair(
                db, self._files, self._staging_dir, segment + 1, self._report_progress
            )
            found = (
                self._adopt(db, catalog_repair, next_epoch, complete=complete)
                if self._incomplete
                else {}
            )
            db.execute("COMMIT")
            replay = self._replay(found, segment)
            self._files |= open_segments(self._staging_dir, [segment])
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
        self._report_progress(self._total)
        self._verify(needed)
        self._repair._staging_dir = self._staging_dir

    def _report_progress(self, count: int) -> None:
        self._done += count
        self._progress(min(self._done, self._total), self._total)

    def _copy_catalog(self) -> tuple[int, bool]:
        """Copy the catalog, or write a new one with its readable rows."""
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
        """List all bytes of the segments, including those that the catalog lacks."""
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
                continue  # the stream was deleted
            start = catalog_repair.first_byte(number)
            end = catalog_repair.repair_stream(number, start, None, "application/octet-stream")
            if end > start:
                found[number] = UnnamedStream(start, end, catalog_repair.content_type(number))
        return found

    def _replay(self, found: dict[int, UnnamedStream], segment: int) -> SalvageReplay:
        """Move the journal into the catalog, like a recovery and a checkpoint."""
        view = self._view
        numbers = journal_numbers(view.folder / "journal")
        with closing(read_only(self._staging_dir, live=False)) as db:
            meta = dict(db.execute("SELECT key, value FROM meta"))
        following = max([*numbers, int(meta["journal_from"])]) + 1
        store = Catalog(self._staging_dir)
        try:
            registry = Registry(store, int(meta["next_epoch"]))
            replay = SalvageReplay(registry, found, time.time())
            replay.run(view.journals, self._report_progress)
            snapshot = checkpoint.take(registry, following)
            checkpoint.write(snapshot, self._segments, segment, store, EngineMetrics())
            if "metrics" in meta:
                store.put("metrics", meta["metrics"])
        finally:
            store.close()
        JournalWriter(self._staging_dir / "journal", following, 0).close()
        return replay

    def _verify(self, needed: set[int]) -> None:
        """Check the result, with links to the segments that stay."""
        for number in needed:
            target = segment_path(self._segments, number)
            if not target.exists():
                _link(segment_path(self._view.folder / "segments", number), target)
        left = check(self._staging_dir, self._begin("Checking the result"), live=False).damages
        if left:
            raise StoreError(
                f"Nothing was changed: the repaired state would still be damaged, {left[0]}. "
                "Please report this, with the output of 'headwater check'."
            )


class _Installation:
    """Replaces the damaged state by the repaired one."""

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
        saved = self._save_damaged()
        self._faults.reach("repair-kept")
        self._put_in_place()
        self._faults.reach("repair-in-place")
        self._switch()
        self._faults.reach("repair-switched")
        self._clean()
        return saved

    def _save_damaged(self) -> Path:
        stamp = f"damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        saved = self._folder / stamp
        count = 1
        while saved.exists():
            count += 1
            saved = self._folder / f"{stamp}-{count}"
        for part in (saved, saved / "journal", saved / "segments"):
            part.mkdir()
        for path in self._folder.glob(f"{catalog.FILE}*"):
            _copy(path, saved / path.name)
        for path in (self._folder / "journal").glob("*.log"):
            _copy(path, saved / "journal" / path.name)
        for number in segment_numbers(self._folder / "segments"):
            path = segment_path(self._folder / "segments", number)
            if number not in self._needed or f"segments/{path.name}" in self._damaged_files:
                _link(path, saved / "segments" / path.name)
        for part in (saved / "journal", saved / "segments", saved, self._folder):
            sync_directory(part)
        return saved

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
        try:  # a crash right here must not lose the write-ahead log of the old catalog
            with closing(sqlite3.connect(old)) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.DatabaseError:
            pass
        new = self._staging_dir / catalog.FILE
        sync_file(new)
        # SQLite would apply these files to the new catalog.
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
    """Link a file that never changes, or copy it where links are not possible."""
    try:
        os.link(path, target)
    except OSError:
        _copy(path, target)


def _copy(path: Path, target: Path) -> None:
    copy_file(path, target)
    sync_file(target)
