"""The streams in memory, which of them a checkpoint has to save, and how durable changes apply.

Changes are applied here in the order of the journal, whether they come from a batch that has just
become durable or from a replay: both go through the same methods.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from headwater.protocol.expiry import Expiry
from headwater.protocol.forks import ForkOrigin
from headwater.protocol.lifecycle import (
    WriterState,
    is_removable,
    lineage_of,
    next_state,
    stream_config,
)
from headwater.protocol.offsets import Offset
from headwater.protocol.producers import ProducerClaim, ProducerState
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.records import NOTHING_ELSE, AppendExtras, CreateMeta
from headwater.storage.disk.stream import DiskStream, from_row
from headwater.storage.expiry_queue import ExpiryQueue
from headwater.storage.immediate_future import ImmediateFuture
from headwater.storage.path_index import PathIndex

STREAM_BYTES: Final = 1024
"""The memory of a stream without its path, its tail and its producers."""
_PRODUCER_BYTES: Final = 256
_EVICT_AT_ONCE: Final = 512


class Lookup:
    """A lookup of a stream in the catalog, which other requests may wait for as well."""

    __slots__ = ("is_stale", "key", "removed", "result")

    def __init__(self, key: str | int, result: ImmediateFuture[Exception | None]) -> None:
        self.key = key
        """The path of the stream, or its number."""
        self.result = result
        """Why the lookup failed, or None: what it found is in memory."""
        self.is_stale = False
        """Whether a stream with this key was dropped from memory since the beginning."""
        self.removed: tuple[set[int], ...] = ()
        """Streams that had been removed at the beginning, and may be found all the same."""

    def begin(self, registry: "Registry") -> None:
        """Begin, or begin again: what is found is as old as this moment at most."""
        self.is_stale = False
        self.removed = (registry.removed, registry.removing)


class PendingPage:
    """A page of streams that is being listed, from its beginning."""

    __slots__ = ("after", "limit", "prefix", "removed", "unsaved")

    def __init__(self, registry: "Registry", prefix: str, after: str, limit: int) -> None:
        self.prefix = prefix
        self.after = after
        self.limit = limit
        self.removed = (registry.removed, registry.removing)
        self.unsaved = registry.unsaved_paths(prefix, after, limit)
        """Paths that the catalog may not have had at the beginning."""


class Registry:
    """Streams in memory, in front of those in the catalog."""

    def __init__(self, catalog: Catalog, next_epoch: int) -> None:
        self._catalog = catalog
        self._by_path: dict[str, DiskStream] = {}
        self._by_number: OrderedDict[int, DiskStream] = OrderedDict()
        """In the order in which they were loaded, or last considered for eviction."""
        self._busy_in_a_row = 0
        self._deadlines: ExpiryQueue[int] = ExpiryQueue(self._by_number.__contains__)
        self.next_epoch = next_epoch
        self.documents = Documents()
        self.dirty: dict[int, DiskStream] = {}
        """Streams whose durable state is not in the catalog yet."""
        self.collecting: dict[int, DiskStream] = {}
        """Streams that a snapshot in progress collects."""
        self.removed: set[int] = set()
        """Removed streams that are still in the catalog."""
        self.removing: set[int] = set()
        """Removed streams that the checkpoint in progress deletes from the catalog."""
        self.tail_bytes = 0
        """Durable bytes in memory that no segment has yet."""
        self.dirty_bytes = 0
        """Memory of unsaved streams and producers, without their tails."""
        self.saving_bytes = 0
        """The same, of those that the checkpoint in progress saves."""
        self.changed: set[str] = set()
        """Paths whose watchers have to be notified."""
        self.lookups: dict[str | int, Lookup] = {}
        """Lookups in the catalog that are in flight, by path or by number."""
        self._claims: Counter[str] = Counter()
        self._unsaved = PathIndex()
        """Paths of streams that may not be in the catalog at all."""
        self.oldest_access = 0.0
        """Earliest last-access time assumed after a crash, so that no sliding TTL ends early."""

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def unsaved_bytes(self) -> int:
        """How much memory only a checkpoint can free."""
        return self.tail_bytes + self.dirty_bytes + self.saving_bytes

    # Looking up

    def find_loaded(self, path: str) -> DiskStream | None:
        """Return a stream if it is in memory, is not changing, and never expires."""
        stream = self._by_path.get(path)
        if stream is None or stream.changing or stream.expires:
            return None
        stream.recently_used = True
        return stream

    def loaded(self, path: str) -> DiskStream | None:
        """Return the stream at a path if it is in memory."""
        stream = self._by_path.get(path)
        if stream is not None:
            stream.recently_used = True
        return stream

    def is_loaded(self, path: str) -> bool:
        """Return whether the stream at a path is in memory."""
        return path in self._by_path

    def loaded_number(self, number: int) -> DiskStream | None:
        """Return a stream by its number if it is in memory."""
        return self._by_number.get(number)

    def add_found(self, found: DiskStream, lookup: "Lookup") -> None:
        """Add a stream that a lookup found, unless what is in memory is newer."""
        number = found.number
        in_memory = number in self._by_number or found.path in self._by_path
        if not in_memory and not self.is_removed(number, *lookup.removed):
            self._load(found)

    def is_removed(self, number: int, *before: set[int]) -> bool:
        """Return whether a stream was removed that may still be found in the catalog."""
        return any(number in removed for removed in (self.removed, self.removing, *before))

    @contextmanager
    def claimed(self, *paths: str) -> Iterator[None]:
        """Keep streams at some paths from being evicted, also if they are loaded later."""
        self._claims.update(paths)
        try:
            yield
        finally:
            for path in paths:
                self._claims[path] -= 1
                if not self._claims[path]:
                    del self._claims[path]

    def find(self, path: str) -> DiskStream | None:
        """Find the stream at a path, also in the catalog, without waiting.

        A deleted stream holds its path while it has forks.
        """
        stream = self.loaded(path)
        if stream is not None:
            return stream
        row = self._catalog.stream_at(path)
        if row is None or self.is_removed(row.id):
            return None
        return self._load(from_row(row, self._catalog))

    def by_number(self, number: int) -> DiskStream | None:
        """Find a stream by its number, also in the catalog, without waiting."""
        stream = self._by_number.get(number)
        if stream is not None or self.is_removed(number):
            return stream
        row = self._catalog.stream(number)
        return None if row is None else self._load(from_row(row, self._catalog))

    def unsaved_paths(self, prefix: str, after: str, limit: int) -> list[str]:
        """List paths of durable streams that may not be in the catalog, in their order."""
        found: list[str] = []
        for path in self._unsaved.after(after, prefix):
            if len(found) == limit:
                break
            stream = self._by_path.get(path)
            if stream is not None and not stream.deleted:
                found.append(path)
        return found

    def merge(
        self, listing: PendingPage, page: list[DiskStream]
    ) -> tuple[dict[str, DiskStream], list[str]]:
        """Merge a page of the catalog with what is in memory.

        Also return the paths that were unsaved when the listing began, and that neither has now.
        """
        last = page[-1].path if len(page) == listing.limit else None
        found: dict[str, DiskStream] = {}
        for stream in page:
            if not self.is_removed(stream.number, *listing.removed):
                found[stream.path] = self._by_path.get(stream.path, stream)
        gone: list[str] = []
        now = self.unsaved_paths(listing.prefix, listing.after, listing.limit)
        for path in dict.fromkeys([*listing.unsaved, *now]):
            if last is not None and path > last:
                continue  # the catalog may have more before it
            loaded = self._by_path.get(path)
            if loaded is not None:
                found[path] = loaded
            elif path not in found:
                gone.append(path)
        return found, gone

    def _load(self, stream: DiskStream) -> DiskStream:
        stream.last_access = max(stream.last_access, self.oldest_access)
        self.put(stream)
        return stream

    def put(self, stream: DiskStream) -> None:
        """Add a stream."""
        self._by_path[stream.path] = stream
        self._by_number[stream.number] = stream
        self.schedule(stream)

    def drop(self, stream: DiskStream) -> None:
        """Drop a stream that was evicted or removed, or whose creation failed."""
        if self._by_path.get(stream.path) is stream:
            del self._by_path[stream.path]
        self._by_number.pop(stream.number, None)
        if self.lookups:
            for key in (stream.path, stream.number):
                lookup = self.lookups.get(key)
                if lookup is not None:
                    lookup.is_stale = True

    def evict(self, keep: int) -> bool:
        """Drop clean streams that were not used lately; return whether to continue soon.

        Each call considers a limited number, until `keep` are left or all are in use or unsaved.
        """
        surplus = len(self._by_number) - keep
        for _ in range(min(2 * surplus, _EVICT_AT_ONCE)):
            if len(self._by_number) <= keep:
                break
            number = next(iter(self._by_number))
            stream = self._by_number[number]
            busy = (
                number in self.dirty
                or number in self.collecting
                or stream.in_checkpoint
                or stream.uncommitted
                or stream.changing
                or stream.holds
                or stream.path in self._claims
            )
            self._busy_in_a_row = self._busy_in_a_row + 1 if busy else 0
            if busy or stream.recently_used:
                stream.recently_used = False
                self._by_number.move_to_end(number)
            else:
                self.drop(stream)
        if keep < len(self._by_number) > self._busy_in_a_row:
            return True
        self._busy_in_a_row = 0
        return False

    # Changing

    def make(self, number: int, meta: CreateMeta) -> DiskStream:
        """Build a stream from a creation record, without adding it."""
        source = self.by_number(meta.source) if meta.source else None
        origin = None
        if source is not None and meta.source_path is not None:
            origin = ForkOrigin(meta.source_path, Offset(*meta.anchor), meta.sub_offset, meta.at)
        expiry = Expiry(meta.ttl, meta.expires_at, meta.instant)
        config = stream_config(meta.content_type, expiry, origin)
        lineage = lineage_of(config, number, source)
        begin = WriterState(meta.at)
        stream = DiskStream(number, meta.path, config, lineage, meta.source, meta.at, begin, None)
        stream.last_access = meta.now
        return stream

    def created(self, stream: DiskStream, data: bytes, *, closed: bool) -> None:
        """Apply a durable creation."""
        after = next_state(stream.durable, len(data), close=closed, seq=None, claim=None)
        stream.extend(data, after)
        stream.accepted = after
        self.tail_bytes += len(data)
        if stream.source:
            source = self.by_number(stream.source)
            if source is not None:
                source.forks += 1
                self._mark_changed(source)
        self._mark_changed(stream)
        self._unsaved.add(stream.path)
        self.changed.add(stream.path)

    def _mark_changed(self, stream: DiskStream) -> None:
        """Have the next checkpoint save the row of a stream, not just its bytes and producers."""
        stream.row_changed = True
        self._mark_dirty(stream)

    def _mark_dirty(self, stream: DiskStream) -> None:
        if stream.number not in self.dirty:
            self.dirty[stream.number] = stream
            self.dirty_bytes += STREAM_BYTES + len(stream.path)

    def saved(self, stream: DiskStream) -> None:
        """Record that a stream is in the catalog."""
        if self._by_path.get(stream.path, stream) is stream:
            self._unsaved.discard(stream.path)

    def appended(
        self,
        stream: DiskStream,
        data: bytes,
        extras: AppendExtras,
        now: float,
        after: WriterState | None = None,
    ) -> None:
        """Apply a durable append; in a replay the state after it is computed here."""
        if after is None:
            claim = None if extras.producer is None else ProducerClaim(*extras.producer)
            after = next_state(
                stream.durable, len(data), close=extras.close, seq=extras.seq, claim=claim
            )
        stream.extend(data, after)
        self.tail_bytes += len(data)
        stream.last_access = max(stream.last_access, now)
        self._mark_dirty(stream)
        self.changed.add(stream.path)
        if stream.expires:
            stream.row_changed = True
        if extras is NOTHING_ELSE:
            return
        if extras.producer is not None:
            producer_id, epoch, seq = extras.producer
            if producer_id not in stream.unsaved_producers:
                self.dirty_bytes += _PRODUCER_BYTES + len(producer_id)
            stream.unsaved_producers[producer_id] = ProducerState(epoch, seq)
        if extras.close or extras.seq is not None:
            stream.row_changed = True

    def replayed(self, stream: DiskStream) -> None:
        """Set the accepted state to the durable one, at the end of a replay."""
        stream.accepted = stream.durable
        for producer_id, state in stream.unsaved_producers.items():
            stream.producers.set(producer_id, state)
        stream.last_access = max(stream.last_access, self.oldest_access)

    def deleted(self, stream: DiskStream) -> None:
        """Apply a durable deletion, and remove each source that only this stream needed."""
        stream.deleted = True
        self._mark_changed(stream)
        self.changed.add(stream.path)
        current: DiskStream | None = stream
        while current is not None and is_removable(current):
            self._remove(current)
            current = self.by_number(current.source) if current.source else None
            if current is not None:
                current.forks -= 1
                self._mark_changed(current)

    def _remove(self, stream: DiskStream) -> None:
        self.drop(stream)
        self.saved(stream)
        if self.dirty.pop(stream.number, None) is not None:
            self.dirty_bytes -= STREAM_BYTES + len(stream.path)
        self.tail_bytes -= stream.tail_log.end - stream.tail_log.start
        if not stream.new:
            self.removed.add(stream.number)

    def touch(self, stream: DiskStream, now: float) -> None:
        """Record an access; it is saved only for a sliding TTL.

        A request that waited may hold a stream that was removed: it must not be saved again.
        """
        stream.last_access = max(stream.last_access, now)
        if stream.config.expiry.ttl is not None and self._by_number.get(stream.number) is stream:
            self._mark_changed(stream)

    # Expiry

    def schedule(self, stream: DiskStream) -> None:
        """Have `due` return a stream once its deadline, as it is now, has passed."""
        deadline = stream.deadline() if stream.expires and not stream.deleted else None
        if deadline is not None:
            self._deadlines.add(deadline, stream.number)

    def due(self, now: float) -> Iterator[str]:
        """Yield paths of streams in memory that may have expired; check each."""
        while (number := self._deadlines.pop(now)) is not None:
            stream = self._by_number.get(number)
            if stream is not None and not stream.deleted:
                yield stream.path

    # Deletion

    def sources_to_change(self, stream: DiskStream) -> tuple[list[DiskStream], int | None]:
        """Return the sources that lose a fork when a stream is deleted.

        The second value is the number of the first one that is not in memory. It may have to be
        changed, and others above it.
        """
        sources: list[DiskStream] = []
        is_removed = stream.forks <= stream.leaving_forks
        while is_removed and stream.source:
            source = self._by_number.get(stream.source)
            if source is None:
                return sources, stream.source
            sources.append(source)
            is_over = source.deleted or source.changing
            is_removed = is_over and source.forks - source.leaving_forks <= 1
            stream = source
        return sources, None


class Documents:
    """The durable documents: those in the catalog, and changes since the last checkpoint."""

    __slots__ = ("_lookups", "_saving", "unsaved")

    def __init__(self) -> None:
        self._lookups: list[list[Mapping[str, bytes | None]]] = []
        """For each lookup in flight, the changes since its beginning or saved after it."""
        self.unsaved: dict[str, bytes | None] = {}
        """Changes for the next checkpoint."""
        self._saving: dict[str, bytes | None] = {}

    def put(self, changes: Mapping[str, bytes | None]) -> None:
        """Apply durable changes."""
        self.unsaved.update(changes)

    @contextmanager
    def changes(self) -> Iterator[list[Mapping[str, bytes | None]]]:
        """Return the changes that a lookup in the catalog may miss, oldest first, until its end."""
        layers: list[Mapping[str, bytes | None]] = [self._saving, self.unsaved]
        self._lookups.append(layers)
        try:
            yield layers
        finally:
            self._lookups = [others for others in self._lookups if others is not layers]

    def take(self) -> Mapping[str, bytes | None]:
        """Pass the changes to a checkpoint; they stay visible until it has succeeded or failed."""
        self._saving = self.unsaved
        self._replace_unsaved({})
        return self._saving

    def _replace_unsaved(self, changes: dict[str, bytes | None]) -> None:
        self.unsaved = changes
        for layers in self._lookups:
            layers.append(changes)

    def succeeded(self) -> None:
        """Drop the changes of a checkpoint that has succeeded."""
        self._saving = {}

    def failed(self) -> None:
        """Return the changes of a failed checkpoint to those for the next one."""
        self._replace_unsaved({**self._saving, **self.unsaved})
        self._saving = {}
