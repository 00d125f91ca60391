"""Replaying a damaged journal: records that can't be applied are dropped and reported.

An append after a dropped one would leave a gap in its stream, so it is dropped too. Other streams
are not affected.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from headwater.errors import StoreDamaged
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
from headwater.storage.disk.offline.catalog_repair import guess
from headwater.storage.disk.records import (
    AppendRecord,
    CreateMeta,
    CreateRecord,
    DamagedRecord,
    DeleteRecord,
    KeepRecord,
    Record,
    decode,
)
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.stream import DiskStream

RECOVERED: Final = "recovered/{}"


class UnnamedStream(NamedTuple):
    """Bytes of a stream whose path is lost."""

    start: int
    end: int
    content_type: str


class SalvageReplay:
    """Applies all valid records in journal order, and reports the others."""

    def __init__(self, registry: Registry, found: dict[int, UnnamedStream], now: float) -> None:
        self._registry = registry
        self._found = found
        self._now = now
        self._lost: Counter[tuple[int, str]] = Counter()
        self._lost_bytes: Counter[int] = Counter()
        self.dropped: list[str] = []
        self.recovered: list[str] = []
        self.truncated: set[int] = set()
        """Streams that lost, or may have lost, appends after their end."""

    def run(self, files: list[Path], report: Callable[[int], None]) -> None:
        """Apply all records of journal files."""
        for path, item in read_journals(list(self._usable(files))):
            name = f"journal/{path.name}, byte {item.position}"
            if isinstance(item, Torn):
                self.dropped.append(f"{name}: an unfinished write is cut off.")
            elif isinstance(item, Damage):
                self._damage(path, item)
            else:
                report(len(item.body))
                self._record(name, item.body)
        for number in list(self._found):
            self._materialise(number)
        for (number, path_of), count in self._lost.items():
            stream = describe_streams(NamedStream(number, path_of or None))
            self.dropped.append(
                f"{count} appends with {self._lost_bytes[number]} bytes{stream} are dropped: they "
                "follow lost appends."
            )

    def _usable(self, files: list[Path]) -> Iterator[Path]:
        for path in files:
            try:
                if is_unused(path):
                    continue
                check_header(path)
            except StoreDamaged:
                pass  # its records may still be intact
            yield path

    def _damage(self, path: Path, damage: Damage) -> None:
        """Drop a damaged part, and report its streams as far as they are known."""
        known, complete = find_owners(path, damage)
        named = []
        for number in dict.fromkeys(known):
            stream = self._registry.by_number(number)
            if stream is None:
                complete = complete and number in self._found
            else:
                self.truncated.add(number)
            named.append(
                describe_streams(NamedStream(number, None if stream is None else stream.path))
            )
        line = (
            f"journal/{path.name}, bytes {damage.position} to {damage.end}: dropped, since they "
            f"don't match their checksum{','.join(named)}."
        )
        if not complete:
            line += " It is unknown whether more streams lost records there."
        self.dropped.append(line)

    def _record(self, name: str, body: bytes) -> None:
        try:
            self._apply(decode(body))
        except DamagedRecord as error:
            self.dropped.append(f"{name}: the record is dropped, {error}.")

    def _apply(self, record: Record) -> None:
        if isinstance(record, CreateRecord):
            self._create(record)
            return
        if isinstance(record, KeepRecord):
            self._registry.documents.put(record.documents)
            return
        stream = self._registry.by_number(record.stream)
        if isinstance(record, DeleteRecord):
            if stream is not None and not stream.deleted:
                self._registry.deleted(stream)
            self._found.pop(record.stream, None)
            return
        if stream is None and (record.stream in self._found or not record.start):
            self._found.setdefault(record.stream, UnnamedStream(0, 0, guess(record.data)))
            stream = self._materialise(record.stream)
        if stream is None or record.start > stream.durable.end:
            self._lose(record, stream)
            return
        # A segment may already have the bytes, while the closure or the producer is new.
        data = b"" if record.start < stream.durable.end else record.data
        self._registry.appended(stream, data, record.extras, record.now)

    def _lose(self, record: AppendRecord, stream: DiskStream | None) -> None:
        self._lost[record.stream, "" if stream is None else stream.path] += 1
        self._lost_bytes[record.stream] += len(record.data)
        if stream is not None:
            self.truncated.add(record.stream)

    def _create(self, record: CreateRecord) -> None:
        registry = self._registry
        registry.next_epoch = max(registry.next_epoch, record.stream + 1)
        if registry.by_number(record.stream) is not None:
            return
        other = registry.find(record.meta.path)
        if other is not None:  # the record of its deletion is lost
            registry.deleted(other)
            if other.forks:
                self._rename(other)
        stream = registry.make(record.stream, record.meta)
        data = record.data
        found = self._found.pop(record.stream, None)
        if found is not None:
            stream.start_after(found.end)
            data = data[max(0, found.end - record.meta.at) :]
        registry.put(stream)
        registry.created(stream, data, closed=record.meta.closed)

    def _rename(self, stream: DiskStream) -> None:
        self._registry.drop(stream)
        stream.path = self._free_path(stream.number)
        self._registry.put(stream)

    def _materialise(self, number: int) -> DiskStream:
        """Create a stream for bytes whose path is lost."""
        registry = self._registry
        found = self._found.pop(number)
        path = self._free_path(number)
        meta = CreateMeta(
            path, found.content_type, None, None, None, closed=False, now=self._now, at=found.start
        )
        stream = registry.make(number, meta)
        stream.start_after(found.end)
        registry.next_epoch = max(registry.next_epoch, number + 1)
        registry.put(stream)
        registry.created(stream, b"", closed=False)
        self.recovered.append(
            f"Stream {number} lost its path and its settings: it is now {path}, "
            f"{found.content_type}."
        )
        return stream

    def _free_path(self, number: int) -> str:
        path = RECOVERED.format(number)
        while self._registry.find(path) is not None:
            path += "-"
        return path
