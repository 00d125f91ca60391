"""Checking a data directory: verify all checksums, and that its files agree with each other.

The check works on a view of the directory, so a server may run meanwhile. It changes nothing.
"""

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.protocol.lifecycle import WriterState
from headwater.storage.disk import catalog
from headwater.storage.disk.catalog import end_of
from headwater.storage.disk.journal import journal_path
from headwater.storage.disk.journal_reader import NamedStream, describe_streams
from headwater.storage.disk.offline.catalog_repair import read_no_rows
from headwater.storage.disk.offline.view import (
    DirectoryView,
    explain_disk_full,
    is_disk_full,
    read_only,
    take_view,
)
from headwater.storage.disk.records import AppendRecord, CreateRecord, DeleteRecord
from headwater.storage.disk.replay import (
    Applies,
    DamagedHeader,
    DamagedPart,
    Decision,
    Gap,
    Refused,
    Replayed,
    TornWrite,
    UnknownStream,
    Unreadable,
    replay,
)
from headwater.storage.disk.segments import (
    EXTENT_HEADER,
    Extent,
    SegmentReader,
    segment_numbers,
    segment_path,
)

Progress = Callable[[int, int], None]
"""A callback that gets the number of bytes done, and the total."""

_MAX_MESSAGES: Final = 100
_STEPS: Final = 100_000
"""Instructions of SQLite's virtual machine between two progress reports of a query."""


def no_progress(_done: int, _total: int) -> None:
    """Ignore progress."""


class Finding(msgspec.Struct, frozen=True):
    """One damage, with its place and the streams that it affects."""

    file: str
    """Relative to the data directory."""
    what: str
    position: int | None = None
    streams: tuple[NamedStream, ...] = ()

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file}, byte {self.position}"
        return f"{where}: {self.what}{describe_streams(*self.streams)}"


class CheckReport(msgspec.Struct):
    """The result of a check."""

    damages: list[Finding] = []
    notes: list[str] = []
    streams: int = 0
    extents: int = 0
    segments: int = 0
    journals: int = 0
    records: int = 0
    catalog_damaged: bool = False
    """Whether the catalog itself is damaged, not only a file that it lists."""
    journals_missing: bool = False
    broken_streams: set[int] = set()
    """Streams whose extents are damaged or don't fit together."""


def check(
    folder: Path, progress: Progress = no_progress, *, live: bool | None = None
) -> CheckReport:
    """Verify all checksums of a data directory."""
    advice = "free some, or set TMPDIR to a folder with more"
    with (
        explain_disk_full(
            Path(tempfile.gettempdir()), "copies of the journal and the catalog", advice
        ),
        tempfile.TemporaryDirectory(prefix="headwater-check-") as scratch,
    ):
        return Check(take_view(folder, Path(scratch), live=live), progress).run()


