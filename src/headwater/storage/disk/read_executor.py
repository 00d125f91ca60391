"""Lookups in the catalog and reads of segments, in threads: the event loop sees only memory.

A stream that is not in memory is looked up in a thread and loaded on the loop. All requests for it
share one lookup, and lookups that begin while others run go to the catalog together. A caller
resumes in the turn in which its lookup ends, and looks into memory again: docs/decisions/0064.

A read captures what of its range is in memory, on the loop. A thread finds the range, reads the
rest from segments, and verifies it.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Final, NamedTuple, TypeVar, cast

from headwater.errors import StoreNotOpen, StreamDamaged
from headwater.protocol.byte_requests import Buffer, ByteRequests, serve
from headwater.protocol.offsets import Now, Offset, PositionRefusal
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.registry import Lookup, PendingPage, Registry
from headwater.storage.disk.segments import Extent, SegmentFile, SegmentFiles
from headwater.storage.disk.stream import DiskStream, from_row
from headwater.storage.file_ranges import Part
from headwater.storage.immediate_future import ImmediateFuture
from headwater.storage.read_path import find_range, find_split_points, make_chunk
from headwater.storage.store import Chunk, SplitPoints, StreamInfo

_THREADS: Final = 4
_LOOKUPS_AT_ONCE: Final = 256
_FROM_FILE_BYTES: Final = 256 * 1024
"""A range of at least this length is sent from its file instead of being read."""
_END_BYTES: Final = 64
_COPIED_BYTES: Final = 1024 * 1024
"""How much is read at once of bytes that are not verified yet, or can't be sent from a file."""
_LONG_MESSAGE: Final = 256 * 1024
"""How much of a message after the limit of a read is captured at first."""
_ALL: Final = 1 << 62
"""After the end of every stream."""

T = TypeVar("T")


class _Outcome:
    """What a function in a thread has returned or raised."""

    __slots__ = ("error", "value")

    def __init__(self, value: object, error: Exception | None) -> None:
        self.value = value
        self.error = error


