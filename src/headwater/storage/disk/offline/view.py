"""A consistent view of a data directory, while a server may be writing to it.

The catalog is the anchor. A read transaction on it shows one checkpoint: the extents of all
segments, and the first journal file to replay. Within that transaction:

- The *journal* files from that one on are copied, the newest first. A server switches to the next
  file only between two batches: if the copy of a file has a batch, the file before it was already
  complete, and is copied later. So the copies hold an unbroken sequence of batches, which includes
  everything acknowledged before the copying began. The newest batch may be half written: it is
  torn, as after a crash.
- The *segments* are opened. They never change, and an open segment stays readable even if a
  compaction deletes it.
- The number of the first journal file is then read again, outside of the transaction. Files are
  deleted or overwritten only after the commit of a checkpoint that no longer needs them. If the
  number is unchanged, there was no such commit before the copies were made, and they are valid.
  Otherwise the view is taken again. So it is if a segment was missing and the catalog has changed
  since; if the catalog has not changed, the segment really is missing.
- Finally the catalog is copied as the transaction sees it.

So catalog, segments and journal of a view are consistent, as if the server had been killed.
"""

import fcntl
import os
import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from headwater.errors import NewerFormat, StoreError
from headwater.storage.disk import catalog, journal
from headwater.storage.disk.disk_space import DISK_FULL_ERRORS
from headwater.storage.disk.journal import ZEROS, journal_numbers, journal_path
from headwater.storage.disk.journal_reader import Damage, is_unused, read_header, read_journal
from headwater.storage.disk.segments import SegmentReader, segment_numbers, segment_path

_TRIES: Final = 200
_COPY_TRIES: Final = 5
_PAUSE: Final = 0.02
_SPARE_FILES: Final = 32
_PIECE: Final = 64 * 1024
_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


class DirectoryView(msgspec.Struct):
    """The files of one consistent state."""

    folder: Path
    live: bool
    """Whether a server runs on the directory."""
    catalog: Path | None
    """A copy of the catalog; None if it is unreadable."""
    catalog_error: str
    journals: list[Path]
    """Copies, oldest first."""
    segments: dict[int, SegmentReader]
    missing_journals: list[int]
    missing_segments: list[int]


class _State(NamedTuple):
    version: int
    journal_from: int
    next_epoch: int
    segments: list[int]


def require_data(folder: Path) -> None:
    """Refuse a directory that no server has ever used."""
    if not folder.is_dir():
        raise StoreError(f"There is no directory '{folder}'.")
    parts = (folder / catalog.FILE, folder / "journal", folder / "segments")
    if not any(part.exists() for part in parts):
        raise StoreError(f"'{folder}' is not a data directory: it holds no {catalog.FILE}.")