class Check:
    """A check of one view."""

    def __init__(self, view: DirectoryView, progress: Progress) -> None:
        self._view = view
        self._progress = progress
        self._report = CheckReport()
        self._done = 0
        self._catalog_bytes = 0 if view.catalog is None else view.catalog.stat().st_size
        self._total = (
            self._catalog_bytes
            + sum(file.size for file in view.segments.values())
            + sum(path.stat().st_size for path in view.journals)
        )
        self._db: sqlite3.Connection | None = None
        self._streams = FollowedStreams(None)

    def run(self) -> CheckReport:
        self._check()
        self._report_progress(self._total)
        return self._report

    def _check(self) -> None:
        view, report = self._view, self._report
        report.segments = len(view.segments)
        report.journals = len(view.journals)
        if view.catalog is None:
            self._catalog_damage(view.catalog_error)
            self._missing_journals()
            self._journals()
            return
        with closing(read_only(view.catalog.parent, live=False)) as self._db:
            self._streams = FollowedStreams(self._db)
            self._db.set_progress_handler(lambda: self._report_progress(0), _STEPS)
            try:
                self._integrity()
                self._report_progress(self._catalog_bytes)
                self._missing_journals()
                self._segments()
                self._extents_of_streams()
                self._journals()
            except sqlite3.DatabaseError as error:
                if is_disk_full(error):
                    raise
                self._catalog_damage(str(error))
        self._orphans()

    def _found(
        self,
        file: Path | str,
        what: str,
        position: int | None = None,
        *streams: int,
    ) -> None:
        name = file if isinstance(file, str) else str(file.relative_to(self._view.folder))
        numbers = [
            stream for stream in dict.fromkeys(streams) if stream
        ]  # documents belong to no stream
        named = tuple(NamedStream(stream, self._streams.path(stream)) for stream in numbers)
        self._report.damages.append(Finding(name, what, position, named))

    def _report_progress(self, done: int) -> None:
        """Report progress, which never decreases."""
        self._done = max(self._done, done)
        self._progress(self._done, self._total)

    # The catalog

    def _catalog_damage(self, what: str) -> None:
        self._report.catalog_damaged = True
        self._found(catalog.FILE, what)

    def _integrity(self) -> None:
        assert self._db is not None  # noqa: S101 - set by `run`
        read_no_rows(self._db)
        for (message,) in self._db.execute(f"PRAGMA integrity_check({_MAX_MESSAGES})").fetchall():
            if message != "ok":
                self._catalog_damage(f"SQLite: {message}")

    def _extents_of_streams(self) -> None:
        """Check that the extents of each stream are contiguous from its start to its end."""
        assert self._db is not None  # noqa: S101 - set by `run`
        rows = self._db.execute(
            f"SELECT id, start, {end_of()}, source FROM streams ORDER BY id"  # noqa: S608 - ours
        )
        extents = groupby(
            self._db.execute("SELECT stream, start, length FROM extents ORDER BY stream, start"),
            key=itemgetter(0),
        )
        owner, runs = next(extents, (None, iter(())))
        for number, start, end, source in rows:
            while owner is not None and owner < number:
                self._catalog_damage(f"it lists bytes of the unknown stream {owner}")
                owner, runs = next(extents, (None, iter(())))
            at = start
            if owner == number:
                for _, first, length in runs:
                    if first != at:
                        self._broken(
                            number,
                            f"bytes {at} to {first} are not contiguous in the list of extents",
                        )
                    at = first + length
                owner, runs = next(extents, (None, iter(())))
            if at != end:
                self._broken(number, f"bytes {at} to {end} are not listed")
            if not source and start:
                self._broken(number, f"it begins at byte {start} but is not a fork")
        while owner is not None:
            self._catalog_damage(f"it lists bytes of the unknown stream {owner}")
            owner, runs = next(extents, (None, iter(())))
        for what, query in _RULES:
            for row in self._db.execute(query):
                self._catalog_damage(what.format(*row))

    def _broken(self, stream: int, what: str) -> None:
        self._report.broken_streams.add(stream)
        self._found(catalog.FILE, what, None, stream)

    # Segments

    def _segments(self) -> None:
        view = self._view
        for number in view.missing_segments:
            path = segment_path(view.folder / "segments", number)
            self._found(path, "the file is missing")
            for extent in self._extents_in(number):
                self._damaged_extent(extent, path, extent.position, extent.start, extent.end)
        for number, file in sorted(view.segments.items()):
            reason = file.header_damage
            extents = self._extents_in(number)
            if reason is not None:
                self._found(file.path, reason, 0)
                self._report.broken_streams.update(extent.stream for extent in extents)
            before = self._done
            for extent in extents:
                self._extent(file, extent)
                self._report_progress(before + min(extent.position + extent.length, file.size))
            self._report_progress(before + file.size)

    def _extents_in(self, number: int) -> list[Extent]:
        assert self._db is not None  # noqa: S101 - set by `run`
        query = (
            "SELECT stream, start, length, segment, position FROM extents "
            "WHERE segment = ? ORDER BY position"
        )
        return [Extent(*row) for row in self._db.execute(query, (number,))]

    def _extent(self, file: SegmentReader, extent: Extent) -> None:
        self._report.extents += 1
        if extent.length <= 0 or extent.position < EXTENT_HEADER:
            self._broken(extent.stream, f"its extent at byte {extent.start} is impossible")
            return
        if not file.has_header(extent):
            what = f"the header of the extent of bytes {extent.start} to {extent.end} is damaged"
            self._report.broken_streams.add(extent.stream)
            self._found(file.path, what, extent.position - EXTENT_HEADER, extent.stream)
        for first, last in file.damaged_blocks(extent):
            self._damaged_extent(
                extent,
                file.path,
                extent.position + first,
                extent.start + first,
                extent.start + last,
            )

    def _damaged_extent(
        self, extent: Extent, file: Path, position: int, begin: int, end: int
    ) -> None:
        self._report.broken_streams.add(extent.stream)
        self._found(file, f"bytes {begin} to {end} are damaged", position, extent.stream)

    def _orphans(self) -> None:
        folder = self._view.folder / "segments"
        unknown = set(segment_numbers(folder)) - set(self._view.segments)
        if unknown and not self._view.live:
            self._report.notes.append(
                f"{len(unknown)} segments are obsolete; the next start deletes them: "
                + ", ".join(segment_path(folder, number).name for number in sorted(unknown))
            )

    # The journal

    def _missing_journals(self) -> None:
        view = self._view
        self._report.journals_missing = bool(view.missing_journals)
        for number in view.missing_journals:
            self._found(journal_path(view.folder / "journal", number), "the file is missing")

    def _journals(self) -> None:
        files = self._view.journals
        sizes = accumulate((path.stat().st_size for path in files), initial=self._done)
        before = dict(zip(files, sizes, strict=False))
        for step in replay(files, self._streams.known):
            self._report_progress(before[step.path] + step.position)
            name = f"journal/{step.path.name}"
            match step:
                case TornWrite():
                    if not self._view.live:
                        self._report.notes.append(
                            f"{name}, byte {step.position}: an unfinished write; "
                            "the next start cuts it off."
                        )
                case DamagedHeader():
                    self._found(name, step.reason, 0)
                case DamagedPart():
                    what = f"bytes {step.position} to {step.end} don't match their checksum"
                    self._found(name, what, step.position, *step.streams)
                case Replayed():
                    self._report.records += 1
                    self._streams.follow(step.decision)
                    # Without the catalog, most streams are unknown.
                    if isinstance(step.decision, Refused) and self._db is not None:
                        self._found(name, step.reason, step.position, *step.streams)
        self._report.streams = self._streams.count


