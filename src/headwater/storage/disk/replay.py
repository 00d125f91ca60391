"""Replay: the journal after the last checkpoint, and what each record in it does to its stream.

A start, a check, a repair and a backup all follow the journal by `replay`. So they agree on which
record continues its stream, and which part of a file is damaged. They differ in what they do then:
a start and a backup raise (`require_intact`), a check reports, and a repair drops and reports.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from headwater.errors import StoreDamaged
from headwater.protocol.lifecycle import WriterState
from headwater.storage.disk.journal import START
from headwater.storage.disk.journal_reader import (
    HEADER_DAMAGE,
    JournalEntry,
    NamedStream,
    describe_streams,
    find_owners,
    read_header,
    read_journals,
)
from headwater.storage.disk.records import (
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
from headwater.storage.disk.stream import DiskStream


class Applies(msgspec.Struct, frozen=True):
    """The record continues its stream."""

    record: Record


class AlreadyKnown(msgspec.Struct, frozen=True):
    """The stream already has what the record holds."""

    record: CreateRecord | AppendRecord


class Gap(msgspec.Struct, frozen=True):
    """The record appends after bytes that are missing: an append before it is lost."""

    record: AppendRecord
    end: int

    def __str__(self) -> str:
        return f"bytes {self.end} to {self.record.start} before it are missing"


class UnknownStream(msgspec.Struct, frozen=True):
    """There is no such stream, or no such source of a fork: the record of its creation is lost."""

    record: CreateRecord | AppendRecord | DeleteRecord

    def __str__(self) -> str:
        if isinstance(self.record, CreateRecord):
            return f"it creates a fork of the unknown stream {self.record.meta.source}"
        return "it belongs to an unknown stream"


class Unreadable(msgspec.Struct, frozen=True):
    """The checksum is right, but the bytes are not a record."""

    stream: int
    reason: str

    def __str__(self) -> str:
        return self.reason


Refused: TypeAlias = Gap | UnknownStream | Unreadable
Decision: TypeAlias = Applies | AlreadyKnown | Gap | UnknownStream
Lookup: TypeAlias = Callable[[int], WriterState | None]
"""Returns the state of the stream with a number, before the next record; None if there is none."""


def decide_replay(
    record: Record, stream: WriterState | None, source: WriterState | None = None
) -> Decision:
    """Decide what a record does to its stream; `source` is that of a fork that it creates."""
    if isinstance(record, AppendRecord):  # first: almost all records are appends
        if stream is None:
            return UnknownStream(record)
        if record.start > stream.end:
            return Gap(record, stream.end)
        known = record.start < stream.end or (not record.data and stream.closed)
        return AlreadyKnown(record) if known else Applies(record)
    if isinstance(record, CreateRecord):
        if stream is not None:
            return AlreadyKnown(record)
        return UnknownStream(record) if record.meta.source and source is None else Applies(record)
    if isinstance(record, DeleteRecord) and stream is None:
        return UnknownStream(record)
    return Applies(record)


class DamagedHeader(msgspec.Struct, frozen=True):
    """A file whose header is damaged; its records may be intact."""

    path: Path
    position: int = 0
    end: int = START
    reason: str = HEADER_DAMAGE
    streams: Sequence[int] = ()


class DamagedPart(msgspec.Struct, frozen=True):
    """A part of a file that fails its checksum."""

    path: Path
    position: int
    end: int
    streams: Sequence[int]
    """The streams that lost records here, as far as they are known."""
    complete: bool
    """Whether these are all of them."""
    reason: str = "a record does not match its checksum"


class Replayed(msgspec.Struct, frozen=True):
    """An intact record, and what it does."""

    path: Path
    position: int
    end: int
    decision: Decision | Unreadable

    @property
    def reason(self) -> str:
        return str(self.decision)

    @property
    def streams(self) -> Sequence[int]:
        decision = self.decision
        return (decision.stream if isinstance(decision, Unreadable) else decision.record.stream,)


class TornWrite(msgspec.Struct, frozen=True):
    """An unfinished write at the end of the journal, which was never acknowledged."""

    path: Path
    position: int


Step: TypeAlias = DamagedHeader | DamagedPart | Replayed | TornWrite


def replay(paths: Sequence[Path], known: Lookup) -> Iterator[Step]:
    """Follow journal files in order, oldest first.

    Apply each record before the next step: `known` is called before the record is decided on.
    """
    files = list(map(read_header, paths))
    while files and files[-1].unused:  # one before a file that was used is damaged
        files.pop()
    for file in files:
        if not file.intact:
            yield DamagedHeader(file.path)
    for path, item in read_journals(files):
        if isinstance(item, JournalEntry):
            yield Replayed(path, item.position, item.end, _decide(item.body, known))
        elif item.torn:
            yield TornWrite(path, item.position)
        else:
            yield DamagedPart(path, item.position, item.end, *find_owners(path, item))


def _decide(body: bytes, known: Lookup) -> Decision | Unreadable:
    try:
        record = decode(body)
    except DamagedRecord as error:
        return Unreadable(stream_of(body), str(error))
    source = None
    if isinstance(record, CreateRecord) and record.meta.source:
        source = known(record.meta.source)
    return decide_replay(record, known(record.stream) if record.stream else None, source)


def require_intact(
    step: DamagedHeader | DamagedPart | Replayed, path_of: Callable[[int], str | None]
) -> Applies | AlreadyKnown:
    """Return what a record does; raise `StoreDamaged`, with the paths of its streams, otherwise."""
    if isinstance(step, Replayed):
        decision = step.decision
        if isinstance(decision, (Applies, AlreadyKnown)):
            return decision
    numbers = [number for number in dict.fromkeys(step.streams) if number]
    names = describe_streams(*(NamedStream(number, path_of(number)) for number in numbers))
    raise StoreDamaged(str(step.path), step.position, step.reason + names)


# The streams in memory, over those in the catalog


def path_in(registry: Registry, number: int) -> str | None:
    """Return the path of a stream in a registry."""
    stream = registry.by_number(number)
    return None if stream is None else stream.path


def apply_record(
    registry: Registry, record: Record, stored: int | None = None
) -> DiskStream | None:
    """Apply a record to a registry; return the stream that it created or continued.

    Segments may have the bytes of a new stream up to `stored`.
    """
    if isinstance(record, CreateRecord):
        registry.next_epoch = max(registry.next_epoch, record.stream + 1)
        stream = registry.make(record.stream, record.meta)
        data = record.data
        if stored is not None:
            stream.start_after(stored)
            data = data[max(0, stored - record.meta.at) :]
        registry.put(stream)
        registry.created(stream, data, closed=record.meta.closed)
        return stream
    if isinstance(record, KeepRecord):
        registry.documents.put(record.documents)
        return None
    found = registry.by_number(record.stream)
    assert found is not None  # noqa: S101 - the record applies to it
    if isinstance(record, DeleteRecord):
        registry.deleted(found)
        return None
    registry.appended(found, record.data, record.extras, record.now)
    return found