def is_running(folder: Path) -> bool:
    """Return whether a server holds the lock of a directory."""
    try:
        fd = os.open(folder / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def read_only(folder: Path, *, live: bool) -> sqlite3.Connection:
    """Open the catalog for reading, without changing any file."""
    path = folder / catalog.FILE
    log = path.with_name(f"{path.name}-wal")
    # With an empty write-ahead log, the catalog is opened without the shared-memory files that
    # SQLite would leave on disk. A server that starts right now writes to that log first.
    alone = not live and (not log.exists() or not log.stat().st_size)
    mode = "immutable=1" if alone else "mode=ro"
    url = f"file:{quote(str(path))}?{mode}"
    connection = sqlite3.connect(url, uri=True, isolation_level=None, timeout=30)
    connection.text_factory = any_text
    return connection


def any_text(raw: bytes) -> str:
    """Decode a text column; damaged bytes in it must not make the rest unreadable."""
    return raw.decode("utf-8", "replace")


def is_disk_full(error: Exception) -> bool:
    """Return whether more disk space would fix an error."""
    if isinstance(error, OSError):
        return error.errno in DISK_FULL_ERRORS
    return getattr(error, "sqlite_errorcode", None) in _FULL


@contextmanager
def explain_disk_full(folder: Path, what: str, advice: str) -> Iterator[None]:
    """Report a full disk as one sentence: the folder, what was written, and what to do."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not is_disk_full(error):
            raise
        raise StoreError(f"Not enough disk space in '{folder}' for {what}: {advice}.") from error


def take_view(folder: Path, scratch: Path, *, live: bool | None = None) -> DirectoryView:
    """Take a view; catalog and journal are copied to `scratch`."""
    require_data(folder)
    if live is None:
        live = is_running(folder)
    (scratch / "journal").mkdir(parents=True, exist_ok=True)
    damaged = 0
    for _ in range(_TRIES):
        try:
            view = _take_once(folder, scratch, live=live)
        except sqlite3.DatabaseError as error:
            if is_disk_full(error):
                raise
            (scratch / catalog.FILE).unlink(missing_ok=True)
            return _without_catalog(folder, scratch, str(error), live=live)
        if view is not None:
            if not live or damaged == _COPY_TRIES or not any(map(_looks_damaged, view.journals)):
                return view
            damaged += 1
        time.sleep(_PAUSE)
    raise StoreError(
        f"'{folder}' changes faster than it can be copied: try again when there are fewer writes."
    )


def _take_once(folder: Path, scratch: Path, *, live: bool) -> DirectoryView | None:
    if not (folder / catalog.FILE).exists():
        raise sqlite3.DatabaseError("the file is missing")
    with closing(read_only(folder, live=live)) as connection:
        with explain_disk_full(
            folder, "the files that SQLite needs to read the catalog", "free some"
        ):
            connection.execute("BEGIN")
            state = _state(connection)
        if state.version > catalog.VERSION:
            raise NewerFormat(str(folder / catalog.FILE), state.version, catalog.VERSION)
        first = state.journal_from
        numbers = [number for number in journal_numbers(folder / "journal") if number >= first]
        journals = _copy_journals(folder, scratch, numbers)
        least = first if state.next_epoch > 1 else first - 1
        missing_journals = sorted({*range(first, max([*numbers, least]) + 1)} - set(journals))
        segments = open_segments(folder, state.segments)
        missing_segments = sorted(set(state.segments) - set(segments))
        if live:
            with closing(read_only(folder, live=live)) as later:
                now = _state(later)
            missing = missing_journals or missing_segments
            if now.journal_from != first or (missing and now != state):
                return None
        with closing(sqlite3.connect(scratch / catalog.FILE, isolation_level=None)) as target:
            connection.backup(target)
    return DirectoryView(
        folder=folder,
        live=live,
        catalog=scratch / catalog.FILE,
        catalog_error="",
        journals=[journals[number] for number in sorted(journals)],
        segments=segments,
        missing_journals=missing_journals,
        missing_segments=missing_segments,
    )


def _state(connection: sqlite3.Connection) -> _State:
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    try:
        known = [int(meta[key]) for key in ("version", "journal_from", "next_epoch")]
    except (KeyError, TypeError, ValueError) as error:
        raise sqlite3.DatabaseError(f"the table meta can't be used: {error!r}") from error
    rows = connection.execute("SELECT id FROM segments ORDER BY id")
    return _State(known[0], known[1], known[2], [number for (number,) in rows])


def _without_catalog(folder: Path, scratch: Path, error: str, *, live: bool) -> DirectoryView:
    numbers = journal_numbers(folder / "journal")
    journals = _copy_journals(folder, scratch, numbers)
    wanted = set(range(numbers[0], numbers[-1])) if numbers else set()
    return DirectoryView(
        folder=folder,
        live=live,
        catalog=None,
        catalog_error=error,
        journals=[journals[number] for number in sorted(journals)],
        segments=open_segments(folder, segment_numbers(folder / "segments")),
        missing_journals=sorted(wanted - set(journals)),
        missing_segments=[],
    )


def _copy_journals(folder: Path, scratch: Path, numbers: list[int]) -> dict[int, Path]:
    """Copy the existing journal files, the newest first."""
    for stale in (scratch / "journal").iterdir():
        stale.unlink()
    copies = {}
    for number in sorted(numbers, reverse=True):
        original = journal_path(folder / "journal", number)
        copy = journal_path(scratch / "journal", number)
        try:
            copy_file(original, copy)
        except FileNotFoundError:
            continue
        _refuse_newer(copy, original)
        copies[number] = copy
    return copies


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file name to an OSError: the system sets it only when it opens a file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def copy_file(original: Path, copy: Path) -> None:
    """Copy a file sparsely: the zeros of a prefilled journal file take no space in the copy."""
    with original.open("rb", buffering=0) as old, copy.open("wb") as new:
        while True:
            with naming(original):
                piece = old.read(_PIECE)
            if not piece:
                break
            with naming(copy):
                if piece == ZEROS[: len(piece)]:
                    new.seek(len(piece), os.SEEK_CUR)
                else:
                    new.write(piece)
        new.truncate()


def _refuse_newer(copy: Path, original: Path) -> None:
    """Refuse a journal file of a newer version, with the name of the original."""
    try:
        read_header(copy)
    except NewerFormat as error:
        raise NewerFormat(str(original), error.version, journal.VERSION) from None


def _looks_damaged(path: Path) -> bool:
    """Return whether a copy looks damaged, as it also does if a batch was written meanwhile."""
    return not is_unused(path) and any(
        isinstance(item, Damage) and not item.torn for item in read_journal(path)
    )


def open_segments(folder: Path, numbers: list[int]) -> dict[int, SegmentReader]:
    """Open the existing segments."""
    _allow_files(len(numbers))
    opened = {}
    for number in numbers:
        with suppress(FileNotFoundError):
            opened[number] = SegmentReader(segment_path(folder / "segments", number))
    return opened


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sum(1 for _ in Path("/dev/fd").iterdir()) + count + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and wanted > soft:
        if hard != resource.RLIM_INFINITY and wanted > hard:
            raise StoreError(
                f"The command needs {wanted} open files, but the limit is {hard}: "
                "raise it with 'ulimit -n'."
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
