"""Checkpoint scheduling: when a checkpoint starts, its worker thread, and retries.

A checkpoint starts between two batches when one of its thresholds is reached. What a checkpoint
writes is the business of `checkpoint`; `compaction` follows each successful one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

from headwater.storage.disk import checkpoint
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.compaction import Compactor
from headwater.storage.disk.disk_space import DISK_FULL_ERRORS, DiskSpace
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import SyncFailed
from headwater.storage.disk.group_commit import GroupCommit
from headwater.storage.disk.journal import Journal
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.segments import (
    segment_numbers,
    segment_path,
)

log: Final = logging.getLogger("headwater.disk")
_RETRY_SECONDS: Final = 1.0
_READERS_SECONDS: Final = 5.0


class Checkpointer:
    """Runs checkpoints, one at a time, then deletes and compacts what they made obsolete."""

    def __init__(
        self,
        journal: Journal,
        segments: Path,
        options: DiskOptions,
        catalog: Catalog,
        registry: Registry,
        commits: GroupCommit,
        forget: Callable[[list[int]], None],
        metrics: EngineMetrics,
        *,
        space: DiskSpace,
        faults: Faults = NO_FAULTS,
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._journal = journal
        self._segments = segments
        self._options = options
        self._catalog = catalog
        self._registry = registry
        self._commits = commits
        self._forget = forget
        self._metrics = metrics
        self._faults = faults
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="headwater-checkpoint")
        known = [number for number, _, _ in catalog.segments()]
        self._next_segment = max([*segment_numbers(segments), *known, 0]) + 1
        self._running: asyncio.Future[None] | None = None
        self._collecting = False
        """Whether a snapshot is being collected: no batch may be applied meanwhile."""
        self._failed_snapshot: checkpoint.CheckpointSnapshot | None = None
        """A snapshot to be retried: the journal was already rotated for it."""
        self._undeleted_segments: set[int] = set()
        """Obsolete segments whose deletion failed."""
        self._requested = False
        """Whether a checkpoint starts after the next batch, whatever the thresholds."""
        self._failed_at = float("-inf")
        self._compacted_at = float("-inf")
        self._readers_served_at = float("-inf")
        """When the last checkpoint for readers started."""
        stop = partial(commits.stop, "compaction failed")
        at_once = options.max_open_segments // 2
        self._compactor = Compactor(
            segments,
            catalog,
            metrics,
            self._delete_segments,
            stop,
            space.release_for_compaction,
            at_once,
            faults,
        )
        self._closing = False
        self._evicting = False
        self._timer = loop.call_later(options.checkpoint_seconds, self._tick)
        self._space = space
        self._holding_reserve = False
        """Whether the worker thread tries to hold the reserve."""

    async def close(self) -> None:
        """Write a final checkpoint and stop; no operation may be submitted any more."""
        self._closing = True
        self._timer.cancel()
        await self._commits.drain()
        if self._running is not None:
            await self._running
        if self._journal.preparing is not None:
            await asyncio.wait([self._journal.preparing])
        for _ in self._roll_back_failed():
            await asyncio.sleep(0)
        if self._has_unsaved():
            self._start()
            if self._running is not None:
                await self._running
        await self._loop.run_in_executor(None, self._worker.shutdown)
        await self._compactor.close()

    def after_batch(self) -> None:
        """Start a checkpoint if one is due; called between two batches."""
        registry, options = self._registry, self._options
        fill_level = self._journal.fill_level
        if (
            registry.unsaved_bytes >= options.tail_budget // 4
            or len(registry.dirty) >= options.max_dirty_streams
            or fill_level >= 1
            or self._space.refusal is not None
            or self._requested
        ):
            self._start()
        elif fill_level >= 0.5:
            self._prepare(soon_full=True)
        if registry.unsaved_bytes >= options.tail_budget:
            # The checkpoint may still wait for its journal file.
            self._commits.paused = self._running is not None or self._journal.preparing is not None
            if not self._commits.paused:
                self._space.memory_filled_up()
        else:
            self._commits.paused = self._collecting

    def still_refuses_writes(self) -> bool:
        """Try to end a write refusal; return whether it still holds."""
        if self._commits.failure is not None:
            return False  # the next batch reports the failure, which only a restart clears
        if self._commits.idle and self._running is None:
            # Neither a deletion nor a checkpoint is using the space of the reserve.
            if not self._space.lacks_reserve:
                self._free_space()
            elif not self._holding_reserve:
                self._holding_reserve = True
                holding = self._loop.run_in_executor(self._worker, self._space.accept_writes)
                holding.add_done_callback(self._reserve_tried)
        return self._space.refusal is not None

    def _reserve_tried(self, _: object) -> None:
        self._holding_reserve = False
        if self._space.refusal is not None and self._commits.idle and not self._closing:
            self._free_space()

    def _free_space(self) -> None:
        """Start a checkpoint, or a compaction: either may free disk space."""
        if self._has_unsaved():
            self._start()
        elif self._running is None:
            self._retry_compaction()

    async def release_reserve(self) -> bool:
        """Release the reserve for a deletion; return whether it was held."""
        return await self._loop.run_in_executor(None, self._space.release_for_deletion)

    def checkpoint_for_readers(self) -> None:
        """Start a checkpoint so that long reads are sent from a segment, which costs less."""
        now = perf_counter()
        if now - self._readers_served_at >= _READERS_SECONDS and self._commits.between_batches:
            self._readers_served_at = now
            self._start()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._options.checkpoint_seconds, self._tick)
        if self._has_unsaved():
            self._requested = True  # a busy store may only start one between two batches
            if self._commits.between_batches:
                self._start()

    def _has_unsaved(self) -> bool:
        registry = self._registry
        unsaved = registry.dirty or registry.removed or registry.documents.unsaved
        return bool(unsaved) or self._failed_snapshot is not None

    def _start(self) -> None:
        """Rotate the journal, and start a checkpoint of what the older files hold."""
        if self._running is not None or self._commits.failure is not None or not self._may_start():
            return
        snapshot = self._failed_snapshot
        if snapshot is not None and not self._deletions_may_help():
            self._failed_snapshot = None
            self._begin_running()
            self._worker.submit(self._save, snapshot, self._new_segment())
        elif self._commits.journal.is_empty or self._rotate_journal():
            self._begin_running()
            self._advance(self._take_snapshot())

    def _begin_running(self) -> None:
        self._requested = False
        self._running = self._loop.create_future()

    def _take_snapshot(self) -> Iterator[None]:
        """Take a snapshot and start to write it; yields between two slices."""
        yield from self._roll_back_failed()
        snapshot = checkpoint.begin(self._registry, self._commits.journal.number)
        yield from checkpoint.collect(snapshot, self._registry, self._options.streams_per_turn)
        self._worker.submit(self._save, snapshot, self._new_segment())

    def _advance(self, steps: Iterator[None]) -> None:
        """Take one slice of a snapshot, and the next one in a later turn of the loop."""
        try:
            for _ in steps:
                self._commits.paused = self._collecting = True
                self._loop.call_soon(self._advance, steps)
                return
        except Exception as failure:  # noqa: BLE001 - the state in memory is unknown now
            self._commits.stop("could not take a snapshot for a checkpoint", failure)
            self._end_running()
        if self._collecting:
            self._collecting = False
            if self._running is None or self._registry.unsaved_bytes < self._options.tail_budget:
                self._commits.resume()

    def _end_running(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.set_result(None)

    def _new_segment(self) -> int:
        self._next_segment += 1
        return self._next_segment - 1

    def _retry_compaction(self) -> None:
        """Compact after a failed checkpoint: it may free disk space."""
        now = perf_counter()
        if now - self._compacted_at >= _RETRY_SECONDS:
            self._compacted_at = now
            self._compactor.begin(self._new_segment)

    def _may_start(self) -> bool:
        return self._closing or perf_counter() - self._failed_at >= _RETRY_SECONDS

    def _deletions_may_help(self) -> bool:
        """Return whether a new snapshot, which has the latest deletions, may fit on a full disk.

        Otherwise the failed snapshot is retried as it is: each rotation adds a journal file.
        """
        failure = self._space.failure
        return bool(self._registry.removed) and failure is not None and failure.full

    def _roll_back_failed(self) -> Iterator[None]:
        """Return a failed snapshot to the registry: the next one includes it."""
        snapshot, self._failed_snapshot = self._failed_snapshot, None
        if snapshot is not None:
            yield from checkpoint.roll_back(
                snapshot, self._registry, self._options.streams_per_turn
            )

    def _rotate_journal(self) -> bool:
        """Switch to a new journal file, so that the older ones hold exactly the snapshot.

        Return whether the switch happened; a file may have to be prepared first.
        """
        journal = self._journal
        if not journal.has_next:
            if not self._closing or journal.preparing is not None:
                self._requested = True  # it starts once the next file is ready
                self._prepare()
                return False
            try:
                journal.create_next()
            except OSError as error:
                log.error(  # noqa: TRY400 - the stack adds nothing
                    "final checkpoint skipped, the next start replays the journal",
                    extra={"error": error},
                )
                return False
        self._commits.journal = journal.rotate(self._worker)
        return True

    def _save(self, snapshot: checkpoint.CheckpointSnapshot, segment: int) -> None:
        """Write a checkpoint, and delete what it made obsolete; runs in the worker thread."""
        error: Exception | None = None
        try:
            unused = self._write(snapshot, segment)
        except Exception as failure:  # noqa: BLE001 - reported on the loop
            error = failure
        else:
            self._retire(snapshot.journal_from)
            self._delete_segments([*unused, *self._undeleted_segments])
            self._space.checkpoint_succeeded(self._journal.drop_spares)
        self._loop.call_soon_threadsafe(self._finished, snapshot, error)

    def _retire(self, before: int) -> None:
        """Delete obsolete journal files; the next checkpoint retries what fails."""
        self._faults.reach("journal-before-delete")
        try:
            self._journal.retire(before)
        except OSError as error:
            log.error(  # noqa: TRY400 - the stack adds nothing
                "could not delete obsolete journal files, will retry after the next checkpoint",
                extra={"error": error},
            )
        self._faults.reach("journal-deleted")

    def _write(self, snapshot: checkpoint.CheckpointSnapshot, segment: int) -> list[int]:
        save = partial(
            checkpoint.write,
            snapshot,
            self._segments,
            segment,
            self._catalog,
            self._metrics,
            self._faults,
        )
        try:
            return save()
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS or not self._space.release():
                raise
            # The checkpoint may free more space than it takes.
            return save()

    def _finished(self, snapshot: checkpoint.CheckpointSnapshot, error: Exception | None) -> None:
        if error is None:
            self._release(self._complete(snapshot))
        else:
            self._release(self._handle_failure(snapshot, error))

    def _release(self, steps: Iterator[None]) -> None:
        """Take one step after a checkpoint, and the next one in a later turn of the loop."""
        try:
            for _ in steps:
                self._loop.call_soon(self._release, steps)
                return
        except Exception as failure:  # noqa: BLE001 - the state in memory is unknown now
            self._commits.stop("could not release memory after a checkpoint", failure)
        self._end_running()
        self._commits.resume()

    def _complete(self, snapshot: checkpoint.CheckpointSnapshot) -> Iterator[None]:
        """Release what was saved; yields between two slices."""
        yield from checkpoint.complete(
            snapshot, self._registry, self._catalog, self._options.streams_per_turn
        )
        self._metrics.checkpoints += 1
        self._metrics.checkpoint_seconds.add(perf_counter() - snapshot.started)
        self.evict_soon()
        self._compactor.begin(self._new_segment)

    def _handle_failure(
        self, snapshot: checkpoint.CheckpointSnapshot, error: Exception
    ) -> Iterator[None]:
        """Keep the snapshot for the next attempt; yields between two slices."""
        self._failed_snapshot = snapshot
        if self._closing:
            yield from self._roll_back_failed()
        if isinstance(error, SyncFailed):
            self._commits.stop("checkpoint failed", error)
            return
        log.error("checkpoint failed, journal files are kept, will retry", extra={"error": error})
        self._pause_after(f"a checkpoint failed: {error}", error)
        self._space.checkpoint_failed()
        self._retry_compaction()

    def _pause_after(self, reason: str, error: BaseException) -> None:
        """Pause before the next attempt, and refuse writes beyond the memory budget."""
        self._failed_at = perf_counter()
        memory_full = self._registry.unsaved_bytes >= self._options.tail_budget
        self._space.failed(reason, error, memory_full=memory_full)

    def evict_soon(self) -> None:
        """Evict idle streams in a later turn of the loop: the caller may hold one."""
        if not self._evicting:
            self._evicting = True
            self._loop.call_soon(self._evict)

    def _evict(self) -> None:
        self._evicting = False
        if self._registry.evict(self._options.max_loaded_streams) and not self._closing:
            self.evict_soon()

    def _delete_segments(self, segments: list[int]) -> None:
        """Delete segments that the catalog no longer lists; called in a thread.

        The next checkpoint, and a start, retry those that can't be deleted.
        """
        for number in segments:
            try:
                segment_path(self._segments, number).unlink(missing_ok=True)
            except OSError as error:
                log.error(  # noqa: TRY400 - the stack adds nothing
                    "could not delete an obsolete segment, will retry after the next checkpoint",
                    extra={"error": error},
                )
                self._undeleted_segments.add(number)
            else:
                self._undeleted_segments.discard(number)
        self._forget(segments)  # only now: a reader that waited may have opened one again

    def _prepare(self, *, soon_full: bool = False) -> None:
        """Create the next journal file in the worker thread, unless there is one."""
        journal = self._journal
        busy = journal.has_next or journal.preparing is not None
        if not busy and not self._closing and self._may_start():
            journal.prepare(self._worker, self._prepared, soon_full=soon_full)

    def _prepared(self, error: BaseException | None) -> None:
        if isinstance(error, SyncFailed):
            # Its name may never reach the disk, even if a second sync succeeds.
            self._commits.stop("the next journal file was not synced", error)
        elif error is not None:
            log.error("could not create the next journal file", extra={"error": error})
            self._pause_after(f"there is no next journal file: {error}", error)
        elif self._requested and self._commits.between_batches and not self._closing:
            self._start()
        if self._running is None:
            self._commits.resume()
