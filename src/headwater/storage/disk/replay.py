"""Replay: the journal after the last checkpoint, and what each record in it does to its stream.

A start, a check, a repair and a backup all follow the journal by `replay`. So they agree on which
record continues its stream, and which part of a file is damaged. They differ in what they do then:
a start and a backup raise (`require_intact`), a check reports, and a repair drops and reports.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from headwater.errors import StoreDamaged
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


class KnownStream(NamedTuple):
    """What is known of a stream before a record."""

    end: int
    closed: bool = False
    deleted: bool = False


class Applies(NamedTuple):
    """The record continues its stream."""

    record: Record


class AlreadyKnown(NamedTuple):
    """The stream already has what the record holds."""

    record: CreateRecord | AppendRecord


class Gap(NamedTuple):
    """The record appends after bytes that are missing: an append before it is lost."""

    record: AppendRecord
    end: int

    def __str__(self) -> str:
        return f"bytes {self.end} to {self.record.start} before it are missing"


class UnknownStream(NamedTuple):
    """The stream, or the source of a fork, was never created or is deleted: a record is lost."""

    record: CreateRecord | AppendRecord | DeleteRecord

    def __str__(self) -> str:
        if isinstance(self.record, CreateRecord):
            return f"it creates a fork of the unknown stream {self.record.meta.source}"
        return "it belongs to an unknown stream"


class Unreadable(NamedTuple):
    """The checksum is right, but the bytes are not a record."""

    reason: str

    def __str__(self) -> str:
        return self.reason


Refused: TypeAlias = Gap | UnknownStream | Unreadable
Decision: TypeAlias = Applies | AlreadyKnown | Gap | UnknownStream
Lookup: TypeAlias = Callable[[int], KnownStream | None]
"""Returns what is known of the stream with a number."""


def decide_replay(
    record: Record, stream: KnownStream | None, source: KnownStream | None = None
) -> Decision:
    """Decide what a record does to its stream; `source` is that of a fork that it creates."""
    if isinstance(record, KeepRecord):
        return Applies(record)
    if isinstance(record, CreateRecord):
        if stream is not None:
            return AlreadyKnown(record)
        lost = record.meta.source and (source is None or source.deleted)
        return UnknownStream(record) if lost else Applies(record)
    if stream is None or stream.deleted:
        return UnknownStream(record)
    if isinstance(record, DeleteRecord):
        return Applies(record)
    if record.start > stream.end:
        return Gap(record, stream.end)
    if record.start < stream.end or (not record.data and stream.closed):
        return AlreadyKnown(record)
    return Applies(record)


class DamagedHeader(NamedTuple):
    """A file whose header is damaged; its records may be intact."""

    path: Path
    position: int = 0
    end: int = START
    reason: str = HEADER_DAMAGE
    streams: Sequence[int] = ()


class DamagedPart(NamedTuple):
    """A part of a file that fails its checksum."""

    path: Path
    position: int
    end: int
    streams: Sequence[int]
    """The streams that lost records here, as far as they are known."""
    complete: bool
    """Whether these are all of them."""
    reason: str = "a record does not match its checksum"


class Replayed(NamedTuple):
    """An intact record, and what it does."""

    path: Path
    position: int
    end: int
    stream: int
    decision: Decision | Unreadable

    @property
    def reason(self) -> str:
        return str(self.decision)

    @property
    def streams(self) -> Sequence[int]:
        return (self.stream,)


class TornWrite(NamedTuple):
    """An unfinished write at the end of the journal, which was never acknowledged."""

    path: Path
    position: int


Step: TypeAlias = DamagedHeader | DamagedPart | Replayed | TornWrite


def replay(paths: Sequence[Path], known: Lookup) -> Iterator[Step]:
    """Follow journal files in order, oldest first.

    Apply each record before the next step: `known` is asked for the state before a record.
    """
    files = list(map(read_header, paths))
    while files and files[-1].unused:  # one before a file that was used is damaged
        files.pop()
    for file in files:
        if not file.intact:
            yield DamagedHeader(file.path)
    for path, item in read_journals(files):
        if isinstance(item, JournalEntry):
            decision = _decide(item.body, known)
            yield Replayed(path, item.position, item.end, stream_of(item.body), decision)
        elif item.torn:
            yield TornWrite(path, item.position)
        else:
            yield DamagedPart(path, item.position, item.end, *find_owners(path, item))


def _decide(body: bytes, known: Lookup) -> Decision | Unreadable:
    try:
        record = decode(body)
    except DamagedRecord as error:
        return Unreadable(str(error))
    source = record.meta.source if isinstance(record, CreateRecord) else 0
    stream = known(record.stream) if record.stream else None
    return decide_replay(record, stream, known(source) if source else None)


def require_intact(
    step: DamagedHeader | DamagedPart | Replayed, path_of: Callable[[int], str | None]
) -> Applies | AlreadyKnown:
    """Return what a record does; raise `StoreDamaged`, with the paths of its streams, otherwise."""
    if isinstance(step, Replayed) and not isinstance(step.decision, Refused):
        return step.decision
    numbers = [number for number in dict.fromkeys(step.streams) if number]
    names = describe_streams(*(NamedStream(number, path_of(number)) for number in numbers))
    raise StoreDamaged(str(step.path), step.position, step.reason + names)


# The streams in memory, over those in the catalog


def known_in(registry: Registry, number: int) -> KnownStream | None:
    """Return what a registry knows of a stream."""
    stream = registry.by_number(number)
    if stream is None:
        return None
    return KnownStream(stream.durable.end, stream.durable.closed, stream.deleted)


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
    if isinstance(record, KeepRecord):
        registry.documents.put(record.documents)
        return None
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
    found = registry.by_number(record.stream)
    assert found is not None  # noqa: S101 - the record applies to it
    if isinstance(record, DeleteRecord):
        registry.deleted(found)
        return None
    registry.appended(found, record.data, record.extras, record.now)
    return found