class ReadExecutor:
    """Reads what is not in memory; raises `StreamDamaged` if bytes are not what was written."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        registry: Registry,
        catalog: Catalog,
        files: SegmentFiles,
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._catalog = catalog
        self._segments = _Segments(catalog, files)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="headwater-read")
        self._waiting: list[Lookup] = []
        """Lookups for the next job."""
        self._looking_up = False
        """Whether a job looks up streams, or is about to begin."""
        self._closed = False

    async def close(self) -> None:
        """Wait until all threads are done; what still waits for one is refused."""
        self._closed = True
        await self._loop.run_in_executor(None, self._threads.shutdown)
        self._loop.call_soon(self._refuse_lookups)
        await asyncio.sleep(0)
        self._segments.close()

    def forget(self, numbers: list[int]) -> None:
        """Close segments that were deleted; called in any thread."""
        self._segments.forget(numbers)

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread."""
        if self._closed:
            raise StoreNotOpen
        future: ImmediateFuture[_Outcome] = ImmediateFuture(self._loop)
        self._threads.submit(self._run, function, future)
        outcome = await future
        assert outcome is not None  # noqa: S101 - it is done
        if outcome.error is not None:
            raise outcome.error
        return cast("T", outcome.value)

    def _run(self, function: Callable[[], object], future: ImmediateFuture[_Outcome]) -> None:
        try:
            outcome = _Outcome(function(), None)
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            outcome = _Outcome(None, error)
        self._loop.call_soon_threadsafe(future.set_result, outcome)

    # Lookups

    async def find(self, path: str) -> DiskStream | None:
        """Find the stream at a path; the caller resumes in the turn in which it was found."""
        stream = self._registry.loaded(path)
        if stream is None:
            await self._look_up(path)
            stream = self._registry.loaded(path)
        return stream

    async def find_number(self, number: int) -> DiskStream | None:
        """Find a stream by its number."""
        stream = self._registry.loaded_number(number)
        if stream is None:
            await self._look_up(number)
            stream = self._registry.loaded_number(number)
        return stream

    async def load_all(self, paths: list[str]) -> None:
        """Load the streams at some paths; claim them, or some may be evicted before the last."""
        for lookup in [self._begin(path) for path in paths if self._registry.loaded(path) is None]:
            await self._end(lookup)

    async def load_producer(self, stream: DiskStream, producer_id: str) -> None:
        """Look up a producer of a stream, unless a checkpoint makes the result old."""
        producers = stream.producers
        version = producers.version
        with held(stream):
            state = await self.run(partial(producers.look_up, producer_id))
        if producers.version == version:
            producers.looked_up(producer_id, state)

    async def _look_up(self, key: str | int) -> None:
        await self._end(self._begin(key))

    def _begin(self, key: str | int) -> Lookup:
        lookups = self._registry.lookups
        lookup = lookups.get(key)
        if lookup is None:
            lookup = lookups[key] = Lookup(key, ImmediateFuture(self._loop))
            self._waiting.append(lookup)
            self._start_lookups_soon()
        return lookup

    async def _end(self, lookup: Lookup) -> None:
        error = await lookup.result
        if error is not None:
            raise error

    def _start_lookups_soon(self) -> None:
        if not self._looking_up:
            self._looking_up = True
            self._loop.call_soon(self._start_lookups)

    def _refuse_lookups(self) -> None:
        lookups, self._waiting = self._waiting, []
        for lookup in lookups:
            lookup.result.set_result(StoreNotOpen())

    def _start_lookups(self) -> None:
        if self._closed:
            self._refuse_lookups()
            return
        lookups = self._waiting[:_LOOKUPS_AT_ONCE]
        del self._waiting[:_LOOKUPS_AT_ONCE]
        for lookup in lookups:
            lookup.begin(self._registry)
        self._threads.submit(self._run_lookups, lookups)

    def _run_lookups(self, lookups: list[Lookup]) -> None:
        found: dict[str | int, DiskStream | Exception] = {}
        paths = [lookup.key for lookup in lookups if isinstance(lookup.key, str)]
        try:
            for row in self._catalog.streams_at(paths):
                found[row.path] = from_row(row, self._catalog)
        except Exception:  # noqa: BLE001 - found again below, for each path
            for path in paths:
                self._look_up_alone(path, found)
        for lookup in lookups:
            if isinstance(lookup.key, int):
                self._look_up_alone(lookup.key, found)
        self._loop.call_soon_threadsafe(self._looked_up, lookups, found)

    def _look_up_alone(
        self, key: str | int, found: dict[str | int, DiskStream | Exception]
    ) -> None:
        catalog = self._catalog
        try:
            row = catalog.stream_at(key) if isinstance(key, str) else catalog.stream(key)
            if row is not None:
                found[key] = from_row(row, catalog)
        except Exception as error:  # noqa: BLE001 - raised where the lookup is awaited
            found[key] = error

    def _looked_up(
        self, lookups: list[Lookup], found: dict[str | int, DiskStream | Exception]
    ) -> None:
        registry = self._registry
        self._looking_up = False
        for lookup in lookups:
            if lookup.is_stale:
                self._waiting.append(lookup)
                continue
            del registry.lookups[lookup.key]
            result = found.get(lookup.key)
            if isinstance(result, DiskStream):
                registry.add_found(result, lookup)
            lookup.result.set_result(result if isinstance(result, Exception) else None)
        if self._waiting:
            self._start_lookups_soon()

    async def list_streams(self, prefix: str, after: str, limit: int) -> list[DiskStream]:
        """List durable streams in the order of their paths, without loading those of the catalog.

        The list is empty only if there are no more.
        """
        registry = self._registry
        while True:
            listing = PendingPage(registry, prefix, after, limit)
            page = await self.run(partial(self._page, prefix, after, limit))
            found, gone = registry.merge(listing, page)
            for path in gone:  # saved and evicted meanwhile, or removed
                stream = await self.find(path)
                if stream is not None:
                    found[path] = stream
            listed = [found[path] for path in sorted(found) if not found[path].deleted]
            if listed or len(page) < limit:
                return listed[:limit]
            after = page[-1].path

    def _page(self, prefix: str, after: str, limit: int) -> list[DiskStream]:
        catalog = self._catalog
        return [from_row(row, catalog) for row in catalog.living(prefix, after, limit)]

    async def documents(self, prefix: str) -> dict[str, bytes]:
        """Return the documents whose keys begin with a prefix, in the order of keys."""
        with self._registry.documents.changes() as layers:
            found: dict[str, bytes | None] = dict(
                await self.run(partial(self._catalog.documents, prefix))
            )
            for layer in layers:
                found.update((key, value) for key, value in layer.items() if key.startswith(prefix))
        return {key: value for key, value in sorted(found.items()) if value is not None}

    # Bytes

    async def chunk(
        self, stream: DiskStream, start: Offset | Now, limit: int, *, files: bool = False
    ) -> Chunk | PositionRefusal:
        """Read about `limit` bytes from an offset, as whole messages."""
        info = stream.info()
        tail = stream.tail_log
        # The byte before the offset may be read as well.
        first = tail.end if isinstance(start, Now) else max(0, start.byte - 1)
        if first >= tail.start or isinstance(start, Now) or start == info.tail:
            span = serve(find_range(info, stream.lineage, start, limit), partial(_joined, stream))
            if not isinstance(span, tuple):
                return span
            return make_chunk(info, stream.lineage, *span, tail.slice(*span))

        def read(reader: "_Reader") -> Chunk | PositionRefusal:
            read_limit = reader.read_limit if files else None
            rule = find_range(info, stream.lineage, start, limit, read_limit)
            span = serve(rule, reader.joined)
            if not isinstance(span, tuple):
                return span
            parts = reader.parts(*span, files=files) if span[0] < span[1] else ()
            return make_chunk(info, stream.lineage, *span, parts)

        return await self._read(stream, first, start.byte + limit, read)

    async def split_points(
        self, stream: DiskStream, start: Offset, end: Offset | Now, size: int, limit: int
    ) -> SplitPoints | PositionRefusal:
        """Find where a range may be split."""
        info: StreamInfo = stream.info()

        def read(reader: "_Reader") -> SplitPoints | PositionRefusal:
            rule = find_split_points(info, stream.lineage, start, end, size, limit)
            return serve(rule, reader.joined)

        return await self._read(stream, max(0, start.byte - 1), start.byte, read)

    async def serve(self, stream: DiskStream, rule: ByteRequests[T]) -> T:
        """Run a rule that requests bytes of a stream; it may wait for each of them."""
        try:
            begin, end = next(rule)
            while True:
                if begin >= stream.tail_log.start:
                    data = _joined(stream, begin, end)
                else:
                    read = partial(_Reader.joined, begin=begin, end=end)
                    data = await self._read(stream, begin, end, read)
                begin, end = rule.send(data)
        except StopIteration as finished:
            decision: T = finished.value
            return decision

    async def _read(
        self, stream: DiskStream, begin: int, end: int, read: "Callable[[_Reader], T]"
    ) -> T:
        """Read in a thread; it is expected to need the bytes from `begin` to `end`."""
        with held(stream):
            for first, last in ((begin, end + _LONG_MESSAGE), (0, _ALL)):
                layers = await self._capture(stream, first, last)
                reader = _Reader(self._segments, layers, (begin, end))
                try:
                    return await self.run(partial(read, reader))
                except _NotCaptured:
                    continue
        raise AssertionError  # everything was captured

    async def _capture(self, stream: DiskStream, begin: int, end: int) -> "list[_Layer]":
        """Capture where a stream and its sources have a range of bytes; newest first."""
        layers = [_Layer.of(stream, begin, end)]
        while begin < layers[-1].start:
            source = await self.find_number(stream.source)
            if source is None:
                where = f"{self._catalog.path} (the source {stream.source} is not listed)"
                raise StreamDamaged(where, 0, stream.number)
            layers.append(_Layer.of(source, begin, min(end, layers[-1].start)))
            stream = source
        return layers


