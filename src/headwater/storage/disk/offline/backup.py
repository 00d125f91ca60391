"""A consistent copy of a data directory, while a server may be writing to it.

The backup takes a view of the directory (see `view` for why its parts are consistent): journal and
catalog are copied, and the segments stay open, so checkpoints and compactions do no harm. Then the
segments are linked or copied, and the journal is truncated after its last complete batch. A server
that starts on the copy finds what it would have found if the original server had been killed when
the view was taken: every append acknowledged by then, and of each stream a prefix.

The catalog gets its name last, once everything else is durable. An interrupted backup has none. It
can't be mistaken for a complete one, even if it was interrupted at its very beginning: a journal
file is the first file in it, and no store starts on a journal without a catalog.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from headwater.errors import StoreDamaged, StoreError
from headwater.storage.disk import catalog
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import make_directory, sync_directory, sync_file
from headwater.storage.disk.journal import START, JournalWriter, journal_numbers, journal_path
from headwater.storage.disk.journal_reader import check_header
from headwater.storage.disk.offline.check import FollowedStreams, Progress, no_progress
from headwater.storage.disk.offline.view import (
    DirectoryView,
    explain_disk_full,
    naming,
    open_segments,
    read_only,
    require_data,
    take_view,
)
from headwater.storage.disk.replay import TornWrite, replay, require_intact
from headwater.storage.disk.segments import Extent, SegmentReader, segment_path

_PIECE: Final = 4 << 20
_MARK: Final = 0
"""The number of the empty journal file that marks an incomplete backup; no store uses it."""


class BackupSummary(msgspec.Struct):
    """The contents of a backup."""

    streams: int = 0
    segments: int = 0
    segment_bytes: int = 0
    linked: int = 0
    """How many segments are hard links to the originals."""
    journal_bytes: int = 0
    catalog_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.segment_bytes + self.journal_bytes + self.catalog_bytes


def backup(
    folder: Path,
    target: Path,
    progress: Progress = no_progress,
    *,
    link: bool = True,
    faults: Faults = NO_FAULTS,
) -> BackupSummary:
    """Copy a data directory to a folder that does not exist or is empty."""
    require_data(folder)
    advice = "free some there, or choose another target"
    with explain_disk_full(target, "the backup", advice), _new_folder(target):
        scratch = target / "unfinished"
        faults.reach("backup-begun")
        view = take_view(folder, scratch)
        if view.catalog is None:
            raise StoreDamaged(str(view.folder / catalog.FILE), 0, view.catalog_error)
        copied = BackupSummary()
        _copy_segments(view, target / "segments", copied, progress, link=link)
        _copy_journals(view, target / "journal", copied, view.catalog)
        for part in (target / "segments", target / "journal"):
            sync_directory(part)
        faults.reach("backup-copied")
        _copy_catalog(view.catalog, target, copied)
        shutil.rmtree(scratch)
        sync_directory(target)
        _verify(target, folder)
    return copied


@contextmanager
def _new_folder(target: Path) -> Iterator[None]:
    """Create a folder for a block, and remove it if the block fails."""
    existed = target.exists()
    if existed and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"'{target}' already exists and is not an empty directory.")
    make_directory(target)
    try:
        make_directory(target / "journal")
        journal_path(target / "journal", _MARK).touch()
        sync_directory(target / "journal")
        make_directory(target / "segments")
        yield
    except BaseException:
        (target / catalog.FILE).unlink(
            missing_ok=True
        )  # first: without it, the backup is incomplete
        for path in target.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if not existed:
            target.rmdir()
        raise


def _copy_segments(
    view: DirectoryView, folder: Path, copied: BackupSummary, progress: Progress, *, link: bool
) -> None:
    if view.missing_segments:
        missing = segment_path(view.folder / "segments", view.missing_segments[0])
        raise StoreDamaged(str(missing), 0, "the file is missing")
    total = sum(file.size for file in view.segments.values())
    for number, file in sorted(view.segments.items()):
        if file.header_damage is not None:
            raise StoreDamaged(str(file.path), 0, file.header_damage)
        path = segment_path(folder, number)
        size = file.size
        if link and _linked(file, path):
            copied.linked += 1
        else:
            _copy(file, path, lambda done: progress(copied.segment_bytes + done, total))
        copied.segments += 1
        copied.segment_bytes += size
        progress(copied.segment_bytes, total)


def _linked(file: SegmentReader, path: Path) -> bool:
    """Link a segment, if it is on the same file system and was not deleted."""
    try:
        os.link(file.path, path)
    except OSError:
        return False
    # A restarted server may have given the number to another segment.
    if path.stat().st_ino != os.fstat(file.fd).st_ino:
        path.unlink()
        return False
    return True


def _copy(segment: SegmentReader, path: Path, report: Callable[[int], None]) -> None:
    position = 0
    with path.open("wb") as file:
        while piece := segment.pread(_PIECE, position):
            with naming(path):
                file.write(piece)
            position += len(piece)
            report(position)
    sync_file(path)


def _copy_journals(
    view: DirectoryView, folder: Path, copied: BackupSummary, catalog_path: Path
) -> None:
    """Copy complete batches only; refuse what a start would refuse."""
    originals = view.folder / "journal"
    if view.missing_journals:
        missing = journal_path(originals, view.missing_journals[0])
        raise StoreDamaged(str(missing), 0, "the file is missing")
    ends: dict[Path, int] = {}
    with closing(read_only(catalog_path.parent, live=False)) as db:
        streams = FollowedStreams(db)
        for step in replay(view.journals, streams.known):
            if not isinstance(step, TornWrite):
                original = msgspec.structs.replace(step, path=originals / step.path.name)
                streams.follow(require_intact(original, streams.path))
                ends[step.path] = step.end
        copied.streams = streams.count
        (first,) = db.execute("SELECT value FROM meta WHERE key = 'journal_from'").fetchone()
    files = list(view.journals)
    while files and files[-1] not in ends:  # a start creates it again
        files.pop()
    for path in files:
        end = ends.get(path, START)
        os.truncate(path, end)
        path.rename(folder / path.name)
        sync_file(folder / path.name)
        copied.journal_bytes += end
    if not files:
        JournalWriter(folder, int(first), 0).close()
        copied.journal_bytes = START
    journal_path(folder, _MARK).unlink()


def _copy_catalog(path: Path, target: Path, copied: BackupSummary) -> None:
    sync_file(path)
    copied.catalog_bytes = path.stat().st_size
    path.rename(target / catalog.FILE)


def _verify(target: Path, folder: Path) -> None:
    """Verify that the copy has every file and extent that it needs."""
    with closing(read_only(target, live=False)) as db:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        numbers = journal_numbers(target / "journal")
        first = int(meta["journal_from"])
        if numbers != list(range(first, first + len(numbers))) or not numbers:
            raise StoreDamaged(
                str(journal_path(target / "journal", first)), 0, "the journal is incomplete"
            )
        for number in numbers:
            check_header(journal_path(target / "journal", number))
        wanted = [number for (number,) in db.execute("SELECT id FROM segments")]
        files = open_segments(target, wanted)
        for number in wanted:
            if number not in files:
                missing = segment_path(target / "segments", number)
                raise StoreDamaged(str(missing), 0, "the file is missing")
        for row in db.execute("SELECT stream, start, length, segment, position FROM extents"):
            extent = Extent(*row)
            if not files[extent.segment].has_header(extent):
                file = segment_path(folder / "segments", extent.segment)
                raise StoreDamaged(str(file), extent.position, "the header of an extent is damaged")
