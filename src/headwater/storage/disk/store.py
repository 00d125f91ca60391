"""The disk store: what is acknowledged is on disk.

It decides with the rules of the protocol, hands records to the group commit, and answers once they
are durable. Reads go to the bytes in memory, then through the catalog to the segments.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from time import time
from typing import Final

import msgspec

from headwater.errors import StoreDamaged, StoreNotOpen, StreamDamaged
from headwater.protocol import content_types
from headwater.protocol.content_types import media_type
from headwater.protocol.expiry import inherited_expiry
from headwater.protocol.forks import ForkOrigin, fork_point
from headwater.protocol.framing import EmptyArray, InvalidJson, frame
from headwater.protocol.lifecycle import (
    AlreadyClosed,
    Append,
    AppendPlan,
    Create,
    decide_append,
    existing_mismatch,
)
from headwater.protocol.offsets import Now, Offset
from headwater.protocol.producers import Repeated
from headwater.protocol.refusals import (
    ContentTypeMismatch,
    Missing,
    PathBlocked,
    SourceGone,
    SourceNotFound,
    StreamGone,
    StreamNotFound,
)
from headwater.storage.disk.catalog import FILE as CATALOG_FILE
from headwater.storage.disk.catalog import Catalog, CatalogFailed, CatalogFull
from headwater.storage.disk.checkpointer import Checkpointer
from headwater.storage.disk.data_directory import DirectoryLock
from headwater.storage.disk.disk_space import DISK_FULL_ERRORS, Reserve
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import choose_fsync, make_directory
from headwater.storage.disk.group_commit import GroupCommit
from headwater.storage.disk.journal import JournalWriter, journal_numbers
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.operations import (
    AppendOperation,
    CreateOperation,
    DeleteOperation,
    KeepOperation,
)
from headwater.storage.disk.options import MIB, DiskOptions
from headwater.storage.disk.read_executor import StoredBytes
from headwater.storage.disk.records import (
    NOTHING_ELSE,
    AppendExtras,
    CreateMeta,
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
from headwater.storage.read_path import split
from headwater.storage.refusals import (
    AppendRefusal,
    BytesDamaged,
    CreateRefusal,
    DeleteRefusal,
    ReadRefusal,
    StoreUnwritable,
)
from headwater.storage.store import (
    Appended,
    Chunk,
    Created,
    Splits,
    Store,
    StreamInfo,
)

log: Final = logging.getLogger("headwater.disk")

_LONG_READ: Final = 1024 * 1024
"""Read from memory, this much is worth a segment."""


class DiskStore(Store):
    """Streams in a directory."""

    has_files = True

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
            anew = not journal_numbers(journals) and not segment_numbers(segments)
            if not anew:
                _refuse_lost_catalog(folder)
            reserve = Reserve(folder, min(MIB, self.options.journal_bytes))
            reserve.lend()  # SQLite needs a little room even to read
            self._catalog = undo.enter_context(closing(Catalog(folder, anew=anew)))
            self._recover(journals, segments, reserve)
            undo.pop_all()
        self._opened = True

    def _recover(self, journals: Path, segments: Path, reserve: Reserve) -> None:
        options, catalog, metrics = self.options, self._catalog, self.metrics
        loop = asyncio.get_running_loop()
        registry = self._registry = Registry(catalog, int(catalog.meta("next_epoch")))
        # Reads before a crash may not have been saved: no sliding window ends early for it.
        clean = catalog.meta("clean", 1)
        registry.oldest_access = catalog.meta("oldest_access", 0.0) if clean else self._clock()
        durable = options.durability == "fsync"
        if durable:
            catalog.make_durable()
        number = recover(
            journals, segments, catalog, registry, metrics, durable=durable, faults=self._faults
        )
        reserve.hold()
        journal = JournalWriter(journals, number, options.journal_bytes, faults=self._faults)
        if catalog.meta("clean", 1):
            _mark_in_use(catalog, reserve)
        self._files = SegmentFiles(segments, options.max_open_segments, options.max_checked_blocks)
        self._bytes = StoredBytes(registry, catalog, self._files)
        self._sync = choose_fsync(loop, journal.fd) if durable else None
        self._commits = GroupCommit(
            loop,
            journal,
            self._sync,
            metrics,
            after_batch=self._save_if_due,
            notify=self._notify,
            faults=self._faults,
        )
        self._checkpointer = Checkpointer(
            journals,
            segments,
            options,
            catalog,
            registry,
            self._commits,
            self._files,
            metrics,
            reserve=reserve,
            faults=self._faults,
        )

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        await self._checkpointer.close()
        self._commits.journal.close()
        if self._sync is not None:
            self._sync.close()
        unsaved = self._registry.dirty or self._registry.documents.unsaved
        if not unsaved and self._commits.failure is None:
            with suppress(CatalogFailed):  # then the next start takes it for one after a crash
                self._catalog.put("oldest_access", self._registry.oldest_access)
                self._catalog.put("clean", 1)
        self._files.close()
        self._catalog.close()
        self._lock.release()

    @property
    def ready(self) -> bool:
        return self._opened

    # Creating

    async def create(self, path: str, request: Create, now: float) -> Created | CreateRefusal:
        existing = await self._find(path, now)
        if existing is not None:
            if existing.deleted:
                return PathBlocked(path)
            mismatch = existing_mismatch(
                path, existing.config, closed=existing.closed, request=request
            )
            if existing.pending and (error := await self._settled(existing)) is not None:
                return error
            return mismatch or Created(existing.info(), new=False)
        content_type = request.content_type or content_types.DEFAULT
        expiry = request.expiry
        source: DiskStream | None = None
        origin: ForkOrigin | None = None
        if request.fork is not None:
            source = await self._find(request.fork.source, now)
            if source is None:
                return SourceNotFound(request.fork.source)
            if source.deleted:
                return SourceGone(request.fork.source)
            if request.content_type and media_type(request.content_type) != source.media_type:
                return ContentTypeMismatch(
                    request.fork.source, source.media_type, request.content_type
                )
            found = self._fork_origin(source, request)
            if not isinstance(found, ForkOrigin):
                return found
            origin = found
            content_type = request.content_type or source.config.content_type
            expiry = inherited_expiry(source.config.expiry, request.expiry)
        media = media_type(content_type) or content_types.DEFAULT
        data = frame(request.body, media) if request.body else b""
        if isinstance(data, EmptyArray):
            data = b""  # PROTOCOL 9.1.3: on PUT an empty array is an empty stream
        if isinstance(data, InvalidJson):
            return data
        if source is not None and self._registry.at(path) is not None:
            return await self.create(path, request, now)  # created while we waited for the source
        meta = CreateMeta(
            path, content_type, expiry.ttl, expiry.expires_at, expiry.instant, request.close, now
        )
        if source is not None and origin is not None:
            meta = msgspec.structs.replace(
                meta,
                source_path=origin.source,
                source=source.number,
                anchor=tuple(origin.anchor),
                sub_offset=origin.sub_offset,
                at=origin.at,
            )
        if (
            self._checkpointer.write_refusal is not None
            and self._checkpointer.still_refuses_writes()
        ):
            return self._checkpointer.write_refusal
        registry = self._registry
        number = registry.next_epoch
        registry.next_epoch += 1
        stream = registry.make(number, meta)
        operation = CreateOperation(registry, stream, data, closed=request.close)
        stream.commit = self._commits.add(encode_create(number, meta, data), operation)
        if source is not None:
            source.commit = stream.commit
            registry.touch(source, now)
        error = await self._settled(stream)
        return error or Created(stream.info(), new=True)

    def _fork_origin(self, source: DiskStream, request: Create) -> ForkOrigin | CreateRefusal:
        assert request.fork is not None  # noqa: S101 - only asked for with a fork
        try:
            return fork_point(
                request.fork,
                source.lineage,
                source.log.end,
                source.media_type,
                partial(self._bytes.joined, source),
            )
        except StreamDamaged as damage:
            return self._report(source, damage)

    # Writing

    async def append(self, path: str, request: Append, now: float) -> Appended | AppendRefusal:
        stream = self._registry.at_hand(path) if self._opened else None
        if stream is None:
            stream = await self._find(path, now)
            if stream is None:
                return StreamNotFound(path)
        if stream.deleted:
            return StreamGone(path)
        plan = decide_append(stream, request)
        if type(plan) is AppendPlan:
            if (
                self._checkpointer.write_refusal is not None
                and self._checkpointer.still_refuses_writes()
            ):
                return self._checkpointer.write_refusal
            claim = request.producer
            extras = NOTHING_ELSE
            if claim is not None or request.close or request.seq is not None:
                extras = AppendExtras(request.close, request.seq, claim)
            data = plan.data
            record = encode_append(stream.number, stream.end, now, extras, data)
            operation = AppendOperation(self._registry, stream, data, extras, now)
            commit = stream.commit = self._commits.add(record, operation)
            answer = Appended(stream.tail, stream.closed, plan.producer)
            failure = await commit
            return answer if failure is None else self._unwritable(failure)
        # What the answer rests on has to be durable before it is given.
        if stream.pending and (error := await self._settled(stream)) is not None:
            return error
        self._registry.touch(stream, now)
        if isinstance(plan, Repeated):
            return Appended(stream.info().tail, stream.durable_closed, plan.highest, repeated=True)
        if isinstance(plan, AlreadyClosed):
            return Appended(stream.info().tail, closed=True, repeated=True)
        return plan  # type: ignore[return-value] # a plan was handled above, by its exact type

    async def delete(self, path: str, now: float) -> DeleteRefusal | None:
        stream = await self._find(path, now)
        if stream is None:
            return StreamNotFound(path)
        if stream.deleted:
            return StreamGone(path)
        return await self._delete(stream, now)

    async def _delete(self, stream: DiskStream, now: float) -> StoreUnwritable | None:
        operation = DeleteOperation(self._registry, stream)
        stream.commit = self._commits.add(encode_delete(stream.number, now), operation)
        error = await self._settled(stream)
        if error is not None and error.full and self._checkpointer.release_reserve():
            if stream.unsettled or stream.deleted:  # somebody else deletes it by now
                return await self._settled(stream)
            return await self._delete(stream, now)
        return error

    async def expire(self, now: float, limit: int) -> int:
        removed = 0
        left: list[DiskStream] = []
        due = self._registry.due(now)
        while removed < limit and (path := next(due, None)) is not None:
            stream = self._registry.at(path)
            if stream is None or stream.deleted:
                continue
            if stream.unsettled or not self._is_over(stream, now):
                left.append(stream)
            elif await self._delete(stream, now) is None:
                removed += 1
            else:
                left.append(stream)
                break
        for stream in left:  # not before: one that is over but can't go yet would be due at once
            self._registry.reschedule(stream)
        return removed

    # Reading

    async def read(
        self, path: str, start: Offset | Now, limit: int, now: float, *, files: bool = False
    ) -> Chunk | ReadRefusal:
        stream = await self._find(path, now)
        if stream is None:
            return StreamNotFound(path)
        if stream.deleted:
            return StreamGone(path)
        try:
            chunk = self._bytes.chunk(stream, start, limit, files=files)
        except StreamDamaged as damage:
            return self._report(stream, damage)
        if isinstance(chunk, Chunk):
            from_memory = chunk.end.byte - max(chunk.start.byte, stream.log.start)
            if files and from_memory >= _LONG_READ:
                self._checkpointer.checkpoint_for_readers()
            if stream.expires:
                self._registry.touch(stream, now)
        return chunk

    async def splits(
        self, path: str, start: Offset, end: Offset | Now, size: int, limit: int, now: float
    ) -> Splits | ReadRefusal:
        stream = await self._find(path, now)
        if stream is None:
            return StreamNotFound(path)
        if stream.deleted:
            return StreamGone(path)
        near = partial(self._bytes.joined, stream)
        try:
            return split(stream.info(), stream.lineage, near, start, end, size, limit)
        except StreamDamaged as damage:
            return self._report(stream, damage)

    async def head(self, path: str, now: float) -> StreamInfo | Missing:
        stream = await self._find(path, now)
        if stream is None:
            return StreamNotFound(path)
        return StreamGone(path) if stream.deleted else stream.info()

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._notifications.watch(path, callback)

    def observe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self._notifications.observe(callback)

    async def streams(self, prefix: str, after: str, limit: int, now: float) -> list[StreamInfo]:
        if not self._opened:
            raise StoreNotOpen
        while page := self._registry.living(prefix, after, limit):
            living = [stream.info() for stream in page if not self._has_ended(stream, now)]
            if living:
                return living
            after = page[-1].path
        return []

    # Documents

    async def keep(self, documents: Mapping[str, bytes | None]) -> StoreUnwritable | None:
        if not self._opened:
            raise StoreNotOpen
        operation = KeepOperation(self._registry.documents, documents)
        failure = await self._commits.add(encode_keep(documents), operation)
        return None if failure is None else self._unwritable(failure)

    async def documents(self, prefix: str) -> dict[str, bytes]:
        if not self._opened:
            raise StoreNotOpen
        return self._registry.documents.under(prefix)

    # What they share

    async def _find(self, path: str, now: float) -> DiskStream | None:
        """Find a stream that is settled, and remove it first where its time is over."""
        if not self._opened:
            raise StoreNotOpen
        while True:
            stream = self._registry.at(path)
            if stream is None:
                return None
            if len(self._registry) > self.options.max_loaded_streams:
                self._checkpointer.evict_soon()
            if stream.unsettled:
                await self._settled(stream)
                continue
            if stream.expires and not stream.deleted and self._is_over(stream, now):
                if await self._delete(stream, now) is None:
                    continue
                return None  # it can't be removed, but it is not to be seen any more either
            return stream

    def _has_ended(self, stream: DiskStream, now: float) -> bool:
        """Tell whether a stream's time is over, without counting as an access."""
        watched = stream.config.expiry.ttl is not None and self._notifications.is_watched(
            stream.path
        )
        deadline = None if watched or not stream.expires else stream.deadline()
        return deadline is not None and deadline <= now

    def _is_over(self, stream: DiskStream, now: float) -> bool:
        if stream.config.expiry.ttl is not None and self._notifications.is_watched(stream.path):
            self._registry.touch(stream, now)
        deadline = stream.deadline()
        return deadline is not None and deadline <= now

    async def _settled(self, stream: DiskStream) -> StoreUnwritable | None:
        """Wait until what was accepted for a stream is durable."""
        error = await stream.commit if stream.commit is not None else None
        return None if error is None else self._unwritable(error)

    def _unwritable(self, error: OSError) -> StoreUnwritable:
        """Say why something was not made durable, and what would help: that is no matter of errno
        alone, since an engine that has stopped is only helped by a restart."""
        stopped = self._commits.failure is not None
        full = error.errno in DISK_FULL_ERRORS and not stopped
        return StoreUnwritable(error.strerror or str(error), full=full, stopped=stopped)

    def _report(self, stream: DiskStream, damage: StreamDamaged) -> BytesDamaged:
        log.error(
            "damaged file=%s position=%d stream=%s", damage.file, damage.position, stream.path
        )
        return BytesDamaged(stream.path, f"{damage.file}, byte {damage.position}")

    def _save_if_due(self) -> None:
        self._checkpointer.after_batch()

    def _notify(self) -> None:
        changed, self._registry.changed = self._registry.changed, set()
        self._notifications.changed(changed)


def _refuse_lost_catalog(folder: Path) -> None:
    """Don't begin anew over files whose catalog is gone: they would look like leftovers.

    SQLite takes an empty file for a new one, and writes to it as soon as it is opened.
    """
    catalog = folder / CATALOG_FILE
    if not catalog.exists():
        raise StoreDamaged(str(catalog), 0, "the file is missing, but there are streams here")
    if not catalog.stat().st_size:
        raise StoreDamaged(str(catalog), 0, "the file is empty, but there are streams here")


def _mark_in_use(catalog: Catalog, reserve: Reserve) -> None:
    """Note that accesses may be lost from here on; a disk without any room must not stop reads."""
    try:
        catalog.put("clean", 0)
    except CatalogFull:
        reserve.release()
        try:
            catalog.put("clean", 0)
        except CatalogFull as error:
            log.warning("no room to mark the catalog as in use error=%s", error)
        reserve.hold()
