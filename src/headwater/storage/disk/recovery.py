"""Recovery: replay the journal over the catalog.

An unfinished write leaves a torn batch at the end, with no intact record after it. It was never
acknowledged, and is cut off. Anything else that is not a record is damage, and the store refuses to
start.

The replayed records may exist in the page cache only, since the last process may have died before
it synced them. They are made durable before a reader sees them (docs/decisions/0047).
"""

import logging
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final

from headwater.errors import StoreDamaged
from headwater.storage.disk.catalog import Catalog, CatalogFailed
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import sync, sync_directory
from headwater.storage.disk.journal import journal_numbers, journal_path, make_durable, retire
from headwater.storage.disk.journal_reader import (
    Damage,
    NamedStream,
    Torn,
    check_header,
    describe_streams,
    find_owners,
    is_unused,
    read_journals,
)
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.records import (
    CREATE,
    DELETE,
    AppendRecord,
    CreateRecord,
    DamagedRecord,
    DeleteRecord,
    KeepRecord,
    Record,
    decode,
    stream_of,
)
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.segments import START as SEGMENT_START
from headwater.storage.disk.segments import check_header as check_segment_header
from headwater.storage.disk.segments import segment_numbers, segment_path
from headwater.storage.disk.stream import DiskStream

log: Final = logging.getLogger("headwater.disk")


def recover(
    journals: Path,
    segments: Path,
    catalog: Catalog,
    registry: Registry,
    metrics: EngineMetrics,
    *,
    durable: bool,
    faults: Faults = NO_FAULTS,
) -> int:
    """Bring the registry to the last acknowledged state; return the number of the next journal."""
    faults.reach("recovery-started")
    started = perf_counter()
    first = int(catalog.meta("journal_from"))
    numbers = [number for number in journal_numbers(journals) if number >= first]
    _check_complete(journals, numbers, first, registry)
    files = [journal_path(journals, number) for number in numbers]
    known = {number for number, _, _ in catalog.segments()}
    _refuse_newer(segments, known)
    replay = Replay(registry)
    ends = _replay(files, replay, faults)
    if durable and ends:
        for path, end in ends.items():
            make_durable(path, end, faults)
        sync_directory(journals, faults)
    try:
        retire(journals, first)  # the process may have died after a checkpoint, before it did this
    except OSError as error:
        log.warning("could not delete obsolete journal files", extra={"error": error})
    faults.reach("recovery-retired")
    _delete_orphans(segments, known)
    faults.reach("recovery-cleaned")
    # Empty files at the end were prepared but never used. The first of them stays and is
    # overwritten: a start that finds no journal file at all would report it as missing.
    number = first + len(files)
    while number > first and journal_path(journals, number - 1) not in ends:
        number -= 1
        journal_path(journals, number + 1).unlink(missing_ok=True)
    faults.reach("recovery-replayed")
    metrics.recovered_records = replay.records
    metrics.recovery_seconds = perf_counter() - started
    if replay.records:
        log.info(
            "recovered",
            extra={"records": replay.records, "seconds": round(metrics.recovery_seconds, 3)},
        )
        # `headwater info` shows these metrics; a failure to store them must not prevent the start.
        with suppress(CatalogFailed, sqlite3.DatabaseError):
            catalog.put("metrics", metrics.dump())
    return number


def _replay(files: list[Path], replay: "Replay", faults: Faults) -> dict[Path, int]:
    """Apply the records of journal files; return the end of the last record in each."""
    ends: dict[Path, int] = {}
    used = [path for path in files if not is_unused(path)]
    for path in used:
        check_header(path)
    for path, item in read_journals(used):
        if isinstance(item, Damage):
            reason = "a record does not match its checksum"
            lost = replay.describe(find_owners(path, item).streams)
            raise StoreDamaged(str(path), item.position, reason + lost)
        if isinstance(item, Torn):
            _cut(path, item.position, faults)
            log.warning("cut off a torn batch", extra={"file": path, "position": item.position})
            continue
        try:
            replay.apply(decode(item.body))
        except DamagedRecord as error:
            reason = f"{error}{replay.describe([stream_of(item.body)])}"
            raise StoreDamaged(str(path), item.position, reason) from error
        ends[path] = item.end
    replay.finish()
    return ends


