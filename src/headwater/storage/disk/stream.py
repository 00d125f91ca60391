"""One stream in memory: its accepted and its durable state, and what a checkpoint has to save.

A request is decided on the *accepted* state, which is ahead of the disk by the batches in flight.
Readers, checkpoints and answers use the *durable* state. The bytes that no segment has yet are the
stream's `tail_log`; earlier bytes are found through the catalog.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headwater.protocol.expiry import Expiry
from headwater.protocol.forks import ForkOrigin
from headwater.protocol.lifecycle import StreamConfig, WriterState, stream_config
from headwater.protocol.offsets import Lineage, Offset
from headwater.protocol.producers import ProducerClaim, ProducerState
from headwater.storage.byte_log import ByteLog
from headwater.storage.disk.catalog import Catalog, StreamRow, dump, load
from headwater.storage.disk.group_commit import CommitFuture
from headwater.storage.store import StreamInfo


class Producers:
    """The producers of one stream; those not accepted since a checkpoint are looked up.

    Only the last one looked up is cached, so that refused requests do not use up memory.
    """

    __slots__ = ("_catalog", "_known", "_looked_up", "_looked_up_state", "_stream", "version")

    def __init__(self, stream: int, catalog: Catalog | None) -> None:
        self._stream = stream
        self._catalog = catalog
        """None for a stream that is not in the catalog yet."""
        self._known: dict[str, ProducerState] = {}
        """States accepted since the last checkpoint."""
        self._looked_up: str | None = None
        self._looked_up_state: ProducerState | None = None
        self.version = 0
        """Changes when a checkpoint has saved states: one that was looked up before may be old."""

    def knows(self, producer_id: str) -> bool:
        """Return whether `get` returns a producer's state without a lookup."""
        return producer_id in self._known or self._catalog is None or producer_id == self._looked_up

    def get(self, producer_id: str) -> ProducerState | None:
        """Return a producer's accepted state, which must be known."""
        state = self._known.get(producer_id)
        if state is not None or producer_id != self._looked_up:
            return state
        return self._looked_up_state

    def look_up(self, producer_id: str) -> ProducerState | None:
        """Return a producer's state in the catalog; called in a thread."""
        found = None if self._catalog is None else self._catalog.producer(self._stream, producer_id)
        return None if found is None else ProducerState(*found)

    def looked_up(self, producer_id: str, state: ProducerState | None) -> None:
        """Cache the result of a lookup."""
        self._looked_up = producer_id
        self._looked_up_state = state

    def set(self, producer_id: str, state: ProducerState | None) -> None:
        """Accept a state, or revert to one; None removes it."""
        if state is None:
            self._known.pop(producer_id, None)
        else:
            self._known[producer_id] = state

    def saved(self, states: Mapping[str, tuple[int, int]], catalog: Catalog) -> None:
        """Drop states that the catalog has now, so that old sessions do not use up memory."""
        self._catalog = catalog
        self._looked_up = None
        self.version += 1
        if self._known:
            self._known = {
                producer_id: state
                for producer_id, state in self._known.items()
                if states.get(producer_id) != state
            }


class StreamValues(NamedTuple):
    """What may change of a stream's row in the catalog."""

    durable: WriterState
    last_access: float
    deleted: bool
    forks: int