@contextmanager
def held(*streams: DiskStream) -> Iterator[None]:
    """Keep streams from being evicted while a request waits."""
    for stream in streams:
        stream.holds += 1
    try:
        yield
    finally:
        for stream in streams:
            stream.holds -= 1


def _joined(stream: DiskStream, begin: int, end: int) -> bytes:
    """Return bytes that are in memory, in one piece."""
    return b"".join(stream.tail_log.slice(begin, end))


class _NotCaptured(Exception):
    """A read needs bytes in memory that were not captured for it."""


class _Layer(NamedTuple):
    """Where a stream's own bytes are, as captured on the loop."""

    stream: int
    start: int
    """The first byte of its own; those before are inherited."""
    tail: int
    """The first byte in memory; those before are in segments."""
    first: int
    """The first byte in memory that was captured."""
    last: int
    """The end of what was captured."""
    buffers: list[Buffer]

    @classmethod
    def of(cls, stream: DiskStream, begin: int, end: int) -> "_Layer":
        tail = stream.tail_log
        first = max(begin, tail.start)
        last = max(first, min(end, tail.end))
        buffers = tail.slice(first, last)
        return cls(stream.number, stream.start, tail.start, first, last, buffers)

    def slice(self, begin: int, end: int) -> list[Buffer]:
        """Return bytes in memory."""
        if begin < self.first or end > self.last:
            raise _NotCaptured
        found: list[Buffer] = []
        at = self.first
        for buffer in self.buffers:
            upto = at + len(buffer)
            if upto > begin and at < end:
                whole = begin <= at and upto <= end
                part = memoryview(buffer)[max(begin - at, 0) : end - at]
                found.append(buffer if whole else part)
            at = upto
        return found


