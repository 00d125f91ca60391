"""The life of a stream: creation, appends, closure and deletion, as rules over values.

A store loads the stream at a path, calls a `decide_*` function, and applies the decision. The rules
do no I/O and change nothing. Everything that the next append is decided on is one value,
`WriterState`, and an accepted append contains the next one. A store uses it for further decisions
at once, shows it to readers when it is durable, and reverts to the previous one if the write fails.
"""

from typing import NamedTuple, Protocol

from msgspec import Struct

from headwater.protocol.byte_requests import ByteRequests
from headwater.protocol.content_types import DEFAULT, media_type
from headwater.protocol.expiry import NEVER, Expiry, inherited_expiry
from headwater.protocol.forks import ForkOrigin, ForkRequest, resolve_fork
from headwater.protocol.framing import EmptyArray, frame
from headwater.protocol.offsets import Lineage
from headwater.protocol.producers import (
    Duplicate,
    ProducerClaim,
    ProducerState,
    decide_producer,
)
from headwater.protocol.refusals import (
    BodyRefusal,
    ConfigMismatch,
    ContentTypeMismatch,
    ForkRefusal,
    Missing,
    PathBlocked,
    SeqRegression,
    SourceGone,
    SourceNotFound,
    StreamClosed,
    StreamGone,
    StreamNotFound,
    WriteRefusal,
)


class StreamConfig(Struct, frozen=True):
    """What a stream was created with; it never changes."""

    content_type: str
    media_type: str
    expiry: Expiry = NEVER
    origin: ForkOrigin | None = None


def stream_config(
    content_type: str, expiry: Expiry = NEVER, origin: ForkOrigin | None = None
) -> StreamConfig:
    """Build a configuration; a malformed content type counts as binary."""
    return StreamConfig(content_type, media_type(content_type) or DEFAULT, expiry, origin)


class WriterState(Struct, frozen=True):
    """The state of a stream that the next append is decided on."""

    end: int
    closed: bool = False
    closed_by: ProducerClaim | None = None
    last_seq: str | None = None


class StoredStream(Protocol):
    """A stream as the rules see it."""

    @property
    def path(self) -> str: ...
    @property
    def config(self) -> StreamConfig: ...
    @property
    def lineage(self) -> Lineage: ...
    @property
    def deleted(self) -> bool: ...
    @property
    def forks(self) -> int: ...
    @property
    def accepted(self) -> WriterState: ...
    @property
    def durable(self) -> WriterState: ...


class Create(Struct, frozen=True):
    """A request to create a stream, or to make sure that it exists."""

    content_type: str | None = None
    """If None, that of the source for a fork, otherwise `application/octet-stream`."""
    expiry: Expiry = NEVER
    body: bytes = b""
    close: bool = False
    fork: ForkRequest | None = None


class Append(Struct, frozen=True):
    """A request to append, to close, or to do both at once."""

    content_type: str = ""
    body: bytes = b""
    close: bool = False
    seq: str | None = None
    producer: ProducerClaim | None = None


# Creation


class NewStream(NamedTuple):
    """A stream to create, with its first bytes."""

    config: StreamConfig
    data: bytes
    closed: bool


class Exists(NamedTuple):
    """The stream exists, and agrees with the request."""


CreateDecision = (
    NewStream
    | Exists
    | PathBlocked
    | ConfigMismatch
    | ContentTypeMismatch
    | ForkRefusal
    | BodyRefusal
)


def decide_create(
    path: str, request: Create, existing: StoredStream | None, source: StoredStream | None
) -> ByteRequests[CreateDecision]:
    """Decide on a creation (PROTOCOL 4.2, 5.1); requests bytes of the source of a fork.

    Checked in this order: an existing stream, the source, its content type, the fork point, the
    body.
    """
    if existing is not None:
        return _compare(path, request, existing)
    content_type = request.content_type or DEFAULT
    expiry = request.expiry
    origin: ForkOrigin | None = None
    fork = request.fork
    if fork is not None:
        if source is None:
            return SourceNotFound(fork.source)
        if source.deleted:
            return SourceGone(fork.source)
        config = source.config
        if request.content_type and media_type(request.content_type) != config.media_type:
            return ContentTypeMismatch(fork.source, config.media_type, request.content_type)
        end = source.durable.end  # a fork shares only what readers of the source can see
        resolved = yield from resolve_fork(fork, source.lineage, end, config.media_type)
        if not isinstance(resolved, ForkOrigin):
            return resolved
        origin = resolved
        content_type = request.content_type or config.content_type
        expiry = inherited_expiry(config.expiry, expiry)
    config = stream_config(content_type, expiry, origin)
    data = frame(request.body, config.media_type) if request.body else b""
    if isinstance(data, EmptyArray):
        data = b""  # PROTOCOL 9.1.3: on PUT an empty array is an empty stream
    if not isinstance(data, bytes):
        return data
    return NewStream(config, data, request.close)


