"""The life of a stream: how it is configured, when it expires, and what an append may do to it."""

from typing import NamedTuple, Protocol

from msgspec import Struct

from headwater.protocol.content_types import media_type
from headwater.protocol.expiry import NEVER, Expiry
from headwater.protocol.forks import ForkOrigin, ForkRequest
from headwater.protocol.framing import frame
from headwater.protocol.offsets import Offset
from headwater.protocol.producers import ProducerClaim, ProducerState, Repeated, judge
from headwater.protocol.refusals import (
    ConfigMismatch,
    ContentTypeMismatch,
    SeqRegression,
    StreamClosed,
    WriteRefusal,
)


class StreamConfig(Struct, frozen=True):
    """What a stream was created with; none of it ever changes."""

    content_type: str
    media_type: str
    expiry: Expiry = NEVER
    origin: ForkOrigin | None = None


class Create(Struct, frozen=True):
    """A request to create a stream, or to make sure that it exists."""

    content_type: str | None = None
    """None: the source's for a fork, `application/octet-stream` otherwise."""
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


def existing_mismatch(
    path: str, config: StreamConfig, *, closed: bool, request: Create
) -> ConfigMismatch | None:
    """Compare a stream with a request to create it (PROTOCOL 5.1); None where they agree."""
    wanted = request.expiry
    expiry = config.expiry
    origin = config.origin
    rows = [("closure", "closed" if closed else "open", "closed" if request.close else "open")]
    if request.content_type is not None:
        rows.append(("content type", config.media_type, media_type(request.content_type) or ""))
    if wanted or request.fork is None:
        rows.append(("expiry", _describe(expiry), _describe(wanted)))
    if request.fork is None:
        rows.append(("fork source", origin.source if origin else "none", "none"))
    else:
        rows.append(("fork source", origin.source if origin else "none", request.fork.source))
        if origin is not None and not request.fork.asks_for(origin):
            rows.append(("fork offset", origin.describe(), request.fork.describe()))
    for field, has, wants in rows:
        if has != wants:
            return ConfigMismatch(path, field, has, wants)
    return None


def _describe(expiry: Expiry) -> str:
    if expiry.ttl is not None:
        return f"a TTL of {expiry.ttl} s"
    return "none" if expiry.instant is None else f"at {expiry.instant:.3f}"


class ProducerStates(Protocol):
    """Where the states of a stream's producers are looked up."""

    def get(self, producer_id: str, /) -> ProducerState | None: ...


class WriterState(Protocol):
    """What the rules of appending need to know of a stream."""

    @property
    def path(self) -> str: ...
    @property
    def media_type(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @property
    def closed_by(self) -> ProducerClaim | None: ...
    @property
    def last_seq(self) -> str | None: ...
    @property
    def producers(self) -> ProducerStates: ...
    @property
    def tail(self) -> Offset: ...


class AppendPlan(NamedTuple):
    """An append that is accepted: the bytes to store, and the producer's new state."""

    data: bytes
    producer: ProducerState | None


class AlreadyClosed(Struct, frozen=True):
    """A close-only request on a closed stream: a success that changes nothing."""


def decide_append(
    stream: WriterState, request: Append
) -> AppendPlan | Repeated | AlreadyClosed | WriteRefusal:
    """Decide on an append, in the order of precedence of PROTOCOL 5.2.

    A repeated producer claim comes before `Stream-Seq`: a retry carries the same number again.
    """
    claim = request.producer
    if stream.closed:
        if claim is not None and claim == stream.closed_by:
            return Repeated(claim.state)
        if claim is None and request.close and not request.body:
            return AlreadyClosed()
        known = None if claim is None else stream.producers.get(claim.producer_id)
        return StreamClosed(stream.path, stream.tail, known)
    given = request.content_type
    if request.body and given != stream.media_type and media_type(given) != stream.media_type:
        return ContentTypeMismatch(stream.path, stream.media_type, given)
    producer: ProducerState | None = None
    if claim is not None:
        verdict = judge(stream.producers.get(claim.producer_id), claim)
        if type(verdict) is not ProducerState:
            return verdict  # type: ignore[return-value] # narrowed by the exact type above
        producer = verdict
    seq = request.seq
    if seq is not None and stream.last_seq is not None and seq <= stream.last_seq:
        return SeqRegression(stream.path, stream.last_seq, seq)
    if not request.body:
        return AppendPlan(b"", producer)
    data = frame(request.body, stream.media_type)
    if not isinstance(data, bytes):
        return data
    return AppendPlan(data, producer)
