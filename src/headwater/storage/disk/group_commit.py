"""Group commit: one sync acknowledges everyone who arrived while the last one ran.

Operations are handed over with the bytes of their records. At the end of the turn they are written;
while the sync runs, those that arrive form the next batch. When it is done, all of the batch is
published, the next one is written, and while the disk is at that everyone who waited goes on, in
the same turn of the loop.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Generator, Iterator
from contextvars import Context
from time import perf_counter
from typing import Any, Final, Protocol

from headwater.storage.disk.faults import HOLD_SECONDS, NO_FAULTS, Faults
from headwater.storage.disk.fsync import Sync, SyncFailed
from headwater.storage.disk.journal import JournalWriter
from headwater.storage.disk.metrics import Metrics

log: Final = logging.getLogger("headwater.disk")


class Operation(Protocol):
    """A change that was decided on and waits to be durable."""

    def apply(self) -> None:
        """Let it be seen: it is durable."""

    def revert(self) -> None:
        """Take it back: it never happened."""


class CommitFuture:
    """What everyone of one batch waits for: an awaitable like a future, but at once.

    Waiting gives None once the batch is durable, or the error that kept it from being so.
    """

    __slots__ = ("_asyncio_future_blocking", "_callbacks", "_loop", "done", "error")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._callbacks: list[tuple[Callable[[Any], object], Context | None]] = []
        self._loop = loop
        self.done = False
        self.error: OSError | None = None

    def __await__(self) -> Generator["CommitFuture", None, OSError | None]:
        if not self.done:
            self._asyncio_future_blocking = True
            yield self
        return self.error

    def add_done_callback(
        self, callback: Callable[[Any], object], *, context: Context | None = None
    ) -> None:
        self._callbacks.append((callback, context))

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        kept = [item for item in self._callbacks if item[0] != callback]
        removed = len(self._callbacks) - len(kept)
        self._callbacks = kept
        return removed

    def resolve(self, error: OSError | None) -> None:
        """Have everyone who waits go on, now."""
        self.done = True
        self.error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback, context in callbacks:
            try:
                if context is None:
                    callback(self)
                else:
                    context.run(callback, self)
            except Exception:
                # The others wait for the same batch, and nobody would come back to them.
                log.exception("what followed a commit has failed")

    # What a task asks of whatever it waits for

    def result(self) -> None:
        """Nothing is raised here: the error, if any, is what waiting gives."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - as futures have it
        """A commit can't be called off; a cancelled task is told once it is done."""
        return False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop


class GroupCommit:
    """Turns operations into durable batches, in the order in which they came."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: JournalWriter,
        sync: Sync | None,
        metrics: Metrics,
        between: Callable[[], None],
        published: Callable[[], None],
        faults: Faults = NO_FAULTS,
    ) -> None:
        """Call `between` when no batch is under way, and `published` once one can be seen."""
        self._loop = loop
        self._sync = sync
        self._metrics = metrics
        self._between = between
        self._published = published
        self._faults = faults
        self._operations: list[Operation] = []
        self._records: list[list[bytes]] = []
        self._commit = CommitFuture(loop)
        self._in_flight: tuple[list[Operation], CommitFuture] | None = None
        self._started = 0.0
        self._scheduled = False
        self.journal = journal
        self.paused = False
        """While true no new batch is begun: memory has to be freed first."""
        self.failure: OSError | None = None
        """Set when a sync has failed, or what is durable could not be shown: from then on nothing
        is written until a restart."""

    @property
    def idle(self) -> bool:
        return self._in_flight is None and not self._operations

    @property
    def between_batches(self) -> bool:
        """Nothing is being made durable, though something may wait to be."""
        return self._in_flight is None

    def add(self, record: list[bytes], operation: Operation) -> CommitFuture:
        """Hand over an operation with its record."""
        self._operations.append(operation)
        self._records.append(record)
        if not self._scheduled and self._in_flight is None:
            self._schedule()
        return self._commit

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._begin)

    def resume(self) -> None:
        """Go on after being held."""
        self.paused = False
        if self._operations and self._in_flight is None:
            self._begin()

    def stop(self, what: str, error: Exception) -> OSError:
        """Write nothing more until a restart; gives what those who ask for it are told."""
        # A stack is worth its lines only where nobody expected the error.
        unexpected = None if isinstance(error, OSError) else error
        log.critical(
            "%s, nothing more is written until a restart error=%s", what, error, exc_info=unexpected
        )
        if self.failure is None:
            self.failure = _as_os_error(error)
        return self.failure

    async def settle(self) -> None:
        """Wait until everything that was handed over is durable, or has failed."""
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
        self._operations, self._records, self._commit = [], [], CommitFuture(self._loop)
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
        except Exception as failure:  # noqa: BLE001 - nobody else would answer those who wait
            self._publish_failed(operation, rest, commit, failure)
            return
        self._in_flight = None
        try:
            self._between()
        except Exception as failure:  # noqa: BLE001 - this batch is done, and no other begins
            self.stop("no way to go on behind a batch", failure)
        try:
            if self._operations and not self._scheduled:
                if self._sync is not None:
                    self._begin()
                else:  # this batch is done before `_begin` returns: don't pile them up
                    self._schedule()
        finally:  # whatever becomes of the next one, this one is durable
            try:
                self._published()
            except Exception:
                log.exception("telling readers of a batch has failed")
            commit.resolve(None)

    def _write_failed(self, error: OSError) -> None:
        """Refuse the batch, and make sure that nothing of it is found after a crash."""
        log.error("writing the journal failed error=%s", error)
        try:
            self.journal.cut()
        except OSError as worse:
            self.stop("a batch that was refused can't be cut off", worse)
        self._fail(error)

    def _publish_failed(
        self,
        failed: Operation | None,
        rest: Iterator[Operation],
        commit: CommitFuture,
        error: Exception,
    ) -> None:
        """Stop: what is durable can't be shown, so what was decided on top of it has no ground.

        Those that were shown stay so. Nobody of the batch is told that it is done: whether it is
        will be seen after a restart.
        """
        self._in_flight = (([failed] if failed else []) + list(rest), commit)
        self._fail(self.stop("what is durable can't be shown", error))

    def _fail(self, error: OSError) -> None:
        """Take back what is under way and what was decided on top of it, newest first."""
        commits = [self._commit]
        operations = self._operations
        if self._in_flight is not None:
            operations = self._in_flight[0] + operations
            commits.insert(0, self._in_flight[1])
        self._in_flight = None
        self._operations, self._records, self._commit = [], [], CommitFuture(self._loop)
        for operation in reversed(operations):
            operation.revert()
        self._metrics.failed_batches += 1
        for commit in commits:
            commit.resolve(error)


def _as_os_error(error: Exception) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.EIO, str(error) or repr(error))
