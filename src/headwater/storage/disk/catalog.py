"""The catalog: an SQLite database, changed in one transaction per checkpoint.

It holds every stream, the extents of its bytes, and the first journal file to replay over it.
Readers share one connection, checkpoints and compactions write through another; write-ahead logging
lets both work at once. A running store calls it in threads only.
"""

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import msgspec

from headwater.errors import NewerFormat, StoreDamaged
from headwater.storage.disk.fsync import SyncFailed, sync_file
from headwater.storage.disk.segments import Extent

VERSION: Final = 2
FILE: Final = "catalog.db"
_SYNC_FAILED: Final = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
_LAST: Final = "\U0010ffff"
"""Sorts after every path and key: none contains it."""

_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE streams (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL, content_type TEXT NOT NULL,
  ttl INTEGER, expires_at TEXT, instant REAL, last_access REAL NOT NULL, deadline REAL,
  start INTEGER NOT NULL, end INTEGER NOT NULL, closed INTEGER NOT NULL, closed_by TEXT,
  last_seq TEXT, deleted INTEGER NOT NULL, forks INTEGER NOT NULL,
  source INTEGER NOT NULL, origin TEXT, inherited TEXT
);
CREATE UNIQUE INDEX streams_by_path ON streams (path);
CREATE INDEX streams_by_deadline ON streams (deadline) WHERE deadline IS NOT NULL;
CREATE TABLE producers (
  stream INTEGER NOT NULL, producer_id TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
  PRIMARY KEY (stream, producer_id)
) WITHOUT ROWID;
CREATE TABLE extents (
  stream INTEGER NOT NULL, start INTEGER NOT NULL, length INTEGER NOT NULL,
  segment INTEGER NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (stream, start)
) WITHOUT ROWID;
CREATE INDEX extents_by_segment ON extents (segment);
CREATE TABLE segments (id INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, live INTEGER NOT NULL);
"""
_DOCUMENTS: Final = (
    "CREATE TABLE IF NOT EXISTS documents (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
)

_CHANGING: Final = (
    *("last_access", "deadline", "end", "closed", "closed_by", "last_seq", "deleted", "forks"),
)
"""The columns that change after the creation of a stream."""


class StreamRow(NamedTuple):
    """A stream as the catalog stores it."""

    id: int
    path: str
    content_type: str
    ttl: int | None
    expires_at: str | None
    instant: float | None
    last_access: float
    deadline: float | None
    start: int
    end: int
    closed: int
    closed_by: str | None
    last_seq: str | None
    deleted: int
    forks: int
    source: int
    origin: str | None
    inherited: str | None


def end_of(streams: str = "streams") -> str:
    """Return SQL for the end of a stream, which its own column may not have yet.

    An append only changes the end of the extents, so no row is written for it.
    """
    return (
        f"max({streams}.end, coalesce((SELECT e.start + e.length FROM extents AS e "  # noqa: S608 - ours
        f"WHERE e.stream = {streams}.id ORDER BY e.start DESC LIMIT 1), 0))"
    )


COLUMNS: Final = ", ".join(StreamRow._fields)
"""The columns of a row in their order."""
_STREAMS: Final = f"SELECT {COLUMNS.replace(' end,', f' {end_of()},')} FROM streams "  # noqa: S608 - ours
_AT: Final = _STREAMS + "WHERE path = ?"
_NUMBERED: Final = _STREAMS + "WHERE id = ?"
_MAX_PATHS: Final = 256
"""The most paths that one statement looks up."""
_AT_SEVERAL: Final = {
    count: f"{_STREAMS}WHERE path IN ({', '.join('?' * count)})"
    for count in (4, 16, 64, _MAX_PATHS)
}
"""Statements for several paths; their number is fixed, so that SQLite keeps them prepared."""
_LIVING: Final = (
    _STREAMS + "WHERE path > ? AND path >= ? AND path < ? AND NOT deleted ORDER BY path LIMIT ?"
)
BY_NUMBER: Final = _STREAMS + "ORDER BY id"
_SAVE: Final = (
    f"INSERT INTO streams ({COLUMNS}) VALUES ({', '.join('?' * len(StreamRow._fields))}) "  # noqa: S608 - ours
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _CHANGING)}"
)


class CatalogChanges(msgspec.Struct):
    """The changes of one checkpoint, which are committed together."""

    streams: Iterable[StreamRow]
    producers: Iterable[tuple[int, str, int, int]]
    removed: Iterable[int]
    extents: list[Extent]
    segment_bytes: int
    segment: int
    journal_from: int
    next_epoch: int
    metrics: str
    documents: Iterable[tuple[str, bytes | None]] = ()


class CatalogFailed(OSError):
    """A transaction failed and was rolled back."""


class CatalogFull(CatalogFailed):
    """A transaction failed for lack of disk space."""


class Catalog:
    """One catalog file, with a connection for readers and one for writers."""

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        """Open the catalog of a folder; create it only with `create`."""
        self.path = folder / FILE
        if self.path.exists():
            self.path.open("rb+").close()  # unlike SQLite, this reports why it fails
        self._writer = self._connect()
        self._writing = Lock()
        """Guards the writers' connection: checkpoints and compactions share it."""
        self._asking = Lock()
        """Guards the readers' connection."""
        try:
            with self._reading():
                if create and not self._table_exists("meta"):
                    self._make_tables()
                self._refuse_newer()
                self._writer.execute(_DOCUMENTS)  # the first catalogs lack this table
            self._reader = self._connect()
        except BaseException:
            self._writer.close()
            raise

    def _refuse_newer(self) -> None:
        version = int(self._meta("version", 0))
        if version > VERSION:
            raise NewerFormat(str(self.path), version, VERSION)

    def _make_tables(self) -> None:
        self._writer.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.split(";"):
            self._writer.execute(statement)
        self._put("version", VERSION)
        self._put("journal_from", 1)
        self._put("next_epoch", 1)
        self._writer.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            with self._reading():
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("PRAGMA cache_size=-8192")
                connection.execute("PRAGMA temp_store=MEMORY")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Report the catalog as damaged if SQLite can't read it."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: sqlite3.DatabaseError) -> StoreDamaged:
        return StoreDamaged(str(self.path), 0, f"SQLite: {error}")

    def _ask(self, query: str, *values: object) -> list[Any]:
        """Read rows on the readers' connection, as they are committed by now."""
        with self._asking:
            try:  # not `_reading`: a context manager costs as much as a small query
                return self._reader.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise self._unreadable(error) from error

    def _table_exists(self, name: str) -> bool:
        found = self._writer.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,))
        return found.fetchone() is not None

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    # Reading

    def stream_at(self, path: str) -> StreamRow | None:
        """Return the stream at a path, live or deleted with forks left."""
        return self._stream(_AT, path)

    def streams_at(self, paths: Sequence[str]) -> list[StreamRow]:
        """Return the streams at some paths, in any order."""
        rows: list[StreamRow] = []
        for first in range(0, len(paths), _MAX_PATHS):
            some = paths[first : first + _MAX_PATHS]
            size = next(size for size in _AT_SEVERAL if len(some) <= size)
            padding = [some[0]] * (size - len(some))
            rows += map(StreamRow._make, self._ask(_AT_SEVERAL[size], *some, *padding))
        return rows

    def stream(self, number: int) -> StreamRow | None:
        """Return a stream by its number."""
        return self._stream(_NUMBERED, number)

    def _stream(self, query: str, value: object) -> StreamRow | None:
        rows = self._ask(query, value)
        return StreamRow(*rows[0]) if rows else None

    def producer(self, stream: int, producer_id: str) -> tuple[int, int] | None:
        """Return epoch and sequence of a producer."""
        query = "SELECT epoch, seq FROM producers WHERE stream = ? AND producer_id = ?"
        rows = self._ask(query, stream, producer_id)
        return rows[0] if rows else None

    def extents(self, stream: int, begin: int, end: int) -> list[Extent]:
        """Return the extents that cover a range of a stream, in order."""
        rows = self._ask(
            "SELECT stream, start, length, segment, position FROM extents WHERE stream = ? "
            "AND start >= coalesce((SELECT max(start) FROM extents WHERE stream = ? AND start <= ?)"
            ", 0) AND start < ? ORDER BY start",
            *(stream, stream, begin, end),
        )
        return [Extent(*row) for row in rows]

    def expired(self, now: float) -> Iterator[str]:
        """Yield the paths of streams whose stored deadline has passed, page by page."""
        after = (float("-inf"), 0)
        while True:
            rows = self._ask(
                "SELECT deadline, id, path FROM streams WHERE deadline <= ? "
                "AND (deadline, id) > (?, ?) ORDER BY deadline, id LIMIT 256",
                *(now, *after),
            )
            if not rows:
                return
            yield from (path for _, _, path in rows)
            after = (rows[-1][0], rows[-1][1])

    def living(self, prefix: str, after: str, limit: int) -> list[StreamRow]:
        """Return streams that are not deleted, ordered by path."""
        rows = self._ask(_LIVING, after, prefix, prefix + _LAST, limit)
        return [StreamRow(*row) for row in rows]

    def documents(self, prefix: str) -> list[tuple[str, bytes]]:
        """Return the documents whose keys begin with a prefix."""
        query = "SELECT key, value FROM documents WHERE key >= ? AND key < ?"
        return self._ask(query, prefix, prefix + _LAST)

    def meta(self, key: str, default: Any = None) -> Any:
        """Return a value of the table `meta`."""
        with self._reading():
            return self._meta(key, default)

    def _meta(self, key: str, default: Any) -> Any:
        row = self._writer.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return default if row is None else row[0]

    # Writing, in the threads of checkpoints and of compaction

    def apply(self, changes: CatalogChanges) -> list[int]:
        """Apply a checkpoint in one transaction; return the obsolete segments."""
        with self._transaction():
            for number in changes.removed:
                self._remove(number)
            self._writer.executemany(_SAVE, changes.streams)
            self._writer.executemany(
                "INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)", changes.producers
            )
            self._put_documents(changes.documents)
            self._add_segment(changes.segment, changes.segment_bytes, changes.extents)
            self._put("version", VERSION)  # version 1 has nothing that is read differently
            for key in ("journal_from", "next_epoch", "metrics"):
                self._put(key, getattr(changes, key))
            return self._drop_unused_segments()

    def replace_segments(
        self, old: Sequence[int], new: Sequence[Extent], segment: int, size: int
    ) -> list[int]:
        """Replace segments by one with the same bytes; return the segments to delete.

        A stream that was removed meanwhile gets no extents.
        """
        with self._transaction():
            living: set[int] = set()
            for number in old:
                of_segment = (number,)
                found = self._writer.execute(
                    "SELECT DISTINCT stream FROM extents WHERE segment = ?", of_segment
                )
                living.update(stream for (stream,) in found)
                self._writer.execute("DELETE FROM extents WHERE segment = ?", of_segment)
                self._writer.execute("UPDATE segments SET live = 0 WHERE id = ?", of_segment)
            live = [extent for extent in new if extent.stream in living]
            self._add_segment(segment, size, live)
            unused = self._drop_unused_segments()
            return unused if live else [*unused, segment]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit a block, or roll it back and raise `CatalogFailed`.

        After a failed sync it is unknown which of the two happened: that raises `SyncFailed`.
        """
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._writer.execute("COMMIT")
            except BaseException as error:
                if self._writer.in_transaction:  # SQLite rolls back on some errors
                    self._writer.execute("ROLLBACK")
                code = getattr(error, "sqlite_errorcode", None)
                if code == sqlite3.SQLITE_FULL:
                    raise CatalogFull(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
                if code in _SYNC_FAILED:
                    raise SyncFailed(errno.EIO, f"SQLite: {error}") from error
                if isinstance(error, sqlite3.OperationalError):
                    raise CatalogFailed(errno.EIO, f"SQLite: {error}") from error
                raise

    def segments(self) -> list[tuple[int, int, int]]:
        """Return number, stream bytes and live bytes of each segment."""
        with self._writing, self._reading():
            query = "SELECT id, bytes, live FROM segments ORDER BY id"
            return self._writer.execute(query).fetchall()

    def extents_in(self, segment: int) -> list[Extent]:
        """Return the live extents of a segment."""
        with self._writing, self._reading():
            rows = self._writer.execute(
                "SELECT stream, start, length, segment, position FROM extents WHERE segment = ? "
                "ORDER BY stream, start",
                (segment,),
            ).fetchall()
        return [Extent(*row) for row in rows]

    def put(self, key: str, value: object) -> None:
        """Store a value in the table `meta`."""
        with self._transaction():
            self._put(key, value)

    def make_durable(self) -> None:
        """Sync the last commit, whose process may have died before its sync.

        A start deletes files that this commit made obsolete. SQLite copies the write-ahead log into
        the database as far as other readers permit; the rest of the log is synced.
        """
        logged, written = 1, 0
        try:
            _, logged, written = self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
                raise self._unreadable(error) from error
        if written < logged:
            sync_file(self.path.with_name(f"{FILE}-wal"))

    def _put(self, key: str, value: object) -> None:
        self._writer.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _put_documents(self, documents: Iterable[tuple[str, bytes | None]]) -> None:
        for key, value in documents:
            if value is None:
                self._writer.execute("DELETE FROM documents WHERE key = ?", (key,))
            else:
                self._writer.execute("INSERT OR REPLACE INTO documents VALUES (?, ?)", (key, value))

    def _remove(self, stream: int) -> None:
        execute = self._writer.execute
        for length, segment in execute(
            "SELECT sum(length), segment FROM extents WHERE stream = ? GROUP BY segment", (stream,)
        ).fetchall():
            execute("UPDATE segments SET live = live - ? WHERE id = ?", (length, segment))
        for statement in (
            "DELETE FROM extents WHERE stream = ?",
            "DELETE FROM producers WHERE stream = ?",
            "DELETE FROM streams WHERE id = ?",
        ):
            execute(statement, (stream,))

    def _add_segment(self, segment: int, size: int, extents: Iterable[Extent]) -> None:
        extents = list(extents)
        if extents:
            live = sum(extent.length for extent in extents)
            self._writer.execute("INSERT INTO segments VALUES (?, ?, ?)", (segment, size, live))
            self._writer.executemany("INSERT INTO extents VALUES (?, ?, ?, ?, ?)", extents)

    def _drop_unused_segments(self) -> list[int]:
        unused = [
            number for (number,) in self._writer.execute("SELECT id FROM segments WHERE live <= 0")
        ]
        self._writer.execute("DELETE FROM segments WHERE live <= 0")
        return unused


def dump(value: object) -> str | None:
    """Encode a value as JSON for a text column; None stays NULL."""
    return None if value is None else json.dumps(value)


def load(text: str | None) -> Any:
    """Decode what `dump` encoded."""
    return None if text is None else json.loads(text)
