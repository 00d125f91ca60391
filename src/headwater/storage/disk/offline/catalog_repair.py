"""Repairing a catalog: rebuild it from its readable rows, and drop the bytes that are damaged.

Rows are read from both ends of each table, up to the first damaged one. Segments and journal
provide the rest: the streams that exist, and the positions of their bytes. For lost rows, what only
the catalog knew is lost: paths, content types, producers and closures of streams that the journal
no longer mentions.

`CatalogRepair` keeps of each stream everything up to the first gap. A stream that lost bytes gets a
new number, which is its epoch (docs/decisions/0006), and inherits its remaining bytes from the old
one, like a fork. So offsets of lost bytes never refer to later appends. The old one remains as a
deleted source until the new one is deleted.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from headwater.protocol.content_types import media_type
from headwater.protocol.framing import complete_prefix
from headwater.protocol.offsets import Lineage
from headwater.protocol.paths import DAMAGED_PATH
from headwater.storage.disk import catalog
from headwater.storage.disk.catalog import BY_NUMBER, COLUMNS, Catalog, StreamRow, dump, load
from headwater.storage.disk.journal import journal_numbers
from headwater.storage.disk.journal_reader import NamedStream, describe_streams
from headwater.storage.disk.offline.view import open_segments, read_only
from headwater.storage.disk.segments import Extent, SegmentReader, SegmentWriter

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


class ReadableRows(msgspec.Struct):
    """The readable rows of a damaged catalog."""

    streams: dict[int, StreamRow] = {}
    producers: dict[tuple[int, str], tuple[int, int]] = {}
    documents: dict[str, bytes] = {}
    next_epoch: int = 1
    metrics: str | None = None
    complete: bool = False
    """Whether all streams were found: any others, in segments, were deleted."""


def read_rows(folder: Path, scratch: Path) -> ReadableRows:
    """Read the readable rows of a damaged catalog; `scratch` may get a copy."""
    if not (folder / catalog.FILE).exists():
        return ReadableRows()
    rows = _read_file(folder)
    if not rows.streams:
        rows = _read_file(_with_new_first_page(folder, scratch))
    return rows


def _read_file(folder: Path) -> ReadableRows:
    rows = ReadableRows()
    try:
        with closing(read_only(folder, live=False)) as db:
            _read(db, rows)
    except sqlite3.DatabaseError:
        pass  # the rows read so far count
    return rows


def _with_new_first_page(folder: Path, scratch: Path) -> Path:
    """Copy a catalog, and replace its first page by that of a new one.

    That page has the start of each table, which is the same in every catalog; without it nothing
    is readable.
    """
    scratch.mkdir(parents=True)
    Catalog(scratch).close()
    with closing(sqlite3.connect(scratch / catalog.FILE)) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
    page = bytearray((scratch / catalog.FILE).read_bytes()[:size])
    page[24:28], page[92:96] = (
        b"\0\0\0\1",
        b"\0\0\0\0",
    )  # so the file's length counts
    data = (folder / catalog.FILE).read_bytes()
    (scratch / catalog.FILE).write_bytes(bytes(page) + data[size:])
    return scratch


def _read(db: sqlite3.Connection, rows: ReadableRows) -> None:
    found, complete = _scan(db, _STREAMS + " NOT INDEXED", "id")
    taken: set[str] = set()
    for values in found:
        row = _checked(values)
        if row is None or row.path in taken or row.id in rows.streams:
            complete = False
            continue
        taken.add(row.path)
        rows.streams[row.id] = row
    rows.complete = complete and bool(rows.streams)
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
    """Read a table from its start and, after an error, from its end; return if it is complete."""
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
    """Return a row if its values have the right types and are plausible."""
    try:
        row = msgspec.convert(values, StreamRow)
    except msgspec.ValidationError:
        return None
    within = 0 < row.id < _MOST and 0 <= row.start <= row.end < _MOST and 0 <= row.source < row.id
    texts = all(_is_json(text) for text in (row.closed_by, row.origin, row.inherited))
    return row if within and texts and row.path and "/" in row.content_type else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < _MOST


def _is_json(text: str | None) -> bool:
    try:
        return text is None or msgspec.json.decode(text) is not None
    except msgspec.DecodeError:
        return False


def write_catalog(folder: Path, rows: ReadableRows, journals: Path) -> None:
    """Write a new catalog with the readable rows, but without extents."""
    Catalog(folder).close()
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
    """Write rows of streams to a catalog."""
    db.executemany(_PUT_STREAM, rows)


def put_meta(db: sqlite3.Connection, key: str, value: object) -> None:
    """Store a value in the table `meta`."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def read_no_rows(db: sqlite3.Connection) -> None:
    """Select every column, so that SQLite reports a damaged table definition."""
    for query in (_STREAMS, *_OTHER_TABLES):
        db.execute(query + " LIMIT 0")