_RULES: Final = (
    (
        "stream {0} is a fork of stream {1}, which does not exist",
        """SELECT f.id, f.source FROM streams f LEFT JOIN streams s ON s.id = f.source
        WHERE f.source != 0 AND s.id IS NULL""",
    ),
    (
        "stream {0} begins after the end of stream {1}, of which it is a fork",
        f"""SELECT f.id, f.source FROM streams f JOIN streams s ON s.id = f.source
        WHERE f.start > {end_of("s")}""",  # noqa: S608 - ours
    ),
    (
        "stream {0} has {1} forks, not {2}",
        """SELECT s.id, count(f.id), s.forks FROM streams s LEFT JOIN streams f ON f.source = s.id
        GROUP BY s.id HAVING count(f.id) != s.forks""",
    ),
    (
        "stream {0} has a higher number than any that was assigned",
        "SELECT id FROM streams WHERE id >= (SELECT value FROM meta WHERE key = 'next_epoch')",
    ),
    (
        "it lists producers of the unknown stream {0}",
        "SELECT DISTINCT stream FROM producers WHERE stream NOT IN (SELECT id FROM streams)",
    ),
    (
        "segment {0} has {1} live bytes, not {2}",
        """SELECT s.id, coalesce(sum(e.length), 0), s.live FROM segments s
        LEFT JOIN extents e ON e.segment = s.id
        GROUP BY s.id HAVING coalesce(sum(e.length), 0) != s.live""",
    ),
    (
        "it lists bytes in the unknown segment {0}",
        "SELECT DISTINCT segment FROM extents WHERE segment NOT IN (SELECT id FROM segments)",
    ),
)
"""The invariants of the catalog, as queries for their violations."""


_LIVE: Final = f"SELECT {end_of()}, closed FROM streams WHERE id = ? AND NOT deleted"  # noqa: S608 - ours


class FollowedStreams:
    """The streams of a catalog, as the journal after it leaves them."""

    def __init__(self, db: sqlite3.Connection | None) -> None:
        self._db = db
        self._streams: dict[int, WriterState | None] = {}
        self._created: dict[int, str] = {}
        """Paths of the streams that the journal creates."""
        self._new = 0
        """How many more streams are live than in the catalog."""

    def _row(self, query: str, *values: int) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = None
        if self._db is not None:
            row = self._db.execute(query, values).fetchone()
        return row

    def known(self, number: int) -> WriterState | None:
        """Return the state of a stream that is not deleted."""
        if number not in self._streams:
            row = self._row(_LIVE, number)
            self._streams[number] = None if row is None else WriterState(row[0], bool(row[1]))
        return self._streams[number]

    def path(self, number: int) -> str | None:
        """Return the path of a stream."""
        if number in self._created:
            return self._created[number]
        row = self._row("SELECT path FROM streams WHERE id = ?", number)
        return None if row is None else row[0]

    @property
    def count(self) -> int:
        """The number of live streams."""
        (known,) = self._row("SELECT count(*) FROM streams WHERE NOT deleted") or (0,)
        return int(known) + self._new

    def follow(self, decision: Decision | Unreadable) -> None:
        """Apply a record; continue after a gap, and with a fork of an unknown stream."""
        match decision:
            case Applies(CreateRecord() as record) | UnknownStream(CreateRecord() as record):
                meta = record.meta
                self._created[record.stream] = meta.path
                self._streams[record.stream] = WriterState(meta.at + len(record.data), meta.closed)
                self._new += 1
            case Applies(AppendRecord() as record) | Gap(record):
                before = self._streams[record.stream]
                closed = record.extras.close or (before is not None and before.closed)
                end = record.start + len(record.data)
                self._streams[record.stream] = WriterState(end, closed)
            case Applies(DeleteRecord() as record):
                self._streams[record.stream] = None
                self._new -= 1