class DiskStream:
    """One incarnation of a stream."""

    __slots__ = (
        "_info",
        "accepted",
        "changing",
        "commit",
        "config",
        "deleted",
        "durable",
        "expires",
        "forks",
        "holds",
        "in_checkpoint",
        "last_access",
        "leaving_forks",
        "lineage",
        "new",
        "number",
        "path",
        "producers",
        "recently_used",
        "row_changed",
        "source",
        "start",
        "tail_log",
        "unsaved_producers",
    )

    def __init__(
        self,
        number: int,
        path: str,
        config: StreamConfig,
        lineage: Lineage,
        source: int,
        start: int,
        durable: WriterState,
        catalog: Catalog | None,
    ) -> None:
        self.number = number
        self.path = path
        self.config = config
        self.expires = bool(config.expiry)
        self.lineage = lineage
        self.source = source
        self.start = start
        """Where the stream's own bytes begin: at the fork point, or at 0."""
        self.tail_log = ByteLog(durable.end)
        """Durable bytes that no segment has yet."""
        # Accepted
        self.accepted = durable
        self.producers = Producers(number, catalog)
        self.changing = False
        """Being created or deleted: other requests wait until that is durable."""
        self.leaving_forks = 0
        """Forks that are being removed."""
        self.commit: CommitFuture | None = None
        """The last batch that changes the stream."""
        # Durable
        self.durable = durable
        self.unsaved_producers: dict[str, ProducerState] = {}
        self.deleted = False
        self.forks = 0
        self.last_access = 0.0
        # Housekeeping
        self.new = catalog is None
        self.row_changed = self.new
        """Whether the catalog's row is out of date; the end is left to the extents."""
        self.in_checkpoint = False
        """Part of a checkpoint in progress."""
        self.recently_used = True
        self.holds = 0
        """Requests that hold the stream while they wait; it is not evicted meanwhile."""
        self._info: StreamInfo | None = None

    @property
    def uncommitted(self) -> bool:
        """Whether something is accepted but not durable yet."""
        return self.commit is not None and not self.commit.done()

    def info(self) -> StreamInfo:
        """Describe the durable stream; cached until it changes."""
        info = self._info
        if info is None:
            durable = self.durable
            info = self._info = StreamInfo(
                self.path,
                self.config,
                self.number,
                self.lineage.name(durable.end),
                durable.closed,
            )
        return info

    def extend(self, data: bytes, after: WriterState) -> None:
        """Apply an append that has become durable."""
        if data:
            self.tail_log.append(data)
        self.durable = after
        self._info = None

    def start_after(self, end: int) -> None:
        """Have a new stream begin after bytes that segments already hold."""
        self.tail_log = ByteLog(end)
        self.accepted = self.durable = WriterState(end)
        self.new = False

    def deadline(self) -> float | None:
        """Return when the stream expires if it is not accessed again."""
        return self.config.expiry.deadline(self.last_access)

    def values(self) -> "StreamValues":
        """Return what may change of the catalog's row, as it is durable now."""
        return StreamValues(self.durable, self.last_access, self.deleted, self.forks)

    def row(self, values: "StreamValues") -> StreamRow:
        """Build the catalog's row; reads only what never changes, so a thread may call it."""
        expiry = self.config.expiry
        origin = self.config.origin
        durable = values.durable
        return StreamRow(
            id=self.number,
            path=self.path,
            content_type=self.config.content_type,
            ttl=expiry.ttl,
            expires_at=expiry.expires_at,
            instant=expiry.instant,
            last_access=values.last_access,
            deadline=None if values.deleted else expiry.deadline(values.last_access),
            start=self.start,
            end=durable.end,
            closed=int(durable.closed),
            closed_by=dump(durable.closed_by),
            last_seq=durable.last_seq,
            deleted=int(values.deleted),
            forks=values.forks,
            source=self.source,
            origin=None
            if origin is None
            else dump([origin.source, list(origin.anchor), origin.sub_offset]),
            inherited=dump(self.lineage.inherited) if self.lineage.inherited else None,
        )


def from_row(row: StreamRow, catalog: Catalog) -> DiskStream:
    """Build a stream from its row in the catalog."""
    origin = None
    if row.origin is not None:
        source, anchor, sub_offset = load(row.origin)
        origin = ForkOrigin(source, Offset(*anchor), sub_offset, row.start)
    config = stream_config(row.content_type, Expiry(row.ttl, row.expires_at, row.instant), origin)
    closed_by = load(row.closed_by)
    durable = WriterState(
        row.end, bool(row.closed), closed_by and ProducerClaim(*closed_by), row.last_seq
    )
    inherited = tuple((upto, epoch) for upto, epoch in load(row.inherited) or ())
    stream = DiskStream(
        row.id,
        row.path,
        config,
        Lineage(row.id, inherited),
        row.source,
        row.start,
        durable,
        catalog,
    )
    stream.deleted = bool(row.deleted)
    stream.forks = row.forks
    stream.last_access = row.last_access
    return stream