class _Segments:
    """The open segments and the catalog, as the threads of readers share them."""

    def __init__(self, catalog: Catalog, files: SegmentFiles) -> None:
        self.catalog = catalog
        self._files = files
        self._lock = Lock()
        """Guards the cache of open segments."""

    def get(self, number: int) -> SegmentFile:
        with self._lock:
            return self._files.get(number)

    def get_open(self, number: int) -> SegmentFile | None:
        with self._lock:
            return self._files.get_open(number)

    def is_lent(self, length: int) -> bool:
        """Return whether contiguous bytes of a segment are sent from its file."""
        if length < _FROM_FILE_BYTES:
            return False
        with self._lock:
            return self._files.can_send_files

    def forget(self, numbers: list[int]) -> None:
        with self._lock:
            self._files.forget(numbers)

    def close(self) -> None:
        with self._lock:
            self._files.close()


class _Reader:
    """Reads the bytes of one request, in a thread."""

    def __init__(
        self, segments: _Segments, layers: list[_Layer], expected: tuple[int, int]
    ) -> None:
        self._segments = segments
        self._layers = layers
        self._expected = expected
        """The range that the whole read is expected to take."""
        self._extents: dict[int, tuple[int, int, list[Extent]]] = {}
        """By stream: extents that were looked up, and for which bytes."""

    def joined(self, begin: int, end: int) -> bytes:
        """Return the bytes of a short range in one piece."""
        return b"".join(cast("list[Buffer]", self.parts(begin, end, files=False)))

    def parts(self, begin: int, end: int, *, files: bool) -> list[Part]:
        """Return the bytes of a range as buffers or, with `files`, long parts as file ranges."""
        parts: list[list[Part]] = []
        # From the end of the range back to its beginning, up the chain of sources.
        for layer in self._layers:
            if end > layer.tail:
                first = max(begin, layer.tail)
                parts.append(list(layer.slice(first, end)))
                end = first
            if end > layer.start and begin < end:
                first = max(begin, layer.start)
                parts.append(self._from_segments(layer, first, end, files=files))
                end = first
            if begin >= end:
                return [part for some in reversed(parts) for part in some]
        raise _NotCaptured

    def read_limit(self, begin: int, most: int) -> int:
        """Return how much to read at once: little of what is copied or has to be verified first.

        The client waits for that. Bytes verified before are most likely in the page cache.
        """
        layer = self._layers[0]
        if begin >= layer.tail:
            return most
        upto = begin
        copied = 0
        if begin >= layer.start:
            for extent in self._find(layer, begin, min(begin + most, layer.tail)):
                file = self._segments.get_open(extent.segment)
                if file is None:
                    break
                checked = file.checked_until(extent, upto)
                if not self._segments.is_lent(checked - upto):
                    copied += checked - upto
                if copied > _COPIED_BYTES:
                    break
                upto = checked
                if upto < extent.end:
                    break
        return min(most, max(upto - begin, _COPIED_BYTES))

    def _find(self, layer: _Layer, begin: int, end: int) -> list[Extent]:
        """Return the extents of a range: one lookup finds those of the whole read."""
        known = self._extents.get(layer.stream)
        if known is None or begin < known[0] or end > known[1]:
            first = max(layer.start, min(begin, self._expected[0]))
            last = min(layer.tail, max(end, self._expected[1]))
            found = self._segments.catalog.extents(layer.stream, first, last)
            known = self._extents[layer.stream] = (first, last, found)
        return [item for item in known[2] if item.end > begin and item.start < end]

    def _from_segments(self, layer: _Layer, begin: int, end: int, *, files: bool) -> list[Part]:
        parts: list[Part] = []
        missing = ""
        while True:
            try:
                for extent in self._find(layer, begin, end):
                    if extent.start > begin:
                        break
                    file = self._segments.get(extent.segment)
                    upto = min(end, extent.end)
                    if files and self._segments.is_lent(upto - begin):
                        # All but the end: responses are completed from the last bytes.
                        parts.append(file.range(extent, begin, upto - _END_BYTES))
                        begin = upto - _END_BYTES
                    parts.append(file.read(extent, begin, upto))
                    begin = upto
                break
            except FileNotFoundError as error:
                if error.filename == missing:  # it is still listed
                    raise StreamDamaged(missing, 0, layer.stream) from error
                missing = error.filename
                self._extents.clear()  # compaction may have replaced it
        if begin < end:
            path = self._segments.catalog.path
            where = f"{path} (bytes {begin} to {end} of the stream are not listed)"
            raise StreamDamaged(where, 0, layer.stream)
        return parts
