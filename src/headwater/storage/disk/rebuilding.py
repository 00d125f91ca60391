"""A catalog that can't be trusted, written anew from what can still be read of it.

Rows are read from both ends of each table, up to the first that is damaged. The rest comes from the
segments and the journal: which streams there are, and where their bytes lie. What only the catalog
knew (paths, content types, producers and closures of streams that the journal no longer speaks of)
is lost for the rows that are lost.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.storage.disk import catalog
from headwater.storage.disk.catalog import BY_NUMBER, COLUMNS, Catalog, StreamRow
from headwater.storage.disk.journal import journal_numbers
from headwater.storage.disk.view import read_only

_PLACES: Final = ", ".join("?" * len(StreamRow._fields))
_STREAMS: Final = f"SELECT {COLUMNS} FROM streams"  # noqa: S608 - ours
_PUT_STREAM: Final = f"INSERT OR REPLACE INTO streams ({COLUMNS}) VALUES ({_PLACES})"  # noqa: S608 - ours
_EXTENTS: Final = "SELECT stream, start, length, segment, position FROM extents"
_OTHER_TABLES: Final = (
    "SELECT stream, producer_id, epoch, seq FROM producers",
    _EXTENTS,
    "SELECT id, bytes, live FROM segments",
)
_MOST: Final = 2**53


class Rows(msgspec.Struct):
    """What could be read of a damaged catalog."""

    streams: dict[int, StreamRow] = {}
    producers: dict[tuple[int, str], tuple[int, int]] = {}
    documents: dict[str, bytes] = {}
    next_epoch: int = 1
    metrics: str | None = None
    complete: bool = False
    """Every stream that there is was found: others, in segments, had been deleted."""


class _Row(msgspec.Struct, frozen=True):
    """The types that the columns of a stream must have."""

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


def read_rows(folder: Path, scratch: Path) -> Rows:
    """Read what can be read of a damaged catalog; a copy may be made in `scratch`."""
    if not (folder / catalog.FILE).exists():
        return Rows()
    rows = _read_file(folder)
    if not rows.streams:
        rows = _read_file(_with_another_first_page(folder, scratch))
    return rows


def _read_file(folder: Path) -> Rows:
    rows = Rows()
    try:
        with closing(read_only(folder, live=False)) as db:
            _read(db, rows)
    except sqlite3.DatabaseError:
        pass  # what was read up to here counts
    return rows


def _with_another_first_page(folder: Path, scratch: Path) -> Path:
    """Copy a catalog, and give it the first page of a new one.

    That page holds where each table begins, which is the same in every catalog, and without it
    nothing can be read.
    """
    scratch.mkdir(parents=True)
    Catalog(scratch).close()
    with closing(sqlite3.connect(scratch / catalog.FILE)) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
    page = bytearray((scratch / catalog.FILE).read_bytes()[:size])
    page[24:28], page[92:96] = b"\0\0\0\1", b"\0\0\0\0"  # so the length of the file counts
    data = (folder / catalog.FILE).read_bytes()
    (scratch / catalog.FILE).write_bytes(bytes(page) + data[size:])
    return scratch


def _read(db: sqlite3.Connection, rows: Rows) -> None:
    found, whole = _scan(db, _STREAMS + " NOT INDEXED", "id")
    taken: set[str] = set()
    for values in found:
        row = _checked(values)
        if row is None or row.path in taken or row.id in rows.streams:
            whole = False
            continue
        taken.add(row.path)
        rows.streams[row.id] = row
    rows.complete = whole and bool(rows.streams)
    found, _ = _scan(db, _EXTENTS, "stream")
    for stream, start, length, _, _ in found:
        row = rows.streams.get(stream)
        if row is not None and _is_count(start) and _is_count(length):
            rows.streams[stream] = row._replace(end=max(row.end, start + length))
    found, _ = _scan(db, "SELECT stream, producer_id, epoch, seq FROM producers", "stream")
    for stream, producer_id, epoch, seq in found:
        if all(isinstance(value, int) for value in (stream, epoch, seq)):
            rows.producers[stream, str(producer_id)] = (epoch, seq)
    found, _ = _scan(db, "SELECT key, value FROM documents", "key")
    for key, value in found:
        if isinstance(key, str) and isinstance(value, bytes):
            rows.documents[key] = value
    meta, _ = _scan(db, "SELECT key, value FROM meta", "key")
    for key, value in meta:
        if key == "next_epoch" and isinstance(value, int):
            rows.next_epoch = value
        elif key == "metrics" and isinstance(value, str):
            rows.metrics = value


def _scan(db: sqlite3.Connection, query: str, key: str) -> tuple[list[Any], bool]:
    """Read a table from its beginning and, if that breaks off, from its end."""
    found: dict[Any, None] = {}
    for order in ("ASC", "DESC"):
        try:
            for row in db.execute(f"{query} ORDER BY {key} {order}"):
                found[row] = None
        except sqlite3.DatabaseError:
            continue
        return list(found), order == "ASC"
    return list(found), False


def _checked(values: tuple[Any, ...]) -> StreamRow | None:
    """Take a row whose values are of the right kind, and within reason."""
    try:
        row = msgspec.convert(dict(zip(StreamRow._fields, values, strict=True)), _Row)
    except msgspec.ValidationError:
        return None
    within = 0 < row.id < _MOST and 0 <= row.start <= row.end < _MOST and 0 <= row.source < row.id
    texts = all(_is_json(text) for text in (row.closed_by, row.origin, row.inherited))
    if not (within and texts and row.path and "/" in row.content_type):
        return None
    return StreamRow(*values)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < _MOST


def _is_json(text: str | None) -> bool:
    try:
        return text is None or msgspec.json.decode(text) is not None
    except msgspec.DecodeError:
        return False


def write_catalog(folder: Path, rows: Rows, journals: Path) -> None:
    """Write a new catalog with the rows that were saved; it lists no bytes yet."""
    made = Catalog(folder)
    made.close()
    with closing(sqlite3.connect(folder / catalog.FILE, isolation_level=None)) as db:
        db.execute("BEGIN")
        put_streams(db, rows.streams.values())
        db.executemany(
            "INSERT INTO producers VALUES (?, ?, ?, ?)",
            [
                (stream, producer_id, *state)
                for (stream, producer_id), state in rows.producers.items()
                if stream in rows.streams
            ],
        )
        db.executemany("INSERT INTO documents VALUES (?, ?)", rows.documents.items())
        put_meta(db, "journal_from", min(journal_numbers(journals), default=1))
        put_meta(db, "next_epoch", max([rows.next_epoch, *(n + 1 for n in rows.streams)]))
        if rows.metrics is not None:
            put_meta(db, "metrics", rows.metrics)
        db.execute("COMMIT")


def put_streams(db: sqlite3.Connection, rows: Iterable[StreamRow]) -> None:
    """Write streams to a catalog."""
    db.executemany(_PUT_STREAM, rows)


def put_meta(db: sqlite3.Connection, key: str, value: object) -> None:
    """Keep a value of the catalog about itself."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def read_no_rows(db: sqlite3.Connection) -> None:
    """Ask for every column, so that SQLite complains if the description of a table is damaged."""
    for query in (_STREAMS, *_OTHER_TABLES):
        db.execute(query + " LIMIT 0")


def all_streams(db: sqlite3.Connection) -> Iterator[StreamRow]:
    """Read the streams of a catalog, sources before their forks."""
    for row in db.execute(BY_NUMBER).fetchall():
        yield StreamRow(*row)