def all_streams(db: sqlite3.Connection) -> Iterator[StreamRow]:
    """Yield the streams of a catalog, sources before their forks."""
    for row in db.execute(BY_NUMBER).fetchall():
        yield StreamRow(*row)


_JSON: Final = "application/json"
_BINARY: Final = "application/octet-stream"


class IntactPrefix(NamedTuple):
    """An extent, and the length of its intact prefix."""

    extent: Extent
    length: int


class CatalogRepair:
    """Changes a copy of the catalog so that it lists only intact bytes."""

    def __init__(
        self,
        db: sqlite3.Connection,
        files: dict[int, SegmentReader],
        folder: Path,
        number: int,
        report: Callable[[int], None],
    ) -> None:
        """Pass the number of bytes of each read to `report`."""
        self._db = db
        self._report = report
        self._files = files
        self._folder = folder
        self._number = number
        """The number of the next segment, for bytes that have to be rewritten."""
        self._writer: SegmentWriter | None = None
        self._found: dict[int, list[Extent]] = defaultdict(list)
        for file in files.values():
            for extent in file.extents():
                self._found[extent.stream].append(extent)
        self._cut: set[int] = set()
        self.dropped: list[str] = []

    def streams_in_segments(self) -> set[int]:
        """Return the streams with bytes in the segments."""
        return set(self._found)

    def first_byte(self, stream: int) -> int:
        """Return the position of the first byte of a stream in the segments."""
        return min(extent.start for extent in self._found[stream])

    # Bytes

    def repair_stream(self, stream: int, start: int, end: int | None, content_type: str) -> int:
        """List the intact prefix of a stream, at most up to `end`; return its end."""
        listed = self._listed(stream)
        pieces = list(self._follow(stream, listed, start, end))
        self._db.execute("DELETE FROM extents WHERE stream = ?", (stream,))
        at = start
        for extent, intact in pieces:
            length = intact if end is None else min(intact, end - at)
            if length < extent.length:
                data = self._files[extent.segment].pread(length, extent.position)
                length = complete_prefix(data, media_type(content_type) or _BINARY) or 0
            if length:
                self._list(self._intact_extent(extent, length))
            at += length
        return at

    def _listed(self, stream: int) -> list[Extent]:
        query = (
            "SELECT stream, start, length, segment, position FROM extents "
            "WHERE stream = ? ORDER BY start"
        )
        return [Extent(*row) for row in self._db.execute(query, (stream,))]

    def _follow(
        self, stream: int, listed: list[Extent], start: int, end: int | None
    ) -> Iterator[IntactPrefix]:
        """Yield contiguous extents, up to the first gap."""
        options: dict[int, list[Extent]] = defaultdict(list)
        for extent in dict.fromkeys((*listed, *self._found.get(stream, ()))):
            if extent.length > 0 and extent.segment in self._files:
                options[extent.start].append(extent)
        at = start
        while options.get(at) and (end is None or at < end):
            pieces = [IntactPrefix(extent, self._intact_length(extent)) for extent in options[at]]
            best = max(pieces, key=lambda piece: piece.length)
            if not best.length:
                return
            yield best
            if best.length < best.extent.length:
                return
            at = best.extent.end

    def _intact_length(self, extent: Extent) -> int:
        self._report(extent.length)
        return self._files[extent.segment].intact_length(extent)

    def _intact_extent(self, extent: Extent, length: int) -> Extent:
        """Return an intact extent as it is, and rewrite a damaged one."""
        file = self._files[extent.segment]
        if length == extent.length and file.has_header(extent) and file.header_damage is None:
            return extent
        return self._write(extent.stream, extent.start, file.pread(length, extent.position))

    def _write(self, stream: int, start: int, data: bytes) -> Extent:
        if self._writer is None:
            self._writer = SegmentWriter(self._folder / "segments", self._number)
            self._number += 1
        self._writer.add(stream, start, [data])
        return self._writer.extents[-1]

    def _read(self, extent: Extent) -> bytes:
        if extent.segment not in self._files:
            self.finish_segment()
        return self._files[extent.segment].pread(extent.length, extent.position)

    def finish_segment(self) -> None:
        """Sync and open the segment that was written."""
        if self._writer is not None:
            self._writer.finish()
            self._files |= open_segments(self._folder, [self._writer.number])
            self._writer = None

    def _list(self, extent: Extent) -> None:
        self._db.execute("INSERT INTO extents VALUES (?, ?, ?, ?, ?)", extent)

    def content_type(self, stream: int) -> str:
        """Guess the content type: JSON if every line is a stored JSON message."""
        rest = b""
        seen = False
        for extent in self._listed(stream):
            lines = (rest + self._read(extent)).split(b"\n")
            rest = lines.pop()
            if not holds_messages(lines):
                return _BINARY
            seen = seen or bool(lines)
        return _JSON if seen and not rest else _BINARY

    # Streams

    def cut(self, stream: int) -> None:
        """Mark a stream that lost bytes after its end."""
        self._cut.add(stream)

    def repair_broken(self, streams: Iterable[int]) -> None:
        """Truncate streams at their first gap."""
        wanted = set(streams)
        for row in all_streams(self._db):
            if row.id not in wanted:
                continue
            end = self.repair_stream(row.id, row.start, row.end, row.content_type)
            if end < row.end:
                self.dropped.append(f"Bytes {end} to {row.end}{_describe(row)} are dropped.")
                put_streams(self._db, [row._replace(end=end)])
                self.cut(row.id)

    def finish(self) -> None:
        """Update forks, epochs and counts after all streams were truncated."""
        self._find_sources()
        self._rebase()
        self._renumber_cut_streams()
        self._db.execute(
            "UPDATE streams SET forks = "
            "(SELECT count(*) FROM streams AS forks WHERE forks.source = streams.id)"
        )
        self._db.execute("DELETE FROM producers WHERE stream NOT IN (SELECT id FROM streams)")
        self._db.execute("DELETE FROM extents WHERE stream NOT IN (SELECT id FROM streams)")
        self._count_segments()
        self.finish_segment()

    def _next_number(self) -> int:
        (number,) = self._db.execute("SELECT value FROM meta WHERE key = 'next_epoch'").fetchone()
        (last,) = self._db.execute("SELECT coalesce(max(id), 0) FROM streams").fetchone()
        following = max(int(number), int(last) + 1)
        put_meta(self._db, "next_epoch", following + 1)
        return following

    def _find_sources(self) -> None:
        """Detach forks whose source is lost: they keep only their own bytes."""
        rows = {row.id: row for row in all_streams(self._db)}
        for row in rows.values():
            if row.source and row.source not in rows:
                self.dropped.append(
                    f"Bytes 0 to {row.start}{_describe(row)} are dropped: they belonged "
                    f"to stream {row.source}, which is lost."
                )
                put_streams(self._db, [row._replace(source=0, origin=None, inherited=None)])

    def _rebase(self) -> None:
        """Move streams that are no forks but start after byte 0 to byte 0, with their forks.

        All of their bytes move, so all of them get new numbers.
        """
        moved: dict[int, tuple[int, Lineage]] = {}
        for row in all_streams(self._db):  # sources before their forks
            if row.source in moved:
                shift, source = moved[row.source]
                self.dropped.append(
                    f"Bytes 0 to {shift}{_describe(row)} are dropped: they came from "
                    f"stream {row.source}, which has lost them."
                )
            elif not row.source and row.start:
                shift, source = row.start, None
            else:
                continue
            number = self._next_number()
            lineage = Lineage(number) if source is None else source.fork(row.start - shift, number)
            moved[row.id] = shift, lineage
            for extent in self._listed(row.id):
                self._list(self._write(number, extent.start - shift, self._read(extent)))
            self._remove(row.id)
            new_row = row._replace(
                id=number,
                start=row.start - shift,
                end=row.end - shift,
                source=0 if source is None else source.own,
                origin=None,
                inherited=dump(lineage.inherited or None),
            )
            put_streams(self._db, [new_row])
            self._db.execute("UPDATE producers SET stream = ? WHERE stream = ?", (number, row.id))
            self._cut.discard(row.id)

    def _remove(self, stream: int) -> None:
        self._db.execute("DELETE FROM extents WHERE stream = ?", (stream,))
        self._db.execute("DELETE FROM streams WHERE id = ?", (stream,))

    def _renumber_cut_streams(self) -> None:
        """Assign new numbers to truncated streams, and to forks of lost bytes."""
        ends: dict[int, int] = {}
        for row in all_streams(self._db):
            end = row.end
            if row.source and row.start > ends[row.source]:
                end = ends[row.source]
                self.dropped.append(
                    f"Bytes {end} to {row.end}{_describe(row)} are dropped: they follow "
                    f"lost bytes of stream {row.source}, of which it is a fork."
                )
                self.cut(row.id)
            ends[row.id] = end
            if row.id in self._cut:
                self._renumber(row, end)

    def _renumber(self, row: StreamRow, end: int) -> None:
        if end < row.start:
            self._db.execute("DELETE FROM extents WHERE stream = ?", (row.id,))
        lineage = Lineage(row.id, tuple((upto, epoch) for upto, epoch in load(row.inherited) or ()))
        if end < row.start:
            lineage = lineage.fork(end, row.id)
        old = row._replace(
            start=min(row.start, end), end=end, inherited=dump(lineage.inherited or None)
        )
        if row.deleted:  # it only exists for its forks, and gets no appends
            put_streams(self._db, [old])
            return
        number = self._next_number()
        extended = lineage.fork(end, number)
        put_streams(
            self._db,
            [
                old._replace(path=DAMAGED_PATH.format(row.id), deleted=1, deadline=None),
                row._replace(
                    id=number,
                    start=end,
                    end=end,
                    source=row.id,
                    inherited=dump(extended.inherited),
                ),
            ],
        )
        self._db.execute("UPDATE producers SET stream = ? WHERE stream = ?", (number, row.id))

    def _count_segments(self) -> None:
        sizes = dict(self._db.execute("SELECT id, bytes FROM segments").fetchall())
        live = self._db.execute(
            "SELECT segment, sum(length) FROM extents GROUP BY segment"
        ).fetchall()
        self._db.execute("DELETE FROM segments")
        for number, used in live:
            size = sizes.get(number) or self._payload(number, used)
            self._db.execute("INSERT INTO segments VALUES (?, ?, ?)", (number, size, used))

    def _payload(self, number: int, used: int) -> int:
        file = self._files.get(number)
        return used if file is None else max(used, sum(extent.length for extent in file.extents()))


def _describe(row: StreamRow) -> str:
    return describe_streams(NamedStream(row.id, row.path))


def holds_messages(lines: list[bytes]) -> bool:
    """Return whether all lines are stored JSON messages."""
    try:
        for line in lines:
            if not line.endswith(b","):
                return False
            msgspec.json.decode(line[:-1], type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def guess(data: bytes) -> str:
    """Guess the content type of bytes: JSON if they are stored JSON messages."""
    lines = data.split(b"\n")
    return _JSON if not lines.pop() and lines and holds_messages(lines) else _BINARY


def needed_segments(db: sqlite3.Connection) -> set[int]:
    """Return the numbers of the segments that a catalog lists."""
    return {number for (number,) in db.execute("SELECT id FROM segments")}
