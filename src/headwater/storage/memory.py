"""The memory store: everything in dictionaries, gone when the process ends.

It decides and applies in one step without waiting, so a call never sees another one half done.
"""

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice

from headwater.errors import StoreNotOpen
from headwater.protocol import content_types
from headwater.protocol.content_types import media_type
from headwater.protocol.expiry import Expiry, inherited_expiry
from headwater.protocol.forks import ForkOrigin, ForkRequest, fork_point
from headwater.protocol.framing import Buffer, EmptyArray, InvalidJson, frame
from headwater.protocol.lifecycle import (
    AlreadyClosed,
    Append,
    AppendPlan,
    Create,
    StreamConfig,
    decide_append,
    existing_mismatch,
)
from headwater.protocol.offsets import (
    Lineage,
    Now,
    Offset,
)
from headwater.protocol.producers import ProducerClaim, ProducerState, Repeated
from headwater.protocol.refusals import (
    ContentTypeMismatch,
    Missing,
    PathBlocked,
    SourceGone,
    SourceNotFound,
    StreamGone,
    StreamNotFound,
)
from headwater.storage.byte_log import ByteLog
from headwater.storage.notifications import Notifications
from headwater.storage.path_index import PathIndex
from headwater.storage.read_path import read_chunk, split
from headwater.storage.refusals import (
    AppendRefusal,
    CreateRefusal,
    DeleteRefusal,
    ReadRefusal,
    StoreFull,
    StoreUnwritable,
)
from headwater.storage.store import Appended, Chunk, Created, Splits, Store, StreamInfo

DEFAULT_LIMIT = 4 * 1024**3
_SPARE_DEADLINES = 64


class _Stream:
    """One incarnation of a stream."""

    __slots__ = (
        "_info",
        "closed",
        "closed_by",
        "config",
        "deleted",
        "expires",
        "forks",
        "last_access",
        "last_seq",
        "lineage",
        "log",
        "media_type",
        "path",
        "producers",
        "source",
    )

    def __init__(
        self,
        path: str,
        config: StreamConfig,
        lineage: Lineage,
        start: int,
        source: "_Stream | None",
    ) -> None:
        self.path = path
        self.config = config
        self.media_type = config.media_type
        self.expires = bool(config.expiry)
        self.lineage = lineage
        self.log = ByteLog(start)
        self.source = source
        self.forks = 0
        self._info: StreamInfo | None = None
        self.deleted = False
        self.closed = False
        self.closed_by: ProducerClaim | None = None
        self.last_seq: str | None = None
        self.last_access = 0.0
        self.producers: dict[str, ProducerState] = {}

    @property
    def tail(self) -> Offset:
        return self.lineage.name(self.log.end)

    def info(self) -> StreamInfo:
        """Describe the stream; kept until it changes, since reads ask for it again and again."""
        info = self._info
        if info is None:
            info = self._info = StreamInfo(
                self.path, self.config, self.lineage.own, self.tail, self.closed
            )
        return info

    def extend(self, data: bytes, *, close: bool) -> None:
        """Append bytes, close, or both."""
        if data:
            self.log.append(data)
        if close:
            self.closed = True
        self._info = None

    def slice(self, start: int, end: int) -> list[Buffer]:
        """Give the bytes of a range, through the chain of sources where they are inherited."""
        if start >= self.log.start:
            return self.log.slice(start, end)
        # From the end to the beginning: a chain may be longer than calls can be nested.
        pieces: list[list[Buffer]] = []
        stream: _Stream | None = self
        while stream is not None and start < end:
            pieces.append(stream.log.slice(max(start, stream.log.start), end))
            end = min(end, stream.log.start)
            stream = stream.source
        return [buffer for piece in reversed(pieces) for buffer in piece]

    def read(self, start: int, end: int) -> bytes:
        """Give the bytes of a range in one piece."""
        return b"".join(self.slice(start, end))


