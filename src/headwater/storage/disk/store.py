"""The disk store: what is acknowledged is on disk.

It asks the rules of the protocol, queues records for the group commit, and answers once they are
durable. Reads use the bytes in memory, then the segments that the catalog lists.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from time import time
from typing import Final

from headwater.errors import StoreDamaged, StoreNotOpen, StreamDamaged
from headwater.protocol.byte_requests import serve
from headwater.protocol.expiry import is_expired
from headwater.protocol.lifecycle import (
    Accepted,
    Append,
    Create,
    Exists,
    NewStream,
    decide_append,
    decide_create,
    missing,
)
from headwater.protocol.offsets import Now, Offset
from headwater.protocol.producers import Duplicate, ProducerState
from headwater.protocol.refusals import Missing
from headwater.storage.disk.catalog import FILE as CATALOG_FILE
from headwater.storage.disk.catalog import Catalog, CatalogFailed, CatalogFull
from headwater.storage.disk.checkpointer import Checkpointer
from headwater.storage.disk.data_directory import DirectoryLock
from headwater.storage.disk.disk_space import DISK_FULL_ERRORS, DiskSpace
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import choose_fsync, make_directory
from headwater.storage.disk.group_commit import GroupCommit
from headwater.storage.disk.journal import Journal, journal_numbers
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.operations import (
    AppendOperation,
    CreateOperation,
    DeleteOperation,
    PutDocumentsOperation,
)
from headwater.storage.disk.options import MIB, DiskOptions
from headwater.storage.disk.read_executor import ReadExecutor, held
from headwater.storage.disk.records import (
    NOTHING_ELSE,
    AppendExtras,
    create_meta,
    encode_append,
    encode_create,
    encode_delete,
    encode_keep,
)
from headwater.storage.disk.recovery import recover
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.segments import SegmentFiles, segment_numbers
from headwater.storage.disk.stream import DiskStream
from headwater.storage.notifications import Notifications
from headwater.storage.refusals import (
    AppendRefusal,
    BytesDamaged,
    CreateRefusal,
    DeleteRefusal,
    ReadRefusal,
    StoreUnwritable,
)
from headwater.storage.store import (
    MAX_EXPIRED_AT_ONCE,
    Appended,
    Chunk,
    Created,
    SplitPoints,
    Store,
    StreamInfo,
)

log: Final = logging.getLogger("headwater.disk")

_LONG_READ: Final = 1024 * 1024
"""A read of this much from memory makes a checkpoint worthwhile."""


class DiskStore(Store):
    """Streams in a directory."""

    sends_files = True

    def __init__(
        self,
        folder: Path,
        options: DiskOptions | None = None,
        clock: Callable[[], float] = time,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.folder = folder
        self._faults = faults
        self.options = options or DiskOptions()
        self._clock = clock
        self.metrics = EngineMetrics()
        self._notifications = Notifications()
        self._opened = False

    # Opening and closing

    async def open(self) -> None:
        folder = self.folder
        journals, segments = folder / "journal", folder / "segments"
        for path in (folder, journals, segments):
            make_directory(path)
        with ExitStack() as undo:
            self._lock = undo.enter_context(DirectoryLock(folder))
            is_new = not journal_numbers(journals) and not segment_numbers(segments)
            if not is_new:
                _refuse_lost_catalog(folder)
            self._space = DiskSpace(folder, min(MIB, self.options.journal_bytes))
            self._space.release_if_full()  # SQLite needs a little space even to read
            self._catalog = undo.enter_context(closing(Catalog(folder, create=is_new)))
            self._recover(journals, segments)
            undo.pop_all()
        self._opened = True

    def _recover(self, journals: Path, segments: Path) -> None:
        options, catalog, metrics = self.options, self._catalog, self.metrics
        loop = asyncio.get_running_loop()
        registry = self._registry = Registry(catalog, int(catalog.meta("next_epoch")))
        # Accesses before a crash may not have been saved: no sliding TTL ends early for that.
        clean = catalog.meta("clean", 1)
        registry.oldest_access = catalog.meta("oldest_access", 0.0) if clean else self._clock()
        durable = options.durability == "fsync"
        if durable:
            catalog.make_durable()
        number = recover(
            journals, segments, catalog, registry, metrics, durable=durable, faults=self._faults
        )
        self._space.hold()
        journal = self._journal = Journal(
            journals, number, options.journal_bytes, options.journal_records, self._faults
        )
        if catalog.meta("clean", 1):
            _mark_in_use(catalog, self._space)
        self._space.accept_writes()
        files = SegmentFiles(segments, options.max_open_segments, options.max_checked_blocks)
        self._reads = ReadExecutor(loop, registry, catalog, files)
        self._sync = choose_fsync(loop, journal.current.fd) if durable else None
        self._commits = GroupCommit(
            loop,
            journal.current,
            self._sync,
            metrics,
            after_batch=self._save_if_due,
            notify=self._notify,
            faults=self._faults,
        )
        self._checkpointer = Checkpointer(
            journal,
            segments,
            options,
            catalog,
            registry,
            self._commits,
            self._reads.forget,
            metrics,
            space=self._space,
            faults=self._faults,
        )

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        await self._checkpointer.close()
        await self._reads.close()
        self._journal.close()
        if self._sync is not None:
            self._sync.close()
        unsaved = self._registry.dirty or self._registry.documents.unsaved
        if not unsaved and self._commits.failure is None:
            with suppress(CatalogFailed):  # the next start is then handled as one after a crash
                self._catalog.put("oldest_access", self._registry.oldest_access)
                self._catalog.put("clean", 1)
        self._catalog.close()
        self._lock.release()

    @property
    def ready(self) -> bool:
        return self._opened

    @property
    def committing(self) -> bool:
        return self._opened and not self._commits.between_batches

    # Writing

    async def create(self, path: str, request: Create, now: float) -> Created | CreateRefusal:
        if request.fork is None:
            return await self._create(path, request, now)
        with self._registry.claimed(path):
            return await self._create(path, request, now)

    async def _create(self, path: str, request: Create, now: float) -> Created | CreateRefusal:
        """Create a stream, or a fork at a path that is claimed."""
        registry = self._registry
        while True:
            existing = await self._find(path, now)
            source: DiskStream | None = None
            if existing is None and request.fork is not None:
                source = await self._find(request.fork.source, now)
            rule = decide_create(path, request, existing, source)
            if source is None:
                decision = serve(rule, _no_source)
            else:
                try:
                    decision = await self._reads.serve(source, rule)
                except StreamDamaged as damage:
                    if source.deleted:
                        continue  # while its bytes were read
                    return self._report(source, damage)
                if not self._opened:
                    raise StoreNotOpen
                is_gone = source.changing or source.deleted
                if is_gone and isinstance(decision, NewStream):
                    continue
            # It may have been created while the source was looked up, or read.
            if registry.loaded(path) is existing:
                break
        if existing is not None and existing.uncommitted:
            error = await self._wait_durable(existing)
            if error is not None:
                return error
        if isinstance(decision, Exists):
            assert existing is not None  # noqa: S101 - it does
            return Created(existing.info(), new=False)
        if not isinstance(decision, NewStream):
            return decision
        space = self._space
        if space.refusal is not None and self._checkpointer.still_refuses_writes():
            return space.refusal
        number = registry.next_epoch
        registry.next_epoch += 1
        meta = create_meta(path, decision, 0 if source is None else source.number, now)
        stream = registry.make(number, meta)
        operation = CreateOperation(registry, stream, decision.data, closed=decision.closed)
        stream.commit = self._commits.add(encode_create(number, meta, decision.data), operation)
        if source is not None:
            source.commit = stream.commit
            registry.touch(source, now)
        error = await self._wait_durable(stream)
        return error or Created(stream.info(), new=True)

    async def append(self, path: str, request: Append, now: float) -> Appended | AppendRefusal:
        stream = self._registry.find_loaded(path) if self._opened else None
        if stream is None:
            stream = await self._find(path, now)
        claim = request.producer
        producer: ProducerState | None = None
        if claim is not None:
            producer_id = claim.producer_id
            while stream is not None and not stream.producers.knows(producer_id):
                await self._reads.load_producer(stream, producer_id)
                stream = await self._find(path, now)
            if stream is not None:
                producer = stream.producers.get(producer_id)
        decision = decide_append(path, stream, producer, request)
        if isinstance(decision, Accepted):
            assert stream is not None  # noqa: S101 - it would be missing
            space = self._space
            if space.refusal is not None and self._checkpointer.still_refuses_writes():
                return space.refusal
            extras = NOTHING_ELSE
            if claim is not None or request.close or request.seq is not None:
                extras = AppendExtras(request.close, request.seq, claim)
            start = stream.accepted.end
            record = encode_append(stream.number, start, now, extras, decision.data)
            operation = AppendOperation(self._registry, stream, decision, producer, extras, now)
            commit = stream.commit = self._commits.add(record, operation)
            after = decision.after
            tail = stream.lineage.name(after.end)
            failure = await commit
            if failure is not None:
                return self._unwritable(failure)
            return Appended(tail, after.closed, decision.producer)
        if isinstance(decision, Missing):
            return decision
        assert stream is not None  # noqa: S101 - it would be missing
        # The state that this answer depends on has to be durable first.
        if stream.uncommitted and (error := await self._wait_durable(stream)) is not None:
            return error
        self._registry.touch(stream, now)
        if isinstance(decision, Duplicate):
            tail = stream.info().tail
            return Appended(tail, stream.durable.closed, decision.producer, repeated=True)
        return decision

    async def delete(self, path: str, now: float) -> DeleteRefusal | None:
        while True:
            stream = await self._find_live(path, now)
            if not isinstance(stream, DiskStream):
                return stream
            with ExitStack() as holding:
                if await self._hold_sources(stream, holding):
                    return await self._delete(stream, now=now)

    async def _hold_sources(self, stream: DiskStream, holding: ExitStack) -> bool:
        """Have the sources in memory that the deletion of a stream may change, until it is durable.

        Return whether the stream may still be deleted; if so, the last lookup ends in this turn.
        """
        holding.enter_context(held(stream))
        while True:
            sources, missing_number = self._registry.sources_to_change(stream)
            if missing_number is None:
                holding.enter_context(held(*sources))
                return True
            with held(*sources):
                source = await self._reads.find_number(missing_number)
            if not self._opened:
                raise StoreNotOpen
            if stream.changing or stream.deleted:
                return False
            if source is None:
                return True  # the catalog is damaged: the deletion goes no further than that

    async def _delete(self, *streams: DiskStream, now: float) -> StoreUnwritable | None:
        """Delete streams in one batch; none of them may be changing."""
        rest = list(streams)
        while True:
            for stream in rest:
                operation = DeleteOperation(self._registry, stream)
                stream.commit = self._commits.add(encode_delete(stream.number, now), operation)
            error: StoreUnwritable | None = None
            for stream in streams:
                error = await self._wait_durable(stream) or error
            if error is None or not error.full or not await self._checkpointer.release_reserve():
                return error
            # Another request may delete one now.
            rest = [stream for stream in streams if not stream.changing and not stream.deleted]

    async def expire(self, now: float, limit: int) -> int:
        if not self._opened:
            raise StoreNotOpen
        left: list[DiskStream] = []
        try:
            return await self._expire_due(now, limit, left)
        finally:
            for stream in left:  # only now: one that can't be deleted yet would be due at once
                self._registry.schedule(stream)

    async def _expire_due(self, now: float, limit: int, left: list[DiskStream]) -> int:
        """Delete what has expired, batch by batch; adds to `left` what is to be examined again."""
        removed = 0
        due = self._registry.due(now)
        cold = self._catalog.expired(now)
        while removed < limit:
            most = min(limit - removed, MAX_EXPIRED_AT_ONCE)
            paths = list(islice(due, most))
            if not paths:
                found = await self._reads.run(partial(_page, cold, most))
                if not found:
                    break
                paths = [path for path in found if not self._registry.is_loaded(path)]
            count, error = await self._expire(paths, now, left)
            removed += count
            if error is not None:
                break
        return removed

    async def _expire(
        self, paths: list[str], now: float, left: list[DiskStream]
    ) -> tuple[int, StoreUnwritable | None]:
        """Delete those of some streams that have expired; return how many were deleted."""
        registry = self._registry
        expired: dict[int, DiskStream] = {}
        with registry.claimed(*paths), ExitStack() as holding:
            await self._reads.load_all(paths)
            for path in paths:
                stream = registry.loaded(path)
                if stream is not None and stream.source:
                    await self._hold_sources(stream, holding)
            if not self._opened:
                raise StoreNotOpen
            for path in paths:
                stream = registry.loaded(path)
                if stream is None or stream.deleted:
                    continue
                if stream.changing or not self._is_expired(stream, now):
                    left.append(stream)
                else:
                    expired[stream.number] = stream  # it may be due twice
            if not expired:
                await asyncio.sleep(0)
                return 0, None
            error = await self._delete(*expired.values(), now=now)
        if error is not None:
            left += expired.values()
        return sum(stream.deleted for stream in expired.values()), error

    # Reading

    async def read(
        self, path: str, start: Offset | Now, limit: int, now: float, *, files: bool = False
    ) -> Chunk | ReadRefusal:
        while True:
            stream = await self._find_live(path, now)
            if not isinstance(stream, DiskStream):
                return stream
            try:
                chunk = await self._reads.chunk(stream, start, limit, files=files)
            except StreamDamaged as damage:
                if stream.deleted:
                    continue  # while this read waited
                return self._report(stream, damage)
            if isinstance(chunk, Chunk):
                from_memory = chunk.end.byte - max(chunk.start.byte, stream.tail_log.start)
                if files and from_memory >= _LONG_READ:
                    self._checkpointer.checkpoint_for_readers()
                if stream.expires:
                    self._registry.touch(stream, now)
            return chunk

    async def split_points(
        self, path: str, start: Offset, end: Offset | Now, size: int, limit: int, now: float
    ) -> SplitPoints | ReadRefusal:
        while True:
            stream = await self._find_live(path, now)
            if not isinstance(stream, DiskStream):
                return stream
            try:
                return await self._reads.split_points(stream, start, end, size, limit)
            except StreamDamaged as damage:
                if not stream.deleted:
                    return self._report(stream, damage)

    async def head(self, path: str, now: float) -> StreamInfo | Missing:
        stream = await self._find_live(path, now)
        return stream.info() if isinstance(stream, DiskStream) else stream

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._notifications.watch(path, callback)

    def observe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self._notifications.observe(callback)

    async def list_streams(
        self, prefix: str, after: str, limit: int, now: float
    ) -> list[StreamInfo]:
        if not self._opened:
            raise StoreNotOpen
        while page := await self._reads.list_streams(prefix, after, limit):
            living = [
                stream.info()
                for stream in page
                if not stream.expires or not self._is_expired(stream, now)
            ]
            if living:
                return living
            after = page[-1].path
        return []

    # Documents

    async def put_documents(self, documents: Mapping[str, bytes | None]) -> StoreUnwritable | None:
        if not self._opened:
            raise StoreNotOpen
        operation = PutDocumentsOperation(self._registry.documents, documents)
        failure = await self._commits.add(encode_keep(documents), operation)
        return None if failure is None else self._unwritable(failure)

    async def get_documents(self, prefix: str) -> dict[str, bytes]:
        if not self._opened:
            raise StoreNotOpen
        return await self._reads.documents(prefix)

    # Shared by all methods

    async def _find(self, path: str, now: float) -> DiskStream | None:
        """Find the stream at a path, once it is not changing; delete it if it has expired."""
        while True:
            if not self._opened:
                raise StoreNotOpen
            stream = self._registry.loaded(path)
            if stream is None:
                stream = await self._reads.find(path)
                if not self._opened:
                    raise StoreNotOpen
                if stream is None:
                    return None
            if len(self._registry) > self.options.max_loaded_streams:
                self._checkpointer.evict_soon()
            if stream.changing:
                await self._wait_durable(stream)
            elif stream.deleted or not stream.expires or not self._is_expired(stream, now):
                return stream
            elif await self._delete_expired(stream, now) is not None:
                return None  # it can't be deleted, but must not be visible either

    async def _delete_expired(self, stream: DiskStream, now: float) -> StoreUnwritable | None:
        """Delete a stream that has expired, unless it is deleted or accessed meanwhile."""
        with ExitStack() as holding:
            is_live = await self._hold_sources(stream, holding)
            if is_live and self._is_expired(stream, now):
                return await self._delete(stream, now=now)
        return None

    async def _find_live(self, path: str, now: float) -> DiskStream | Missing:
        """Find a stream that is not deleted, or return why there is none."""
        stream = await self._find(path, now)
        return missing(path, stream) if stream is None or stream.deleted else stream

    def _is_expired(self, stream: DiskStream, now: float) -> bool:
        if self._notifications.is_watched(stream.path):
            self._registry.touch(stream, now)
        return is_expired(stream.config.expiry, stream.last_access, now)

    async def _wait_durable(self, stream: DiskStream) -> StoreUnwritable | None:
        """Wait until all accepted changes of a stream are durable."""
        error = await stream.commit if stream.commit is not None else None
        return None if error is None else self._unwritable(error)

    def _unwritable(self, error: OSError) -> StoreUnwritable:
        """Describe why a change was not made durable, and what helps.

        The errno alone does not decide: an engine that has stopped needs a restart.
        """
        stopped = self._commits.failure is not None
        full = error.errno in DISK_FULL_ERRORS and not stopped
        return StoreUnwritable(error.strerror or str(error), full=full, stopped=stopped)

    def _report(self, stream: DiskStream, damage: StreamDamaged) -> BytesDamaged:
        log.error(
            "stored bytes are damaged",
            extra={"file": damage.file, "position": damage.position, "stream": stream.path},
        )
        return BytesDamaged(stream.path, f"{damage.file}, byte {damage.position}")

    def _save_if_due(self) -> None:
        self._checkpointer.after_batch()

    def _notify(self) -> None:
        changed, self._registry.changed = self._registry.changed, set()
        self._notifications.changed(changed)


def _no_source(start: int, end: int) -> bytes:
    """Read from no source: only a fork requests bytes."""
    raise AssertionError(start, end)


def _page(items: Iterator[str], count: int) -> list[str]:
    return list(islice(items, count))


def _refuse_lost_catalog(folder: Path) -> None:
    """Refuse to start over files without a catalog: they would be taken for leftovers.

    SQLite treats an empty file as a new database, and writes to it as soon as it is opened.
    """
    catalog = folder / CATALOG_FILE
    if not catalog.exists():
        raise StoreDamaged(str(catalog), 0, "the file is missing, but there are streams here")
    if not catalog.stat().st_size:
        raise StoreDamaged(str(catalog), 0, "the file is empty, but there are streams here")


def _mark_in_use(catalog: Catalog, space: DiskSpace) -> None:
    """Record that accesses may be lost from here on; a full disk must not prevent reads."""
    try:
        catalog.put("clean", 0)
    except CatalogFull:
        space.release()
        try:
            catalog.put("clean", 0)
        except CatalogFull as error:
            log.warning("disk full, could not mark the catalog as in use", extra={"error": error})
        space.hold()
