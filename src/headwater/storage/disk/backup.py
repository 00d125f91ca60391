"""A consistent copy of a data directory, while a server may go on writing to it.

A view of the directory is taken (see `view`, which also argues why its parts fit together): the
journal and the catalog are copied by it, and its segments are held open, so nothing that a
checkpoint or a compaction does meanwhile matters. Then the segments are linked or copied, and the
journal's last file is cut behind its last whole batch. What a server finds in the copy is what it
would have found if the first one had been killed when the view was taken: every append that had
been acknowledged by then is there, and each stream is a prefix of the truth.

The catalog gets its name last. A backup that was broken off has none, and can't be mistaken for a
whole one.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from headwater.errors import StoreDamaged, StoreError
from headwater.storage.disk import catalog
from headwater.storage.disk.checking import Progress, no_progress
from headwater.storage.disk.counting import Living
from headwater.storage.disk.files import sync_directory, sync_file
from headwater.storage.disk.journal import START, JournalWriter, journal_numbers, journal_path
from headwater.storage.disk.journal_reading import (
    Damage,
    Entry,
    check_header,
    never_used,
    read_journal,
)
from headwater.storage.disk.scanning import OpenSegment, Torn, read_journals
from headwater.storage.disk.segments import Extent, segment_path
from headwater.storage.disk.view import (
    View,
    open_segments,
    read_only,
    require_data,
    take_view,
)

_PIECE: Final = 4 << 20


class Copied(msgspec.Struct):
    """What a backup holds."""

    streams: int = 0
    segments: int = 0
    segment_bytes: int = 0
    linked: int = 0
    """How many of the segments share their bytes with the original."""
    journal_bytes: int = 0
    catalog_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.segment_bytes + self.journal_bytes + self.catalog_bytes


def backup(
    folder: Path, target: Path, progress: Progress = no_progress, *, link: bool = True
) -> Copied:
    """Copy a data directory to one that does not exist, or is empty."""
    require_data(folder)
    with _new_folder(target):
        scratch = target / "unfinished"
        with take_view(folder, scratch) as view:
            copied = Copied()
            _copy_segments(view, target / "segments", copied, progress, link=link)
            _copy_journals(view, target / "journal", copied)
            _copy_catalog(view, target, copied)
        shutil.rmtree(scratch)
        for part in (target / "segments", target / "journal", target, target.parent):
            sync_directory(part)
        _verify(target)
    return copied


@contextmanager
def _new_folder(target: Path) -> Iterator[None]:
    """Make a folder for a block, and leave nothing behind if that fails."""
    existed = target.exists()
    if existed and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"'{target}' is there already, and is not an empty directory.")
    target.mkdir(parents=True, exist_ok=True)
    try:
        for part in ("segments", "journal"):
            (target / part).mkdir()
        yield
    except BaseException:
        for path in target.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if not existed:
            target.rmdir()
        raise


def _copy_segments(
    view: View, folder: Path, copied: Copied, progress: Progress, *, link: bool
) -> None:
    if view.missing_segments:
        missing = segment_path(view.folder / "segments", view.missing_segments[0])
        raise StoreDamaged(str(missing), 0, "the file is missing")
    total = sum(file.size for file in view.segments.values())
    for number, file in sorted(view.segments.items()):
        path = segment_path(folder, number)
        size = file.size
        if link and _linked(file, path):
            copied.linked += 1
        else:
            _copy(file.fd, path, lambda done: progress(copied.segment_bytes + done, total))
        copied.segments += 1
        copied.segment_bytes += size
        progress(copied.segment_bytes, total)


def _linked(file: OpenSegment, path: Path) -> bool:
    """Share a segment's bytes, if both lie on one file system and it is still there."""
    try:
        os.link(file.path, path)
    except OSError:
        return False
    # A server that was started anew may have given the number to another segment.
    if path.stat().st_ino != os.fstat(file.fd).st_ino:
        path.unlink()
        return False
    return True


def _copy(fd: int, path: Path, told: Callable[[int], None]) -> None:
    position = 0
    with path.open("wb", buffering=0) as file:
        while piece := os.pread(fd, _PIECE, position):
            file.write(piece)
            position += len(piece)
            told(position)
        os.fsync(file.fileno())


def _copy_journals(view: View, folder: Path, copied: Copied) -> None:
    """Take over whole batches only."""
    if view.missing_journals:
        missing = journal_path(view.folder / "journal", view.missing_journals[0])
        raise StoreDamaged(str(missing), 0, "the file is missing")
    files = list(view.journals)
    while files and never_used(files[-1]):
        files.pop()
    ends = dict.fromkeys(files, START)
    for path in files:
        check_header(path)
    for path, item in read_journals(files):
        if isinstance(item, Damage):
            original = view.folder / "journal" / path.name
            reason = "a record there does not hold what its checksum says"
            raise StoreDamaged(str(original), item.position, reason)
        if not isinstance(item, Torn):
            ends[path] = item.end
    for path, end in ends.items():
        os.truncate(path, end)
        path.rename(folder / path.name)
        sync_file(folder / path.name)
        copied.journal_bytes += end


def _copy_catalog(view: View, target: Path, copied: Copied) -> None:
    if view.catalog is None:
        raise StoreDamaged(str(view.folder / catalog.FILE), 0, view.catalog_error)
    sync_file(view.catalog)
    copied.catalog_bytes = view.catalog.stat().st_size
    view.catalog.rename(target / catalog.FILE)
    with closing(read_only(target, live=False)) as db:
        copied.streams = _count(db, target / "journal")
        if not any((target / "journal").iterdir()):  # it was just being made ready
            query = "SELECT value FROM meta WHERE key = 'journal_from'"
            number = int(db.execute(query).fetchone()[0])
            JournalWriter(target / "journal", number, 0).close()


def _count(db: sqlite3.Connection, journals: Path) -> int:
    living = Living(db)
    for number in journal_numbers(journals):
        for item in read_journal(journal_path(journals, number)):
            if isinstance(item, Entry):
                living.follow(item.body)
    return living.count


def _verify(target: Path) -> None:
    """Open the copy, and see that everything it needs is there."""
    with closing(read_only(target, live=False)) as db, ExitStack() as held:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        numbers = journal_numbers(target / "journal")
        first = int(meta["journal_from"])
        if numbers != list(range(first, first + len(numbers))) or not numbers:
            raise StoreDamaged(str(journal_path(target / "journal", first)), 0, "it is not whole")
        for number in numbers:
            check_header(journal_path(target / "journal", number))
        wanted = [number for (number,) in db.execute("SELECT id FROM segments")]
        files = open_segments(target, wanted, held)
        for number in wanted:
            if number not in files:
                missing = segment_path(target / "segments", number)
                raise StoreDamaged(str(missing), 0, "the file is missing")
            if (reason := files[number].header_damage()) is not None:
                raise StoreDamaged(str(files[number].path), 0, reason)
        for row in db.execute("SELECT stream, start, length, segment, position FROM extents"):
            extent = Extent(*row)
            if not files[extent.segment].holds(extent):
                file = files[extent.segment].path
                raise StoreDamaged(str(file), extent.position, "the header of an extent is damaged")
