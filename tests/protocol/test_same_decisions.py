"""The rules over values decide as those that they replace, which are here for one commit."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.protocol.byte_requests import serve
from headwater.protocol.content_types import DEFAULT, media_type
from headwater.protocol.expiry import NEVER, Expiry, inherited_expiry
from headwater.protocol.forks import ForkOrigin, ForkRequest, resolve_fork
from headwater.protocol.framing import EmptyArray, InvalidJson, frame
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
    stream_config,
)
from headwater.protocol.offsets import START, Lineage, Offset
from headwater.protocol.producers import (
    Duplicate,
    ProducerClaim,
    ProducerState,
    decide_producer,
)
from headwater.protocol.refusals import (
    ConfigMismatch,
    ContentTypeMismatch,
    PathBlocked,
    SeqRegression,
    SourceGone,
    SourceNotFound,
    StreamClosed,
    StreamGone,
    StreamNotFound,
)


@dataclass
class Stream:
    config: StreamConfig
    accepted: WriterState
    lineage: Lineage
    path: str
    deleted: bool
    forks: int


def old_append(path: str, stream: Stream | None, known: Any, request: Append) -> Any:
    if stream is None:
        return StreamNotFound(path)
    if stream.deleted:
        return StreamGone(path)
    claim = request.producer
    state = stream.accepted
    if state.closed:
        if claim is not None and claim == state.closed_by:
            return Duplicate(claim.state)
        if claim is None and request.close and not request.body:
            return Duplicate()
        return StreamClosed(stream.path, stream.lineage.name(state.end), known)
    given_type, media = request.content_type, stream.config.media_type
    if request.body and given_type != media and media_type(given_type) != media:
        return ContentTypeMismatch(stream.path, media, given_type)
    producer = None
    if claim is not None:
        verdict = decide_producer(known, claim)
        if type(verdict) is not ProducerState:
            return verdict
        producer = verdict
    seq = request.seq
    if seq is not None and state.last_seq is not None and seq <= state.last_seq:
        return SeqRegression(stream.path, state.last_seq, seq)
    data = frame(request.body, media) if request.body else b""
    if not isinstance(data, bytes):
        return data
    # what both stores did then
    after = WriterState(
        state.end + len(data),
        request.close,
        claim if request.close else None,
        state.last_seq if seq is None else seq,
    )
    return Accepted(data, after, producer)


def old_create(path: str, request: Create, existing: Any, source: Any, read: Any) -> Any:
    if existing is not None:
        if existing.deleted:
            return PathBlocked(path)
        return old_mismatch(path, existing, request) or Exists()
    content_type = request.content_type or DEFAULT
    expiry = request.expiry
    origin = None
    if request.fork is not None:
        if source is None:
            return SourceNotFound(request.fork.source)
        if source.deleted:
            return SourceGone(request.fork.source)
        media = source.config.media_type
        if request.content_type and media_type(request.content_type) != media:
            return ContentTypeMismatch(request.fork.source, media, request.content_type)
        found = serve(resolve_fork(request.fork, source.lineage, source.accepted.end, media), read)
        if not isinstance(found, ForkOrigin):
            return found
        origin = found
        content_type = request.content_type or source.config.content_type
        expiry = inherited_expiry(source.config.expiry, request.expiry)
    media = media_type(content_type) or DEFAULT
    data = frame(request.body, media) if request.body else b""
    if isinstance(data, EmptyArray):
        data = b""
    if isinstance(data, InvalidJson):
        return data
    return NewStream(StreamConfig(content_type, media, expiry, origin), data, request.close)


def old_mismatch(path: str, existing: Stream, request: Create) -> Any:
    config, closed = existing.config, existing.accepted.closed
    wanted, expiry, origin = request.expiry, config.expiry, config.origin
    rows = [("closure", "closed" if closed else "open", "closed" if request.close else "open")]
    if request.content_type is not None:
        rows.append(("content type", config.media_type, media_type(request.content_type) or ""))
    if wanted or request.fork is None:
        rows.append(("expiry", describe(expiry), describe(wanted)))
    if request.fork is None:
        rows.append(("fork source", origin.source if origin else "none", "none"))
    else:
        rows.append(("fork source", origin.source if origin else "none", request.fork.source))
        if origin is not None and not request.fork.asks_for(origin):
            rows.append(("fork offset", origin.describe(), request.fork.describe()))
    for name, has, wants in rows:
        if has != wants:
            return ConfigMismatch(path, name, has, wants)
    return None


def describe(expiry: Expiry) -> str:
    if expiry.ttl is not None:
        return f"a TTL of {expiry.ttl} s"
    return "none" if expiry.instant is None else f"at {expiry.instant:.3f}"


STORED = b"1,\n22,\n3,\n"
types = st.sampled_from(["application/json", "text/plain", "Application/JSON; q=1", "json", ""])
bodies = st.sampled_from([b"", b"1", b"[1,2]", b"[]", b"{", b"text"])
seqs = st.sampled_from([None, "1", "2", "10"])
numbers = st.integers(0, 2)
claims = st.none() | st.builds(ProducerClaim, st.sampled_from(["p", "q"]), numbers, numbers)
expiries = st.sampled_from([NEVER, Expiry(ttl=5), Expiry(ttl=0), Expiry(None, "a", 9.0)])
offsets = st.sampled_from([START, Offset(1, 3), Offset(1, 4), Offset(2, 7), Offset(3, 10)])
forks = st.builds(ForkRequest, st.sampled_from(["a", "b"]), st.none() | offsets, st.integers(0, 4))
origins = st.none() | st.builds(ForkOrigin, st.just("a"), offsets, st.integers(0, 2), st.just(3))
ends = st.sampled_from([0, 7, 10])
states = st.builds(WriterState, ends, st.just(value=False), st.none(), seqs) | st.builds(
    WriterState, ends, st.just(value=True), claims, seqs
)
streams = st.none() | st.builds(
    Stream,
    st.builds(stream_config, types, expiries, origins),
    states,
    st.sampled_from([Lineage(1), Lineage(2, ((3, 1),))]),
    st.just("s"),
    st.booleans(),
    st.integers(0, 1),
)


@settings(max_examples=3000, deadline=None)
@given(
    streams,
    st.none() | st.builds(ProducerState, numbers, numbers),
    st.builds(Append, types, bodies, st.booleans(), seqs, claims),
)
def test_appends_are_decided_as_before(
    stream: Stream | None, known: ProducerState | None, request: Append
) -> None:
    known = known if request.producer is not None else None
    assert decide_append("s", stream, known, request) == old_append("s", stream, known, request)


@settings(max_examples=3000, deadline=None)
@given(
    st.none() | streams,
    streams,
    st.builds(Create, st.none() | types, expiries, bodies, st.booleans(), st.none() | forks),
)
def test_creations_are_decided_as_before(
    existing: Stream | None, source: Stream | None, request: Create
) -> None:
    def read(start: int, end: int) -> bytes:
        return STORED[start:end]

    decision = serve(decide_create("s", request, existing, source), read)
    assert decision == old_create("s", request, existing, source, read)