def _compare(
    path: str, request: Create, existing: StoredStream
) -> Exists | PathBlocked | ConfigMismatch:
    """Compare a request with the stream at its path (PROTOCOL 5.1)."""
    if existing.deleted:
        return PathBlocked(path)
    config = existing.config
    expiry = config.expiry
    origin = config.origin
    closed = existing.accepted.closed
    fork = request.fork
    rows = [("closure", "closed" if closed else "open", "closed" if request.close else "open")]
    if request.content_type is not None:
        rows.append(("content type", config.media_type, media_type(request.content_type) or ""))
    if request.expiry or fork is None:
        rows.append(("expiry", _describe(expiry), _describe(request.expiry)))
    source = origin.source if origin else "none"
    rows.append(("fork source", source, "none" if fork is None else fork.source))
    if fork is not None and origin is not None and not fork.matches(origin):
        rows.append(("fork offset", origin.describe(), fork.describe()))
    for field, has, wants in rows:
        if has != wants:
            return ConfigMismatch(path, field, has, wants)
    return Exists()


def _describe(expiry: Expiry) -> str:
    if expiry.ttl is not None:
        return f"a TTL of {expiry.ttl} s"
    return "none" if expiry.instant is None else f"at {expiry.instant:.3f}"


def lineage_of(config: StreamConfig, epoch: int, source: StoredStream | None) -> Lineage:
    """Return the lineage of a new stream; a fork derives it from its source."""
    if source is None or config.origin is None:
        return Lineage(epoch)
    return source.lineage.fork(config.origin.at, epoch)


# Appends


class Accepted(Struct, frozen=True):
    """An accepted append: the bytes to store, and the states after it."""

    data: bytes
    after: WriterState
    producer: ProducerState | None


def decide_append(
    path: str, stream: StoredStream | None, producer: ProducerState | None, request: Append
) -> Accepted | Duplicate | Missing | WriteRefusal:
    """Decide on an append, in the order of precedence of PROTOCOL 5.2.

    `producer` is the stored state of the producer that the request names. A repeated claim comes
    before `Stream-Seq`: a retry carries the same number again.
    """
    if stream is None or stream.deleted:
        return missing(path, stream)
    before = stream.accepted
    claim = request.producer
    if before.closed:
        if claim is not None and claim == before.closed_by:
            return Duplicate(claim.state)
        if claim is None and request.close and not request.body:
            return Duplicate()
        return StreamClosed(path, stream.lineage.name(before.end), producer)
    body = request.body
    media = stream.config.media_type
    given = request.content_type
    if body and given != media and media_type(given) != media:
        return ContentTypeMismatch(path, media, given)
    state: ProducerState | None = None
    if claim is not None:
        decision = decide_producer(producer, claim)
        if type(decision) is not ProducerState:
            return decision  # type: ignore[return-value] # narrowed by the exact type above
        state = decision
    seq = request.seq
    if seq is not None and before.last_seq is not None and seq <= before.last_seq:
        return SeqRegression(path, before.last_seq, seq)
    data = frame(body, media) if body else b""
    if not isinstance(data, bytes):
        return data
    after = next_state(before, len(data), close=request.close, seq=seq, claim=claim)
    return Accepted(data, after, state)


def next_state(
    before: WriterState, count: int, *, close: bool, seq: str | None, claim: ProducerClaim | None
) -> WriterState:
    """Return the state after an accepted append of `count` bytes."""
    return WriterState(
        before.end + count,
        before.closed or close,
        claim if close else before.closed_by,
        before.last_seq if seq is None else seq,
    )


# Deletion


def missing(path: str, stream: StoredStream | None) -> Missing:
    """Return why a stream is missing: it does not exist, or was deleted and has forks."""
    return StreamNotFound(path) if stream is None else StreamGone(path)


def is_removable(stream: StoredStream) -> bool:
    """Return whether nothing needs the bytes of a stream any longer.

    Asked when a deletion takes effect, of the stream and then of each source up the chain.
    """
    return stream.deleted and stream.forks == 0
