"""The streams in memory, which of them a checkpoint has to save, and how durable changes apply.

Changes are applied here in the order of the journal, whether they come from a batch that has just
become durable or from a replay: both go through the same methods.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
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
from headwater.storage.path_index import PathIndex

STREAM_BYTES: Final = 1024
"""The memory of a stream without its path, its tail and its producers."""
_PRODUCER_BYTES: Final = 256
_EVICT_AT_ONCE: Final = 512


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
        self.documents = Documents(catalog)
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

    def find(self, path: str) -> DiskStream | None:
        """Find the stream at a path; a deleted one holds its path while it has forks."""
        stream = self._by_path.get(path)
        if stream is not None:
            stream.recently_used = True
            return stream
        row = self._catalog.stream_at(path)
        if row is None or row.id in self.removed or row.id in self.removing:
            return None
        return self._load(from_row(row, self._catalog))

    def by_number(self, number: int) -> DiskStream | None:
        """Find a stream by its number."""
        stream = self._by_number.get(number)
        if stream is not None or number in self.removed or number in self.removing:
            return stream
        row = self._catalog.stream(number)
        return None if row is None else self._load(from_row(row, self._catalog))

    def living(self, prefix: str, after: str, limit: int) -> list[DiskStream]:
        """List durable streams in the order of their paths, without loading those of the catalog.

        The list is empty only if there are no more.
        """
        while True:
            rows = self._catalog.living(prefix, after, limit)
            # After the last row of a full page the catalog may have more, for the next page.
            last = rows[-1].path if len(rows) == limit else None
            found: dict[str, DiskStream] = {}
            for row in rows:
                if row.id not in self.removed and row.id not in self.removing:
                    found[row.path] = self._by_path.get(row.path) or from_row(row, self._catalog)
            fresh = 0
            for path in self._unsaved.after(after, prefix):
                if fresh == limit or (last is not None and path > last):
                    break
                stream = self._by_path.get(path)
                if stream is not None and not stream.deleted:
                    found[path] = stream
                    fresh += 1
            listed = [found[path] for path in sorted(found) if not found[path].deleted]
            if listed or last is None:
                return listed[:limit]
            after = last

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
        """Yield paths of streams that may have expired; check each before deleting it."""
        while (number := self._deadlines.pop(now)) is not None:
            stream = self._by_number.get(number)
            if stream is not None and not stream.deleted:
                yield stream.path
        for path in self._catalog.expired(now):
            if path not in self._by_path:
                yield path


class Documents:
    """The durable documents: those in the catalog, and changes since the last checkpoint."""

    __slots__ = ("_catalog", "_saving", "unsaved")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.unsaved: dict[str, bytes | None] = {}
        """Changes for the next checkpoint."""
        self._saving: dict[str, bytes | None] = {}

    def put(self, changes: Mapping[str, bytes | None]) -> None:
        """Apply durable changes."""
        self.unsaved.update(changes)

    def get(self, prefix: str) -> dict[str, bytes]:
        """Return the documents whose keys begin with a prefix."""
        found: dict[str, bytes | None] = dict(self._catalog.documents(prefix))
        for layer in (self._saving, self.unsaved):
            found.update((key, value) for key, value in layer.items() if key.startswith(prefix))
        return {key: value for key, value in sorted(found.items()) if value is not None}

    def take(self) -> Mapping[str, bytes | None]:
        """Pass the changes to a checkpoint; they stay visible until it has succeeded or failed."""
        self._saving, self.unsaved = self.unsaved, {}
        return self._saving

    def succeeded(self) -> None:
        """Drop the changes of a checkpoint that has succeeded."""
        self._saving = {}

    def failed(self) -> None:
        """Return the changes of a failed checkpoint to those for the next one."""
        self.unsaved = {**self._saving, **self.unsaved}
        self._saving = {}
