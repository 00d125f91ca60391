"""One stream in memory: what was decided, what is durable, and what a checkpoint still has to save.

A request is decided on the *accepted* state, which runs ahead of the disk by the batch under way.
Readers, checkpoints and answers go by the *durable* state. The bytes that no segment has yet are
the stream's `log`; whatever lies before them is found through the catalog.
"""

from collections.abc import Mapping

from headwater.protocol import content_types
from headwater.protocol.content_types import media_type
from headwater.protocol.expiry import Expiry
from headwater.protocol.forks import ForkOrigin
from headwater.protocol.lifecycle import StreamConfig
from headwater.protocol.offsets import Lineage, Offset
from headwater.protocol.producers import ProducerClaim, ProducerState
from headwater.storage.byte_log import ByteLog
from headwater.storage.disk.catalog import Catalog, StreamRow, dump, load
from headwater.storage.disk.group_commit import CommitFuture
from headwater.storage.store import StreamInfo


class Producers:
    """The producers of one stream; those not met since it was saved are looked up.

    Only the last one looked up is remembered: whoever is refused must not add up in memory.
    """

    __slots__ = ("_catalog", "_known", "_looked_up", "_looked_up_state", "_stream")

    def __init__(self, stream: int, catalog: Catalog | None) -> None:
        self._stream = stream
        self._catalog = catalog
        """None for a stream that the catalog does not know yet."""
        self._known: dict[str, ProducerState] = {}
        """What was accepted since."""
        self._looked_up: str | None = None
        self._looked_up_state: ProducerState | None = None

    def get(self, producer_id: str, /) -> ProducerState | None:
        """Find a producer's accepted state."""
        state = self._known.get(producer_id)
        if state is not None or self._catalog is None:
            return state
        if producer_id != self._looked_up:
            found = self._catalog.producer(self._stream, producer_id)
            self._looked_up = producer_id
            self._looked_up_state = None if found is None else ProducerState(*found)
        return self._looked_up_state

    def set(self, producer_id: str, state: ProducerState | None) -> None:
        """Accept a state, or take one back."""
        if state is None:
            self._known.pop(producer_id, None)
        else:
            self._known[producer_id] = state

    def saved(self, states: Mapping[str, tuple[int, int]], catalog: Catalog) -> None:
        """Forget what the catalog has by now, so that sessions of the past don't add up."""
        self._catalog = catalog
        self._looked_up = None
        if self._known:
            self._known = {
                producer_id: state
                for producer_id, state in self._known.items()
                if states.get(producer_id) != state
            }


class DiskStream:
    """One incarnation of a stream."""

    __slots__ = (
        "_info",
        "closed",
        "closed_by",
        "commit",
        "config",
        "deleted",
        "durable_closed",
        "durable_closed_by",
        "durable_seq",
        "end",
        "expires",
        "forks",
        "last_access",
        "last_seq",
        "lineage",
        "log",
        "media_type",
        "new",
        "number",
        "path",
        "producers",
        "recently_used",
        "row_changed",
        "saving",
        "source",
        "start",
        "unsaved_producers",
        "unsettled",
    )

    def __init__(
        self,
        number: int,
        path: str,
        config: StreamConfig,
        lineage: Lineage,
        source: int,
        start: int,
        end: int,
        catalog: Catalog | None,
    ) -> None:
        self.number = number
        self.path = path
        self.config = config
        self.media_type = config.media_type
        self.expires = bool(config.expiry)
        self.lineage = lineage
        self.source = source
        self.start = start
        """Where the stream's own bytes begin: the fork point, or 0."""
        self.log = ByteLog(end)
        """Durable bytes that no segment has yet; `log.end` is the durable tail."""
        # Accepted
        self.end = end
        self.closed = False
        self.closed_by: ProducerClaim | None = None
        self.last_seq: str | None = None
        self.producers = Producers(number, catalog)
        self.unsettled = False
        """Being created or deleted: whoever meets it waits until that is durable."""
        self.commit: CommitFuture | None = None
        """The last batch that it is part of."""
        # Durable
        self.durable_closed = False
        self.durable_closed_by: ProducerClaim | None = None
        self.durable_seq: str | None = None
        self.unsaved_producers: dict[str, ProducerState] = {}
        self.deleted = False
        self.forks = 0
        self.last_access = 0.0
        # Housekeeping
        self.new = catalog is None
        self.row_changed = self.new
        """The catalog's row says less than is durable; where it ends is left to its extents."""
        self.saving = False
        """Part of a checkpoint that is under way."""
        self.recently_used = True
        self._info: StreamInfo | None = None

    @property
    def tail(self) -> Offset:
        """The accepted tail, as an offset."""
        return self.lineage.name(self.end)

    @property
    def pending(self) -> bool:
        """Whether something was accepted that is not durable yet."""
        return self.commit is not None and not self.commit.done

    def info(self) -> StreamInfo:
        """Describe the durable stream; kept until it changes."""
        info = self._info
        if info is None:
            info = self._info = StreamInfo(
                self.path,
                self.config,
                self.number,
                self.lineage.name(self.log.end),
                self.durable_closed,
            )
        return info

    def grow(self, data: bytes) -> None:
        """Take over bytes that have become durable."""
        if data:
            self.log.append(data)
        self._info = None

    def close(self, by: ProducerClaim | None) -> None:
        """Take over a closure that has become durable."""
        self.durable_closed = True
        self.durable_closed_by = by
        self._info = None

    def deadline(self) -> float | None:
        """Tell when the stream expires if nobody touches it."""
        return self.config.expiry.deadline(self.last_access)

    def row(self) -> StreamRow:
        """Write the durable state for the catalog."""
        expiry = self.config.expiry
        origin = self.config.origin
        return StreamRow(
            id=self.number,
            path=self.path,
            content_type=self.config.content_type,
            ttl=expiry.ttl,
            expires_at=expiry.expires_at,
            instant=expiry.instant,
            last_access=self.last_access,
            deadline=None if self.deleted else self.deadline(),
            start=self.start,
            end=self.log.end,
            closed=int(self.durable_closed),
            closed_by=dump(self.durable_closed_by),
            last_seq=self.durable_seq,
            deleted=int(self.deleted),
            forks=self.forks,
            source=self.source,
            origin=None
            if origin is None
            else dump([origin.source, list(origin.anchor), origin.sub_offset]),
            inherited=dump(self.lineage.inherited) if self.lineage.inherited else None,
        )


def from_row(row: StreamRow, catalog: Catalog) -> DiskStream:
    """Bring a stream back from the catalog."""
    origin = None
    if row.origin is not None:
        source, anchor, sub_offset = load(row.origin)
        origin = ForkOrigin(source, Offset(*anchor), sub_offset, row.start)
    config = StreamConfig(
        row.content_type,
        media_type(row.content_type) or content_types.DEFAULT,
        Expiry(row.ttl, row.expires_at, row.instant),
        origin,
    )
    inherited = tuple((upto, epoch) for upto, epoch in load(row.inherited) or ())
    stream = DiskStream(
        row.id,
        row.path,
        config,
        Lineage(row.id, inherited),
        row.source,
        row.start,
        row.end,
        catalog,
    )
    closed_by = load(row.closed_by)
    stream.closed = stream.durable_closed = bool(row.closed)
    stream.closed_by = stream.durable_closed_by = closed_by and ProducerClaim(*closed_by)
    stream.last_seq = stream.durable_seq = row.last_seq
    stream.deleted = bool(row.deleted)
    stream.forks = row.forks
    stream.last_access = row.last_access
    return stream
