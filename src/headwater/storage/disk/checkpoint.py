"""Checkpoints: the contents of the journal move into one new segment and the catalog.

The loop takes a snapshot between two batches, when it switches to a new journal file: the snapshot
is the state at that point of the journal. A thread writes the segment, syncs it, and commits the
catalog with the number of the new journal file. From then on the older files are obsolete.
"""

import errno
from pathlib import Path
from time import perf_counter

import msgspec

from headwater.protocol.byte_requests import Buffer
from headwater.protocol.producers import ProducerState
from headwater.storage.disk.catalog import Catalog, CatalogChanges, StreamRow
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import SyncFailed
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.segments import SegmentWriter, segment_path
from headwater.storage.disk.stream import DiskStream


class SavedStream(msgspec.Struct):
    """A stream in a snapshot, and what a failed checkpoint has to return to it."""

    stream: DiskStream
    end: int
    producers: dict[str, ProducerState]
    row: bool


class CheckpointSnapshot(msgspec.Struct):
    """Everything that one checkpoint writes."""

    journal_from: int
    """The first journal file to replay over it."""
    next_epoch: int
    started: float
    rows: list[StreamRow] = []
    producers: list[tuple[int, str, int, int]] = []
    data: list[tuple[int, int, list[Buffer]]] = []
    """Stream, start and bytes of each extent."""
    saved: list[SavedStream] = []
    removed: list[int] = []
    documents: list[tuple[str, bytes | None]] = []


def take(registry: Registry, journal_from: int) -> CheckpointSnapshot:
    """Take a snapshot of all durable state that no checkpoint has; reset the registry's counts."""
    snapshot = CheckpointSnapshot(journal_from, registry.next_epoch, perf_counter())
    for stream in registry.dirty.values():
        log = stream.tail_log
        row = stream.row_changed
        if row:
            snapshot.rows.append(stream.row())
            stream.row_changed = False
        if log.end > log.start:
            snapshot.data.append((stream.number, log.start, log.slice(log.start, log.end)))
        producers = stream.unsaved_producers
        if producers:
            stream.unsaved_producers = {}
            snapshot.producers += [
                (stream.number, producer_id, *state) for producer_id, state in producers.items()
            ]
        # A stream without unsaved producers keeps its own dict, which must not count as saved.
        snapshot.saved.append(SavedStream(stream, log.end, producers or {}, row))
        stream.in_checkpoint = True
        stream.new = False
    snapshot.data.sort(key=lambda item: item[0])
    snapshot.removed = list(registry.removed)
    registry.removing = registry.removed
    registry.removed = set()
    registry.saving_bytes = registry.dirty_bytes
    registry.dirty = {}
    registry.dirty_bytes = 0
    snapshot.documents = registry.documents.take()
    return snapshot


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
    if snapshot.data:
        writer = SegmentWriter(folder, segment, faults=faults)
        try:
            for stream, start, buffers in snapshot.data:
                writer.add(stream, start, buffers)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
        size = sum(extent.length for extent in writer.extents)
        extents = writer.extents
    faults.reach("segment-written")
    faults.reach("catalog-before-commit")
    changes = CatalogChanges(
        streams=snapshot.rows,
        producers=snapshot.producers,
        removed=snapshot.removed,
        extents=extents,
        segment_bytes=size,
        segment=segment,
        journal_from=snapshot.journal_from,
        next_epoch=snapshot.next_epoch,
        metrics=metrics.with_checkpoint(size, perf_counter() - snapshot.started).dump(),
        documents=snapshot.documents,
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


def complete(snapshot: CheckpointSnapshot, registry: Registry, catalog: Catalog) -> None:
    """Drop from memory what the segment and the catalog now hold."""
    for saved in snapshot.saved:
        stream = saved.stream
        stream.in_checkpoint = False
        registry.saved(stream)
        before = stream.tail_log.start
        stream.tail_log.drop_before(saved.end)
        stream.producers.saved(saved.producers, catalog)
        if not stream.deleted or stream.forks:
            registry.tail_bytes -= stream.tail_log.start - before
    registry.removing = set()
    registry.saving_bytes = 0
    registry.documents.succeeded()


def roll_back(snapshot: CheckpointSnapshot, registry: Registry) -> None:
    """Return a failed snapshot to the registry: the next checkpoint has to write it."""
    for saved in snapshot.saved:
        stream = saved.stream
        stream.in_checkpoint = False
        if stream.number in registry.removed or stream.number in registry.removing:
            continue
        registry.dirty.setdefault(stream.number, stream)
        stream.row_changed = stream.row_changed or saved.row
        for producer_id, state in saved.producers.items():
            stream.unsaved_producers.setdefault(producer_id, state)
    registry.removed |= registry.removing
    registry.removing = set()
    registry.dirty_bytes += registry.saving_bytes
    registry.saving_bytes = 0
    registry.documents.failed()
