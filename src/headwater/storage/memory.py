"""The memory store: everything is in dictionaries, and is lost when the process ends.

A call decides and applies without awaiting anything, so calls never interleave.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice

from headwater.errors import StoreNotOpen
from headwater.protocol.byte_requests import Buffer, serve
from headwater.protocol.expiry import is_expired
from headwater.protocol.lifecycle import (
    Accepted,
    Append,
    Create,
    Exists,
    NewStream,
    StreamConfig,
    WriterState,
    decide_append,
    decide_create,
    is_removable,
    lineage_of,
    missing,
)
from headwater.protocol.offsets import Lineage, Now, Offset
from headwater.protocol.producers import Duplicate, ProducerState
from headwater.protocol.refusals import Missing
from headwater.storage.byte_log import ByteLog
from headwater.storage.expiry_queue import ExpiryQueue
from headwater.storage.notifications import Notifications
from headwater.storage.path_index import PathIndex
from headwater.storage.read_path import find_range, find_split_points, make_chunk
from headwater.storage.refusals import (
    AppendRefusal,
    CreateRefusal,
    DeleteRefusal,
    ReadRefusal,
    StoreFull,
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

DEFAULT_LIMIT = 4 * 1024**3


class _Stream:
    """One incarnation of a stream."""

    __slots__ = (
        "_info",
        "accepted",
        "config",
        "deleted",
        "expires",
        "forks",
        "last_access",
        "lineage",
        "log",
        "path",
        "producers",
        "source",
    )

    def __init__(
        self,
        path: str,
        config: StreamConfig,
        lineage: Lineage,
        source: "_Stream | None",
        now: float,
    ) -> None:
        self.path = path
        self.config = config
        self.expires = bool(config.expiry)
        self.lineage = lineage
        self.log = ByteLog(config.origin.at if config.origin else 0)
        self.source = source
        self.forks = 0
        self.deleted = False
        self.accepted = WriterState(self.log.end)
        self.last_access = now
        self.producers: dict[str, ProducerState] = {}
        self._info: StreamInfo | None = None

    @property
    def durable(self) -> WriterState:
        """The state that readers see: in memory, the accepted one."""
        return self.accepted

    def info(self) -> StreamInfo:
        """Describe the stream; cached until it changes, since every read needs it."""
        info = self._info
        if info is None:
            accepted = self.accepted
            info = self._info = StreamInfo(
                self.path,
                self.config,
                self.lineage.own,
                self.lineage.name(accepted.end),
                accepted.closed,
            )
        return info

    def append(self, data: bytes, after: WriterState) -> None:
        """Append bytes, close, or both."""
        if data:
            self.log.append(data)
        self.accepted = after
        self._info = None

    def slice(self, start: int, end: int) -> list[Buffer]:
        """Return the bytes of a range; inherited ones are read from the chain of sources."""
        if start >= self.log.start:
            return self.log.slice(start, end)
        # A loop, not recursion: a chain of forks may be longer than the recursion limit.
        pieces: list[list[Buffer]] = []
        stream: _Stream | None = self
        while stream is not None and start < end:
            pieces.append(stream.log.slice(max(start, stream.log.start), end))
            end = min(end, stream.log.start)
            stream = stream.source
        return [buffer for piece in reversed(pieces) for buffer in piece]

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a range in one piece."""
        return b"".join(self.slice(start, end))