class MemoryStore(Store):
    """Keeps up to `limit` bytes of stream data in memory."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.bytes = 0
        self._open = False
        self._streams: dict[str, _Stream] = {}
        self._paths = PathIndex()
        self._epoch = 0
        self._deadlines: list[tuple[float, int, str]] = []
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
        if existing is not None:
            if existing.deleted:
                return PathBlocked(path)
            mismatch = existing_mismatch(
                path, existing.config, closed=existing.closed, request=request
            )
            return mismatch or Created(existing.info(), new=False)
        source: _Stream | None = None
        origin: ForkOrigin | None = None
        content_type = request.content_type or content_types.DEFAULT
        expiry = request.expiry
        if request.fork is not None:
            found = self._fork_source(request.fork, request.content_type, now)
            if not isinstance(found, tuple):
                return found
            source, origin = found
            content_type = request.content_type or source.config.content_type
            expiry = inherited_expiry(source.config.expiry, request.expiry)
        media = media_type(content_type) or content_types.DEFAULT
        data = frame(request.body, media) if request.body else b""
        if isinstance(data, EmptyArray):
            data = b""  # PROTOCOL 9.1.3: on PUT an empty array is an empty stream
        if isinstance(data, InvalidJson):
            return data
        if self.bytes + len(data) > self.limit:
            return self._full()
        self._epoch += 1
        start = origin.at if origin else 0
        lineage = source.lineage.fork(start, self._epoch) if source else Lineage(self._epoch)
        config = StreamConfig(content_type, media, expiry, origin)
        stream = _Stream(path, config, lineage, start, source)
        if source is not None:
            source.forks += 1
            source.last_access = now
        stream.extend(data, close=request.close)
        self.bytes += len(data)
        stream.last_access = now
        self._streams[path] = stream
        self._paths.add(path)
        self._schedule(stream, expiry)
        self._notifications.changed((path,))
        return Created(stream.info(), new=True)

    def _fork_source(
        self, request: ForkRequest, content_type: str | None, now: float
    ) -> tuple[_Stream, ForkOrigin] | CreateRefusal:
        source = self._find(request.source, now)
        if source is None:
            return SourceNotFound(request.source)
        if source.deleted:
            return SourceGone(request.source)
        if content_type is not None and media_type(content_type) != source.media_type:
            return ContentTypeMismatch(request.source, source.media_type, content_type)
        origin = fork_point(
            request,
            source.lineage,
            source.log.end,
            source.media_type,
            source.read,
        )
        return (source, origin) if isinstance(origin, ForkOrigin) else origin

    async def append(self, path: str, request: Append, now: float) -> Appended | AppendRefusal:
        stream = self._find(path, now)
        if stream is None:
            return StreamNotFound(path)
        if stream.deleted:
            return StreamGone(path)
        plan = decide_append(stream, request)
        if type(plan) is AppendPlan:
            data = plan.data
            if self.bytes + len(data) > self.limit:
                return self._full()
            stream.last_access = now
            stream.extend(data, close=request.close)
            self.bytes += len(data)
            if plan.producer is not None and request.producer is not None:
                stream.producers[request.producer.producer_id] = plan.producer
            if request.seq is not None:
                stream.last_seq = request.seq
            if request.close:
                stream.closed_by = request.producer
            self._notifications.changed((path,))
            return Appended(stream.tail, stream.closed, plan.producer)
        stream.last_access = now
        if isinstance(plan, Repeated):
            return Appended(stream.tail, stream.closed, plan.highest, repeated=True)
        if isinstance(plan, AlreadyClosed):
            return Appended(stream.tail, closed=True, repeated=True)
        return plan  # type: ignore[return-value] # a plan was handled above, by its exact type

    async def read(
        self,
        path: str,
        start: Offset | Now,
        limit: int,
        now: float,
        *,
        files: bool = False,  # noqa: ARG002 - there are none here
    ) -> Chunk | ReadRefusal:
        stream = self._find(path, now)
        if stream is None:
            return StreamNotFound(path)
        if stream.deleted:
            return StreamGone(path)
        chunk = read_chunk(stream.info(), stream.lineage, stream.slice, start, limit)
        if isinstance(chunk, Chunk):
            stream.last_access = now
        return chunk

    async def splits(
        self, path: str, start: Offset, end: Offset | Now, size: int, limit: int, now: float
    ) -> Splits | ReadRefusal:
        stream = self._find(path, now)
        if stream is None:
            return StreamNotFound(path)
        if stream.deleted:
            return StreamGone(path)
        return split(stream.info(), stream.lineage, stream.read, start, end, size, limit)

    async def head(self, path: str, now: float) -> StreamInfo | Missing:
        stream = self._find(path, now)
        if stream is None:
            return StreamNotFound(path)
        return StreamGone(path) if stream.deleted else stream.info()

    async def delete(self, path: str, now: float) -> DeleteRefusal | None:
        stream = self._find(path, now)
        if stream is None:
            return StreamNotFound(path)
        if stream.deleted:
            return StreamGone(path)
        self._remove(stream)
        return None

    async def expire(self, now: float, limit: int) -> int:
        removed = 0
        while self._deadlines and self._deadlines[0][0] <= now and removed < limit:
            _, epoch, path = heappop(self._deadlines)
            stream = self._streams.get(path)
            if stream is None or stream.lineage.own != epoch or stream.deleted:
                continue
            if self._find(path, now) is stream and not stream.deleted:
                self._schedule(stream, stream.config.expiry)
            else:
                removed += 1
        return removed

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._notifications.watch(path, callback)

    def observe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self._notifications.observe(callback)

    async def streams(self, prefix: str, after: str, limit: int, now: float) -> list[StreamInfo]:
        while True:
            page = list(islice(self._paths.behind(after, prefix), limit))
            listed = [self._find(path, now) for path in page]
            living = [stream.info() for stream in listed if stream and not stream.deleted]
            if living or not page:
                return living
            after = page[-1]

    async def keep(self, documents: Mapping[str, bytes | None]) -> StoreUnwritable | None:
        if not self._open:
            raise StoreNotOpen
        for key, value in documents.items():
            if value is None:
                self._documents.pop(key, None)
            else:
                self._documents[key] = value
        return None

    async def documents(self, prefix: str) -> dict[str, bytes]:
        kept = self._documents
        return {key: kept[key] for key in sorted(kept) if key.startswith(prefix)}

    def _find(self, path: str, now: float) -> _Stream | None:
        """Look a stream up, and remove it first where its time is over."""
        stream = self._streams.get(path)
        if stream is None:
            if not self._open:
                raise StoreNotOpen
            return None
        if stream.expires and not stream.deleted:
            expiry = stream.config.expiry
            if expiry.ttl is not None and self._notifications.is_watched(path):
                stream.last_access = max(stream.last_access, now)
            deadline = expiry.deadline(stream.last_access)
            if deadline is not None and deadline <= now:
                self._remove(stream)
                return self._streams.get(path)
        return stream

    def _schedule(self, stream: _Stream, expiry: Expiry) -> None:
        deadline = expiry.deadline(stream.last_access)
        if deadline is None:
            return
        heappush(self._deadlines, (deadline, stream.lineage.own, stream.path))
        if len(self._deadlines) > 2 * len(self._streams) + _SPARE_DEADLINES:
            self._forget_deadlines()

    def _forget_deadlines(self) -> None:
        """Drop the deadlines of streams that were deleted before their time was over."""
        streams = self._streams
        self._deadlines = [
            (deadline, epoch, path)
            for deadline, epoch, path in self._deadlines
            if (stream := streams.get(path)) is not None and stream.lineage.own == epoch
        ]
        heapify(self._deadlines)

    def _remove(self, stream: _Stream) -> None:
        """Delete a stream, or keep it for its forks; then whatever sources it alone kept alive."""
        stream.deleted = True
        current: _Stream | None = stream
        while current is not None and current.deleted and current.forks == 0:
            del self._streams[current.path]
            self._paths.discard(current.path)
            self.bytes -= current.log.end - current.log.start
            current = current.source
            if current is not None:
                current.forks -= 1
        self._notifications.changed((stream.path,))

    def _full(self) -> StoreFull:
        return StoreFull(f"the memory store holds at most {self.limit} bytes")
