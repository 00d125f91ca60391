"""Group commit: one fsync makes the operations of many writers durable.

Operations are submitted with their records. They are written to the journal at the end of the turn;
those that arrive while the sync runs form the next batch. When a sync has finished:

1. every operation of the batch is applied, so that readers can see it;
2. a checkpoint is started if one is due;
3. the next batch is written and its sync started;
4. the writers of the finished batch are acknowledged, while the disk works on the next one;
5. readers are notified, in a later turn of the event loop.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final, Protocol

from headwater.storage.disk.faults import HOLD_SECONDS, NO_FAULTS, Faults
from headwater.storage.disk.fsync import Sync, SyncFailed
from headwater.storage.disk.journal import JournalWriter
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.immediate_future import ImmediateFuture

log: Final = logging.getLogger("headwater.disk")


class Operation(Protocol):
    """A change that was accepted and is not durable yet."""

    def apply(self) -> None:
        """Make the change visible: it is durable."""

    def revert(self) -> None:
        """Undo the change: it will not be durable."""


CommitFuture = ImmediateFuture[OSError | None]
"""The outcome of a batch: None once it is durable, or the error that prevented it."""


class GroupCommit:
    """Commits operations in batches, in the order in which they were submitted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: JournalWriter,
        sync: Sync | None,
        metrics: EngineMetrics,
        after_batch: Callable[[], None],
        notify: Callable[[], None],
        faults: Faults = NO_FAULTS,
    ) -> None:
        """Call `after_batch` when a batch is applied, `notify` when its writers are acknowledged.

        No batch is in flight during `after_batch`.
        """
        self._loop = loop
        self._sync = sync
        self._metrics = metrics
        self._after_batch = after_batch
        self._notify = notify
        self._faults = faults
        self._operations: list[Operation] = []
        self._records: list[list[bytes]] = []
        self._commit: CommitFuture = ImmediateFuture(loop)
        self._in_flight: tuple[list[Operation], CommitFuture] | None = None
        self._started = 0.0
        self._scheduled = False
        self.journal = journal
        self.paused = False
        """Whether batches wait until a checkpoint has freed memory."""
        self.failure: OSError | None = None
        """Why writes are stopped until a restart: a sync failed, or a durable batch could not be
        applied."""

    @property
    def idle(self) -> bool:
        return self._in_flight is None and not self._operations

    @property
    def between_batches(self) -> bool:
        """Whether no batch is in flight, though operations may wait for the next one."""
        return self._in_flight is None

    def add(self, record: list[bytes], operation: Operation) -> CommitFuture:
        """Submit an operation with its record."""
        self._operations.append(operation)
        self._records.append(record)
        if not self._scheduled and self._in_flight is None:
            self._schedule()
        return self._commit

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._begin)

    def resume(self) -> None:
        """Write batches again after a pause."""
        self.paused = False
        if self._operations and self._in_flight is None:
            self._begin()

    def stop(self, reason: str, error: Exception) -> OSError:
        """Stop writing until a restart, and return the error that writers are given."""
        # An I/O error explains itself; any other is a defect, and its stack is logged.
        unexpected = None if isinstance(error, OSError) else error
        log.critical(
            "%s; writes are stopped until the server is restarted",
            reason,
            exc_info=unexpected,
            extra={"error": error},
        )
        if self.failure is None:
            self.failure = _as_os_error(error)
        return self.failure

    async def drain(self) -> None:
        """Wait until every submitted operation is durable or has failed."""
        while not self.idle:
            if self._operations:
                await self._commit
            elif self._in_flight is not None:
                await self._in_flight[1]

    def _begin(self) -> None:
        self._scheduled = False
        if self._in_flight is not None or not self._operations or self.paused:
            return
        journal = self.journal
        batch = (self._operations, self._commit)
        records = self._records
        self._operations, self._records, self._commit = [], [], ImmediateFuture(self._loop)
        self._in_flight = batch
        before = journal.position
        if self.failure is not None:
            self._fail(self.failure)
            return
        self._started = perf_counter()
        try:
            journal.write(records)
        except SyncFailed as error:
            self._synced(error)
            return
        except Exception as error:  # noqa: BLE001 - such as no memory for a copy of the batch
            self._write_failed(_as_os_error(error))
            return
        self._metrics.batches += 1
        self._metrics.batch_operations += len(batch[0])
        self._metrics.journal_bytes += journal.position - before
        if self._sync is None:
            self._synced(None)
        else:
            self._start_sync(self._sync)

    def _start_sync(self, sync: Sync) -> None:
        if self._faults.holds_sync():
            self._loop.call_later(HOLD_SECONDS, self._start_sync, sync)
        else:
            sync.start(self.journal.fd, self._sync_done)

    def _sync_done(self, error: OSError | None) -> None:
        if error is None and self._faults.fails("sync-fails"):
            error = OSError(errno.EIO, "injected")
        self._synced(error)

    def _synced(self, error: OSError | None) -> None:
        if error is not None:
            self._fail(self.stop("sync failed", error))
            return
        self._faults.reach("journal-synced")
        self._metrics.sync_seconds.add(perf_counter() - self._started)
        assert self._in_flight is not None  # noqa: S101 - a sync belongs to a batch
        operations, commit = self._in_flight
        rest = iter(operations)
        operation: Operation | None = None
        try:
            for operation in rest:
                operation.apply()
        except Exception as failure:  # noqa: BLE001 - the writers of the batch must be answered
            self._apply_failed(operation, rest, commit, failure)
            return
        self._in_flight = None
        try:
            self._after_batch()
        except Exception as failure:  # noqa: BLE001 - this batch is durable, and none follows it
            self.stop("checkpoint scheduling failed after a commit", failure)
        try:
            if self._operations and not self._scheduled:
                if self._sync is not None:
                    self._begin()
                else:  # without a sync `_begin` would recurse once for each batch
                    self._schedule()
        finally:  # this batch is durable, whatever becomes of the next one
            commit.set_result(None)
            self._notify()

    def _write_failed(self, error: OSError) -> None:
        """Refuse the batch, and cut off what was written of it so that a replay can't find it."""
        log.error("writing the journal failed", extra={"error": error})
        try:
            self.journal.truncate()
        except OSError as worse:
            self.stop("could not cut off a refused batch", worse)
        self._fail(error)

    def _apply_failed(
        self,
        failed: Operation | None,
        rest: Iterator[Operation],
        commit: CommitFuture,
        error: Exception,
    ) -> None:
        """Stop: later operations were accepted on top of one that can't be applied.

        Those that were applied stay so. No writer of the batch is acknowledged: a restart decides
        whether its operations took effect.
        """
        self._in_flight = (([failed] if failed else []) + list(rest), commit)
        self._fail(self.stop("could not apply a durable batch", error))

    def _fail(self, error: OSError) -> None:
        """Revert what is in flight and what was accepted on top of it, newest first."""
        commits = [self._commit]
        operations = self._operations
        if self._in_flight is not None:
            operations = self._in_flight[0] + operations
            commits.insert(0, self._in_flight[1])
        self._in_flight = None
        self._operations, self._records, self._commit = [], [], ImmediateFuture(self._loop)
        for operation in reversed(operations):
            operation.revert()
        self._metrics.failed_batches += 1
        for commit in commits:
            commit.set_result(error)


def _as_os_error(error: Exception) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.EIO, str(error) or repr(error))
