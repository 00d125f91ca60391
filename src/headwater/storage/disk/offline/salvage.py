"""Replaying a damaged journal: records that can't be applied are dropped and reported.

An append after a dropped one would leave a gap in its stream, so it is dropped too. Other streams
are not affected.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from headwater.protocol.lifecycle import WriterState
from headwater.storage.disk.journal_reader import NamedStream, describe_streams
from headwater.storage.disk.offline.catalog_repair import guess
from headwater.storage.disk.records import AppendRecord, CreateMeta, CreateRecord, DeleteRecord
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.replay import (
    AlreadyKnown,
    Applies,
    DamagedHeader,
    DamagedPart,
    Decision,
    Gap,
    Replayed,
    TornWrite,
    UnknownStream,
    Unreadable,
    apply_record,
    decide_replay,
    path_in,
    replay,
)

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
        self._lost: Counter[tuple[int, str | None]] = Counter()
        self._lost_bytes: Counter[int] = Counter()
        self.dropped: list[str] = []
        self.recovered: list[str] = []
        self.truncated: set[int] = set()
        """Streams that lost, or may have lost, appends after their end."""

    def run(self, files: list[Path], report: Callable[[int], None]) -> None:
        """Apply all records of journal files."""
        for step in replay(files, self._known):
            place = f"journal/{step.path.name}, byte {step.position}"
            match step:
                case TornWrite():
                    self.dropped.append(f"{place}: an unfinished write is cut off.")
                case DamagedPart():
                    self._drop_part(step)
                case Replayed():
                    report(step.end - step.position)
                    self._follow(place, step.decision)
                case DamagedHeader():
                    pass  # its records may be intact
        for number in list(self._found):
            self._materialise(number)
        for (number, path), count in self._lost.items():
            stream = describe_streams(NamedStream(number, path))
            self.dropped.append(
                f"{count} appends with {self._lost_bytes[number]} bytes{stream} are dropped: they "
                "follow lost appends."
            )

    def _known(self, number: int) -> WriterState | None:
        stream = self._registry.by_number(number)
        return None if stream is None else stream.durable

    def _drop_part(self, part: DamagedPart) -> None:
        """Drop a damaged part, and report its streams as far as they are known."""
        complete = part.complete
        named = []
        for number in dict.fromkeys(part.streams):
            path = self._truncate(number)
            if path is None:
                complete = complete and number in self._found
            named.append(describe_streams(NamedStream(number, path)))
        line = (
            f"journal/{part.path.name}, bytes {part.position} to {part.end}: dropped, since they "
            f"don't match their checksum{','.join(named)}."
        )
        if not complete:
            line += " It is unknown whether more streams lost records there."
        self.dropped.append(line)

    def _follow(self, place: str, decision: Decision | Unreadable) -> None:
        match decision:
            case Unreadable(number):
                self.dropped.append(f"{place}: the record is dropped, {decision}.")
                self._truncate(number)
            case Applies(CreateRecord() as record) | UnknownStream(CreateRecord() as record):
                self._create(record)
            case Applies(record):
                apply_record(self._registry, record)
            case AlreadyKnown(AppendRecord() as record):
                # Segments have the bytes, but the closure or the producer may be new.
                apply_record(self._registry, msgspec.structs.replace(record, data=b""))
            case UnknownStream(DeleteRecord() as record):
                self._found.pop(record.stream, None)
            case UnknownStream(AppendRecord() as record) if (
                record.stream in self._found or not record.start
            ):
                self._found.setdefault(record.stream, UnnamedStream(0, 0, guess(record.data)))
                self._materialise(record.stream)
                self._follow(place, decide_replay(record, self._known(record.stream)))
            case UnknownStream(AppendRecord() as record) | Gap(record):
                self._lose(record)

    def _lose(self, record: AppendRecord) -> None:
        self._lost[record.stream, self._truncate(record.stream)] += 1
        self._lost_bytes[record.stream] += len(record.data)

    def _truncate(self, number: int) -> str | None:
        """Note that a stream lost bytes; return its path, or None for a stream that is unknown."""
        path = path_in(self._registry, number)
        if path is not None:
            self.truncated.add(number)
        return path

    def _create(self, record: CreateRecord) -> None:
        registry = self._registry
        other = registry.find(record.meta.path)
        if other is not None:  # the record of its deletion is lost
            registry.deleted(other)
            if other.forks:
                registry.drop(other)
                other.path = self._free_path(other.number)
                registry.put(other)
        found = self._found.pop(record.stream, None)
        apply_record(registry, record, None if found is None else found.end)

    def _materialise(self, number: int) -> None:
        """Create a stream for bytes whose path is lost."""
        found = self._found.pop(number)
        path = self._free_path(number)
        meta = CreateMeta(
            path, found.content_type, None, None, None, closed=False, now=self._now, at=found.start
        )
        apply_record(self._registry, CreateRecord(number, meta, b""), found.end)
        self.recovered.append(
            f"Stream {number} lost its path and its settings: it is now {path}, "
            f"{found.content_type}."
        )

    def _free_path(self, number: int) -> str:
        path = RECOVERED.format(number)
        while self._registry.find(path) is not None:
            path += "-"
        return path