def _check_complete(journals: Path, numbers: list[int], first: int, registry: Registry) -> None:
    expected = list(range(first, first + len(numbers)))
    if numbers != expected:
        missing = next(number for number in expected if number not in numbers)
        raise StoreDamaged(str(journal_path(journals, missing)), 0, "the file is missing")
    if not numbers and registry.next_epoch > 1:
        raise StoreDamaged(str(journal_path(journals, first)), 0, "the file is missing")


def _cut(path: Path, position: int, faults: Faults) -> None:
    """Truncate a file durably: a torn batch must not reappear once later files have records."""
    with path.open("rb+") as file:
        file.truncate(position)
        sync(file.fileno(), path, faults)


def _refuse_newer(segments: Path, known: set[int]) -> None:
    """Refuse segments of a newer version; an unreadable segment does not prevent a start."""
    for number in known:
        path = segment_path(segments, number)
        with suppress(StoreDamaged, OSError), path.open("rb") as file:
            check_segment_header(path, file.read(SEGMENT_START))


def _delete_orphans(segments: Path, known: set[int]) -> None:
    """Delete the segments of unfinished checkpoints and compactions, and obsolete ones."""
    for number in segment_numbers(segments):
        if number not in known:
            try:
                segment_path(segments, number).unlink()
            except OSError as error:
                log.warning("could not delete an obsolete segment", extra={"error": error})


class Replay:
    """Applies records in the order of the journal."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._touched: dict[int, DiskStream] = {}
        self.records = 0

    def apply(self, record: Record) -> None:
        """Apply one record; a record that the catalog already has changes nothing."""
        self.records += 1
        registry = self._registry
        if isinstance(record, CreateRecord):
            registry.next_epoch = max(registry.next_epoch, record.stream + 1)
            if registry.by_number(record.stream) is None:
                stream = registry.make(record.stream, record.meta)
                registry.put(stream)
                registry.created(stream, record.data, closed=record.meta.closed)
                self._touched[record.stream] = stream
            return
        if isinstance(record, KeepRecord):
            registry.documents.put(record.documents)
            return
        found = registry.by_number(record.stream)
        if found is None:
            raise DamagedRecord("it belongs to an unknown stream")
        if isinstance(record, DeleteRecord):
            if not found.deleted:
                registry.deleted(found)
            return
        self._append(found, record)

    def _append(self, stream: DiskStream, record: AppendRecord) -> None:
        end = stream.durable.end
        if record.start < end or (not record.data and stream.durable.closed):
            return
        if record.start > end:
            raise DamagedRecord(f"bytes {end} to {record.start} before it are missing")
        self._registry.appended(stream, record.data, record.extras, record.now)
        self._touched[stream.number] = stream

    def describe(self, streams: Iterable[int]) -> str:
        """Describe streams with the paths that the catalog and the journal so far provide."""
        numbers = [number for number in dict.fromkeys(streams) if number]
        return describe_streams(*(NamedStream(number, self._path(number)) for number in numbers))

    def _path(self, number: int) -> str | None:
        stream = self._registry.by_number(number)
        return None if stream is None else stream.path

    def finish(self) -> None:
        """Continue all streams from the end of the journal."""
        for stream in self._touched.values():
            self._registry.replayed(stream)
        self._registry.changed.clear()


class StreamCount:
    """Counts the live streams of the catalog and of the journal after it."""

    def __init__(self, db: sqlite3.Connection | None) -> None:
        self._db = db
        self._created: set[int] = set()
        self._deleted: set[int] = set()

    def follow(self, body: bytes) -> None:
        """Count one record; a record that the catalog already has changes nothing."""
        number = stream_of(body)
        if body[0] == CREATE and self._is_live(number) is None:
            self._created.add(number)
        elif body[0] == DELETE:
            self._created.discard(number)
            if self._is_live(number):
                self._deleted.add(number)

    def _is_live(self, number: int) -> bool | None:
        if self._db is None:
            return None
        query = "SELECT NOT deleted FROM streams WHERE id = ?"
        row = self._db.execute(query, (number,)).fetchone()
        return None if row is None else bool(row[0])

    @property
    def count(self) -> int:
        known = 0
        if self._db is not None:
            query = "SELECT count(*) FROM streams WHERE NOT deleted"
            known = int(self._db.execute(query).fetchone()[0])
        return known + len(self._created) - len(self._deleted)