class MemoryStore(Store):
    """Stores up to `limit` bytes of stream data in memory."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.bytes = 0
        self._open = False
        self._streams: dict[str, _Stream] = {}
        self._paths = PathIndex()
        self._epoch = 0
        self._deadlines: ExpiryQueue[tuple[int, str]] = ExpiryQueue(self._is_live)
        self._notifications = Notifications()
        self._documents: dict[str, bytes] = {}

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False

    @property
    def ready(self) -> bool:
        return self._open

    async def create(self, path: str, request: Create, now: float) -> Created | CreateRefusal:
        existing = self._find(path, now)
        source: _Stream | None = None
        if existing is None and request.fork is not None:
            source = self._find(request.fork.source, now)
        read = _nothing if source is None else source.read
        decision = serve(decide_create(path, request, existing, source), read)
        if isinstance(decision, Exists):
            assert existing is not None  # noqa: S101 - `Exists` implies it
            return Created(existing.info(), new=False)
        if not isinstance(decision, NewStream):
            return decision
        data = decision.data
        if self.bytes + len(data) > self.limit:
            return self._full()
        self._epoch += 1
        lineage = lineage_of(decision.config, self._epoch, source)
        stream = _Stream(path, decision.config, lineage, source, now)
        if source is not None:
            source.forks += 1
            source.last_access = now
        stream.append(data, WriterState(stream.log.end + len(data), decision.closed))
        self.bytes += len(data)
        self._streams[path] = stream
        self._paths.add(path)
        self._schedule(stream)
        self._notifications.changed((path,))
        return Created(stream.info(), new=True)

    async def append(self, path: str, request: Append, now: float) -> Appended | AppendRefusal:
        stream = self._find(path, now)
        claim = request.producer
        producer: ProducerState | None = None
        if claim is not None and stream is not None:
            producer = stream.producers.get(claim.producer_id)
        decision = decide_append(path, stream, producer, request)
        if isinstance(decision, Missing):
            return decision
        assert stream is not None  # noqa: S101 - otherwise the decision is `Missing`
        if isinstance(decision, Accepted):
            data = decision.data
            if self.bytes + len(data) > self.limit:
                return self._full()
            stream.last_access = now
            stream.append(data, decision.after)
            self.bytes += len(data)
            if claim is not None and decision.producer is not None:
                stream.producers[claim.producer_id] = decision.producer
            self._notifications.changed((path,))
            return Appended(stream.info().tail, decision.after.closed, decision.producer)
        stream.last_access = now
        if isinstance(decision, Duplicate):
            closed = stream.accepted.closed
            return Appended(stream.info().tail, closed, decision.producer, repeated=True)
        return decision

    async def read(
        self,
        path: str,
        start: Offset | Now,
        limit: int,
        now: float,
        *,
        files: bool = False,  # noqa: ARG002 - this store has no files
    ) -> Chunk | ReadRefusal:
        stream = self._find_live(path, now)
        if not isinstance(stream, _Stream):
            return stream
        info = stream.info()
        span = serve(find_range(info, stream.lineage, start, limit), stream.read)
        if not isinstance(span, tuple):
            return span
        stream.last_access = now
        begin, end = span
        return make_chunk(info, stream.lineage, begin, end, stream.slice(begin, end))

    async def split_points(
        self, path: str, start: Offset, end: Offset | Now, size: int, limit: int, now: float
    ) -> SplitPoints | ReadRefusal:
        stream = self._find_live(path, now)
        if not isinstance(stream, _Stream):
            return stream
        splits = find_split_points(stream.info(), stream.lineage, start, end, size, limit)
        return serve(splits, stream.read)

    async def head(self, path: str, now: float) -> StreamInfo | Missing:
        stream = self._find_live(path, now)
        return stream.info() if isinstance(stream, _Stream) else stream

    async def delete(self, path: str, now: float) -> DeleteRefusal | None:
        stream = self._find_live(path, now)
        if not isinstance(stream, _Stream):
            return stream
        self._remove(stream)
        return None

    async def expire(self, now: float, limit: int) -> int:
        removed = examined = 0
        while removed < limit and (key := self._deadlines.pop(now)) is not None:
            examined += 1
            if examined % MAX_EXPIRED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not self._is_live(key):
                continue
            stream = self._streams[key[1]]
            if self._is_expired(stream, now):
                self._remove(stream)
                removed += 1
            else:
                self._schedule(stream)
        return removed

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._notifications.watch(path, callback)

    def observe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self._notifications.observe(callback)

    async def list_streams(
        self, prefix: str, after: str, limit: int, now: float
    ) -> list[StreamInfo]:
        while True:
            page = list(islice(self._paths.after(after, prefix), limit))
            listed = [self._find(path, now) for path in page]
            living = [stream.info() for stream in listed if stream and not stream.deleted]
            if living or not page:
                return living
            after = page[-1]

    async def put_documents(self, documents: Mapping[str, bytes | None]) -> StoreUnwritable | None:
        if not self._open:
            raise StoreNotOpen
        for key, value in documents.items():
            if value is None:
                self._documents.pop(key, None)
            else:
                self._documents[key] = value
        return None

    async def get_documents(self, prefix: str) -> dict[str, bytes]:
        documents = self._documents
        return {key: documents[key] for key in sorted(documents) if key.startswith(prefix)}

    def _find(self, path: str, now: float) -> _Stream | None:
        """Find the stream at a path; one that has expired is removed first."""
        stream = self._streams.get(path)
        if stream is None:
            if not self._open:
                raise StoreNotOpen
            return None
        if stream.expires and not stream.deleted and self._is_expired(stream, now):
            self._remove(stream)
            return self._streams.get(path)
        return stream

    def _find_live(self, path: str, now: float) -> _Stream | Missing:
        """Find a stream that is not deleted, or return why it is missing."""
        stream = self._find(path, now)
        return missing(path, stream) if stream is None or stream.deleted else stream

    def _is_expired(self, stream: _Stream, now: float) -> bool:
        if self._notifications.is_watched(stream.path):
            stream.last_access = max(stream.last_access, now)
        return is_expired(stream.config.expiry, stream.last_access, now)

    def _is_live(self, key: tuple[int, str]) -> bool:
        stream = self._streams.get(key[1])
        return stream is not None and stream.lineage.own == key[0] and not stream.deleted

    def _schedule(self, stream: _Stream) -> None:
        deadline = stream.config.expiry.deadline(stream.last_access)
        if deadline is not None:
            self._deadlines.add(deadline, (stream.lineage.own, stream.path))

    def _remove(self, stream: _Stream) -> None:
        """Delete a stream, and each deleted source up the chain that has no other fork."""
        stream.deleted = True
        current: _Stream | None = stream
        while current is not None and is_removable(current):
            del self._streams[current.path]
            self._paths.discard(current.path)
            self.bytes -= current.log.end - current.log.start
            current = current.source
            if current is not None:
                current.forks -= 1
        self._notifications.changed((stream.path,))

    def _full(self) -> StoreFull:
        return StoreFull(f"the memory store holds at most {self.limit} bytes")


def _nothing(start: int, end: int) -> bytes:
    """Never called: only the creation of a fork requests bytes."""
    raise AssertionError(start, end)
