"""Checkpoints: the contents of the journal move into one new segment and the catalog.

The loop takes a snapshot between two batches, when it switches to a new journal file: the snapshot
is the state at that point of the journal. It holds values and references to bytes, collected in
slices; no batch is applied before the last one. A thread builds the rows, writes the segment, syncs
it, and commits the catalog with the number of the new journal file. From then on the older files
are obsolete, and the loop drops from memory what was saved, again in slices.
"""

import errno
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import msgspec

from headwater.protocol.byte_requests import Buffer
from headwater.protocol.producers import ProducerState
from headwater.storage.disk.catalog import Catalog, CatalogChanges, StreamRow
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import SyncFailed
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.segments import SegmentWriter, segment_path
from headwater.storage.disk.stream import DiskStream, StreamValues


class SavedStream(NamedTuple):
    """A stream in a snapshot, and what a failed checkpoint has to return to it."""

    stream: DiskStream
    values: StreamValues
    """The durable state."""
    start: int
    tail: list[Buffer]
    """The bytes from `start` that no segment has."""
    producers: dict[str, ProducerState]
    row: bool
    """Whether the catalog's row is out of date."""


class CheckpointSnapshot(msgspec.Struct):
    """Everything that one checkpoint writes."""

    journal_from: int
    """The first journal file to replay over it."""
    next_epoch: int
    started: float
    removed: Collection[int]
    documents: Mapping[str, bytes | None]
    saved: list[SavedStream] = []

    def rows(self) -> Iterator[StreamRow]:
        """Build the rows of the streams that have changed."""
        return (saved.stream.row(saved.values) for saved in self.saved if saved.row)

    def producers(self) -> Iterator[tuple[int, str, int, int]]:
        """Build the rows of the producers."""
        for saved in self.saved:
            for producer_id, state in saved.producers.items():
                yield saved.stream.number, producer_id, *state

    def tails(self) -> list[SavedStream]:
        """Return the streams with bytes to write, in the order of their numbers."""
        tails = [saved for saved in self.saved if saved.tail]
        return sorted(tails, key=lambda saved: saved.stream.number)


def take(registry: Registry, journal_from: int) -> CheckpointSnapshot:
    """Take a snapshot of all durable state that no checkpoint has."""
    snapshot = begin(registry, journal_from)
    for _ in collect(snapshot, registry, len(registry.collecting)):
        pass
    return snapshot


def begin(registry: Registry, journal_from: int) -> CheckpointSnapshot:
    """Begin a snapshot, and reset the registry's counts; nothing may be applied until its end."""
    registry.collecting, registry.dirty = registry.dirty, {}
    registry.saving_bytes, registry.dirty_bytes = registry.dirty_bytes, 0
    registry.removing, registry.removed = registry.removed, set()
    return CheckpointSnapshot(
        journal_from,
        registry.next_epoch,
        perf_counter(),
        registry.removing,
        registry.documents.take(),
    )


def collect(snapshot: CheckpointSnapshot, registry: Registry, slice_size: int) -> Iterator[None]:
    """Collect the changed streams; yields between two slices."""
    work = 0
    for stream in registry.collecting.values():
        log = stream.tail_log
        row, stream.row_changed = stream.row_changed, False
        tail = log.freeze() if log.end > log.start else []
        producers = stream.unsaved_producers
        if producers:
            stream.unsaved_producers = {}
        # A stream without unsaved producers keeps its own dict, which must not count as saved.
        saved = SavedStream(stream, stream.values(), log.start, tail, producers or {}, row)
        snapshot.saved.append(saved)
        stream.in_checkpoint = True
        stream.new = False
        work += 1 + len(tail)
        if work >= slice_size:
            work = 0
            yield
    registry.collecting = {}


def write(
    snapshot: CheckpointSnapshot,
    folder: Path,
    segment: int,
    catalog: Catalog,
    metrics: EngineMetrics,
    faults: Faults = NO_FAULTS,
) -> list[int]:
    """Write a snapshot, in the worker thread; return the obsolete segments."""
    faults.reach("segment-before-write")
    size = 0
    extents = []
    tails = snapshot.tails()
    if tails:
        writer = SegmentWriter(folder, segment, faults=faults)
        try:
            for saved in tails:
                writer.add(saved.stream.number, saved.start, saved.tail)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
        size = sum(extent.length for extent in writer.extents)
        extents = writer.extents
    faults.reach("segment-written")
    faults.reach("catalog-before-commit")
    changes = CatalogChanges(
        streams=snapshot.rows(),
        producers=snapshot.producers(),
        removed=snapshot.removed,
        extents=extents,
        segment_bytes=size,
        segment=segment,
        journal_from=snapshot.journal_from,
        next_epoch=snapshot.next_epoch,
        metrics=metrics.with_checkpoint(size, perf_counter() - snapshot.started).dump(),
        documents=snapshot.documents.items(),
    )
    try:
        unused = _commit(catalog, changes, faults)
    except SyncFailed:
        raise  # the commit may be on disk, and then needs the segment
    except BaseException:
        # Nothing was committed: the segment would only take disk space from the next attempt.
        segment_path(folder, segment).unlink(missing_ok=True)
        raise
    faults.reach("catalog-committed")
    metrics.segment_bytes += size  # not before: a failed checkpoint is written again
    return unused


def _commit(catalog: Catalog, changes: CatalogChanges, faults: Faults) -> list[int]:
    unused = catalog.apply(changes)
    if faults.fails("catalog-sync-fails"):
        raise SyncFailed(errno.EIO, "injected")
    return unused


def complete(
    snapshot: CheckpointSnapshot, registry: Registry, catalog: Catalog, slice_size: int
) -> Iterator[None]:
    """Drop from memory what the segment and the catalog now hold; yields between two slices."""
    work = 0
    for saved in snapshot.saved:
        stream = saved.stream
        stream.in_checkpoint = False
        registry.saved(stream)
        before = stream.tail_log.start
        stream.tail_log.drop_before(saved.values.durable.end)
        stream.producers.saved(saved.producers, catalog)
        if not stream.deleted or stream.forks:
            registry.tail_bytes -= stream.tail_log.start - before
        work += 1 + len(saved.tail)
        if work >= slice_size:
            work = 0
            yield
    registry.removing = set()
    registry.saving_bytes = 0
    registry.documents.succeeded()


def roll_back(snapshot: CheckpointSnapshot, registry: Registry, slice_size: int) -> Iterator[None]:
    """Return a failed snapshot to the registry, for the next one; yields between two slices."""
    for count, saved in enumerate(snapshot.saved, 1):
        stream = saved.stream
        stream.in_checkpoint = False
        if stream.number in registry.removed or stream.number in registry.removing:
            continue
        registry.dirty.setdefault(stream.number, stream)
        stream.row_changed = stream.row_changed or saved.row
        if saved.producers:
            stream.unsaved_producers = {**saved.producers, **stream.unsaved_producers}
        if count % slice_size == 0:
            yield
    registry.removed |= registry.removing
    registry.removing = set()
    registry.dirty_bytes += registry.saving_bytes
    registry.saving_bytes = 0
    registry.documents.failed()
