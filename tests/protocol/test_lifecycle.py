"""What an append may do to a stream, and when a creation agrees with what exists."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from headwater.protocol.byte_requests import serve
from headwater.protocol.expiry import NEVER, Expiry
from headwater.protocol.forks import ForkOrigin, ForkRequest
from headwater.protocol.framing import EmptyArray, InvalidJson
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
    stream_config,
)
from headwater.protocol.offsets import START, Lineage, Offset, OffsetInsideMessage
from headwater.protocol.producers import (
    Duplicate,
    EpochStartsAtZero,
    Fenced,
    ProducerClaim,
    ProducerState,
    SequenceGap,
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

JSON = "application/json"
TEXT = "text/plain"
TAIL = Offset(1, 100)


TAIL_STATE = WriterState(100)
LINEAGE = Lineage(1)


@dataclass(frozen=True)
class Stream:
    """A stream as the rules see it."""

    config: StreamConfig
    accepted: WriterState = TAIL_STATE
    lineage: Lineage = LINEAGE
    path: str = "s"
    deleted: bool = False
    forks: int = 0
    durable: WriterState = TAIL_STATE


def writer(
    media_type: str = JSON,
    *,
    closed: bool = False,
    closed_by: ProducerClaim | None = None,
    last_seq: str | None = None,
) -> Stream:
    return Stream(stream_config(media_type), WriterState(100, closed, closed_by, last_seq))


def accepted(
    data: bytes,
    producer: ProducerState | None = None,
    *,
    seq: str | None = None,
    closed_by: ProducerClaim | None = None,
    close: bool = False,
) -> Accepted:
    return Accepted(data, WriterState(100 + len(data), close, closed_by, seq), producer)


def decide(stream: Stream | None, request: Append, producer: ProducerState | None = None) -> object:
    return decide_append("s", stream, producer, request)


def claim(epoch: int, seq: int) -> ProducerClaim:
    return ProducerClaim("p", epoch, seq)


class TestAppend:
    """`decide_append`."""

    @pytest.mark.parametrize(
        ("stream", "request_", "decision"),
        [
            (writer(), Append(JSON, b"1"), accepted(b"1,\n")),
            (writer(), Append("Application/JSON;q=1", b"1"), accepted(b"1,\n")),
            (writer(TEXT), Append(TEXT, b"1"), accepted(b"1")),
            (writer(), Append(close=True), accepted(b"", close=True)),
            (writer(), Append("what/ever", b"", close=True), accepted(b"", close=True)),
            (writer(), Append(JSON, b"1", close=True), accepted(b"1,\n", close=True)),
            (writer(), Append(TEXT, b"1"), ContentTypeMismatch("s", JSON, TEXT)),
            (writer(), Append("", b"1"), ContentTypeMismatch("s", JSON, "")),
            (writer(), Append(JSON, b"[]"), EmptyArray()),
            (writer(last_seq="5"), Append(JSON, b"1", seq="6"), accepted(b"1,\n", seq="6")),
            (writer(last_seq="5"), Append(JSON, b"1", seq="5"), SeqRegression("s", "5", "5")),
            (writer(last_seq="5"), Append(JSON, b"1", seq="10"), SeqRegression("s", "5", "10")),
            (writer(last_seq="5"), Append(JSON, b"1"), accepted(b"1,\n", seq="5")),
            (writer(last_seq="5"), Append(close=True, seq="4"), SeqRegression("s", "5", "4")),
            (writer(closed=True), Append(close=True), Duplicate()),
            (writer(closed=True), Append(JSON, b"1"), StreamClosed("s", TAIL)),
            (writer(closed=True), Append(JSON, b"1", close=True), StreamClosed("s", TAIL)),
            (writer(closed=True), Append(TEXT, b"1"), StreamClosed("s", TAIL)),
            (
                writer(closed=True),
                Append(close=True, producer=claim(0, 0)),
                StreamClosed("s", TAIL),
            ),
        ],
    )
    def test_without_a_producer(self, stream: Stream, request_: Append, decision: object) -> None:
        assert decide(stream, request_) == decision

    @pytest.mark.parametrize(
        ("stored", "claimed", "decision"),
        [
            (None, claim(0, 0), accepted(b"1,\n", ProducerState(0, 0))),
            (None, claim(0, 1), SequenceGap("p", 0, 1)),
            (ProducerState(1, 1), claim(1, 2), accepted(b"1,\n", ProducerState(1, 2))),
            (ProducerState(1, 1), claim(1, 1), Duplicate(ProducerState(1, 1))),
            (ProducerState(1, 1), claim(1, 3), SequenceGap("p", 2, 3)),
            (ProducerState(1, 1), claim(0, 2), Fenced("p", 0, 1)),
            (ProducerState(1, 1), claim(2, 0), accepted(b"1,\n", ProducerState(2, 0))),
            (ProducerState(1, 1), claim(2, 1), EpochStartsAtZero("p", 2, 1)),
        ],
    )
    def test_with_a_producer(
        self, stored: ProducerState | None, claimed: ProducerClaim, decision: object
    ) -> None:
        assert decide(writer(), Append(JSON, b"1", producer=claimed), stored) == decision

    def test_only_the_claim_that_closed_is_a_duplicate(self) -> None:
        stream = writer(closed=True, closed_by=claim(1, 5))
        stored = ProducerState(1, 5)
        again = Append(JSON, b"1", close=True, producer=claim(1, 5))
        assert decide(stream, again, stored) == Duplicate(stored)
        for other in (claim(1, 4), claim(1, 6), claim(2, 0)):
            request = Append(JSON, b"1", close=True, producer=other)
            assert decide(stream, request, stored) == StreamClosed("s", TAIL, stored)
        stranger = Append(JSON, b"1", close=True, producer=ProducerClaim("q", 1, 5))
        assert decide(stream, stranger) == StreamClosed("s", TAIL)

    def test_a_duplicate_comes_before_a_regression(self) -> None:
        request = Append(JSON, b"1", seq="5", producer=claim(0, 0))
        stored = ProducerState(0, 0)
        assert decide(writer(last_seq="5"), request, stored) == Duplicate(stored)

    def test_a_duplicate_is_recognised_whatever_its_body_holds(self) -> None:
        request = Append(JSON, b"{", producer=claim(0, 0))
        stored = ProducerState(0, 0)
        assert decide(writer(), request, stored) == Duplicate(stored)

    def test_an_invalid_body_is_refused(self) -> None:
        assert isinstance(decide(writer(), Append(JSON, b"{")), InvalidJson)

    def test_the_producer_that_closed_is_stored_with_the_closure(self) -> None:
        request = Append(JSON, b"1", close=True, seq="7", producer=claim(0, 0))
        state = ProducerState(0, 0)
        expected = accepted(b"1,\n", state, close=True, closed_by=claim(0, 0), seq="7")
        assert decide(writer(last_seq="5"), request) == expected

    def test_an_append_to_a_missing_stream_is_refused(self) -> None:
        request = Append(JSON, b"1")
        gone = dataclasses.replace(writer(closed=True), deleted=True, forks=1)
        assert decide(None, request) == StreamNotFound("s")
        assert decide(gone, request) == StreamGone("s")


ORIGIN = ForkOrigin("src", Offset(1, 10), 2, 30)
AT = Expiry(expires_at="2030-01-01T00:00:00Z", instant=1893456000.0)
SAME_AT = Expiry(expires_at="2030-01-01T01:00:00+01:00", instant=1893456000.0)


def config(**fields: Any) -> StreamConfig:
    return StreamConfig("application/json; charset=utf-8", JSON, **fields)


def compare(has: StreamConfig, wants: Create, *, closed: bool = False) -> object:
    existing = Stream(has, WriterState(100, closed))
    return serve(decide_create("s", wants, existing, None), no_bytes)


def no_bytes(start: int, end: int) -> bytes:
    raise AssertionError(start, end)


class TestExisting:
    """`decide_create` where a stream exists."""

    @pytest.mark.parametrize(
        ("has", "closed", "wants"),
        [
            (config(), False, Create(JSON)),
            (config(), False, Create("APPLICATION/json")),
            (config(), False, Create(None)),
            (config(), True, Create(JSON, close=True)),
            (config(), False, Create(JSON, body=b"another body")),
            (config(expiry=Expiry(ttl=5)), False, Create(JSON, Expiry(ttl=5))),
            (config(expiry=AT), False, Create(JSON, SAME_AT)),
            (config(origin=ORIGIN), False, Create(fork=ForkRequest("src", Offset(1, 10), 2))),
            (config(origin=ORIGIN), False, Create(fork=ForkRequest("src", None, 2))),
            (
                config(origin=ORIGIN, expiry=AT),
                False,
                Create(fork=ForkRequest("src", Offset(1, 10), 2)),
            ),
        ],
    )
    def test_a_matching_configuration_exists(
        self, has: StreamConfig, closed: bool, wants: Create
    ) -> None:
        assert compare(has, wants, closed=closed) == Exists()

    @pytest.mark.parametrize(
        ("has", "closed", "wants", "field_name"),
        [
            (config(), False, Create(TEXT), "content type"),
            (config(), False, Create(JSON, close=True), "closure"),
            (config(), True, Create(JSON), "closure"),
            (config(), False, Create(JSON, Expiry(ttl=5)), "expiry"),
            (config(expiry=Expiry(ttl=5)), False, Create(JSON), "expiry"),
            (config(expiry=Expiry(ttl=5)), False, Create(JSON, Expiry(ttl=6)), "expiry"),
            (config(expiry=Expiry(ttl=5)), False, Create(JSON, AT), "expiry"),
            (config(expiry=Expiry(ttl=0)), False, Create(JSON, NEVER), "expiry"),
            (config(), False, Create(fork=ForkRequest("src")), "fork source"),
            (config(origin=ORIGIN), False, Create(JSON), "fork source"),
            (config(origin=ORIGIN), False, Create(fork=ForkRequest("other")), "fork source"),
            (
                config(origin=ORIGIN),
                False,
                Create(fork=ForkRequest("src", Offset(1, 11), 2)),
                "fork offset",
            ),
            (
                config(origin=ORIGIN),
                False,
                Create(fork=ForkRequest("src", Offset(1, 10), 3)),
                "fork offset",
            ),
            (config(origin=ORIGIN), False, Create(fork=ForkRequest("src", START)), "fork offset"),
        ],
    )
    def test_another_configuration_is_a_mismatch(
        self, has: StreamConfig, closed: bool, wants: Create, field_name: str
    ) -> None:
        mismatch = compare(has, wants, closed=closed)
        assert isinstance(mismatch, ConfigMismatch)
        assert (mismatch.path, mismatch.field) == ("s", field_name)
        assert mismatch.existing != mismatch.requested

    @pytest.mark.parametrize(
        ("has", "wants", "mismatch"),
        [
            (config(), Create(TEXT), ("content type", JSON, TEXT)),
            (config(), Create("json"), ("content type", JSON, "")),
            (config(), Create(JSON, close=True), ("closure", "open", "closed")),
            (config(expiry=Expiry(ttl=5)), Create(JSON), ("expiry", "a TTL of 5 s", "none")),
            (config(), Create(JSON, AT), ("expiry", "none", "at 1893456000.000")),
            (config(origin=ORIGIN), Create(JSON), ("fork source", "src", "none")),
            (config(), Create(fork=ForkRequest("src")), ("fork source", "none", "src")),
            (
                config(origin=ORIGIN),
                Create(fork=ForkRequest("src")),
                ("fork offset", f"{Offset(1, 10)}+2", "the tail+0"),
            ),
        ],
    )
    def test_a_mismatch_names_the_existing_and_the_requested_value(
        self, has: StreamConfig, wants: Create, mismatch: tuple[str, str, str]
    ) -> None:
        assert compare(has, wants) == ConfigMismatch("s", *mismatch)


def test_a_close_without_a_body_uses_the_number_of_its_producer() -> None:
    request = Append(close=True, producer=claim(0, 0))
    expected = accepted(b"", ProducerState(0, 0), close=True, closed_by=claim(0, 0))
    assert decide(writer(), request) == expected


def test_an_empty_append_to_a_closed_stream_is_refused() -> None:
    assert decide(writer(closed=True), Append(JSON)) == StreamClosed("s", TAIL)


SOURCE = Stream(
    config(expiry=Expiry(ttl=5)),
    WriterState(12),
    Lineage(3),
    path="src",
    durable=WriterState(9),
)
STORED = b"1,\n2,\n3,\n"


class TestNew:
    """`decide_create` where no stream exists."""

    def create(self, request: Create, source: Stream | None = None) -> object:
        rule = decide_create("s", request, None, source)
        return serve(rule, lambda start, end: STORED[start:end])

    @pytest.mark.parametrize(
        ("request_", "new"),
        [
            (Create(), NewStream(stream_config("application/octet-stream"), b"", False)),
            (Create(JSON, body=b"[1, 2]"), NewStream(stream_config(JSON), b"1,\n2,\n", False)),
            (Create(JSON, body=b"[]"), NewStream(stream_config(JSON), b"", False)),
            (Create(TEXT, AT, b"a", True), NewStream(stream_config(TEXT, AT), b"a", True)),
        ],
    )
    def test_a_stream_begins_with_the_body(self, request_: Create, new: NewStream) -> None:
        assert self.create(request_) == new

    def test_a_fork_inherits_what_it_does_not_specify(self) -> None:
        origin = ForkOrigin("src", Offset(3, 3), 1, 6)
        request = Create(fork=ForkRequest("src", Offset(3, 3), 1))
        expected = StreamConfig(SOURCE.config.content_type, JSON, Expiry(ttl=5), origin)
        assert self.create(request, SOURCE) == NewStream(expected, b"", False)
        other = Create(JSON, AT, b"4", fork=request.fork)
        new = NewStream(StreamConfig(JSON, JSON, AT, origin), b"4,\n", False)
        assert self.create(other, SOURCE) == new

    def test_a_fork_begins_at_the_durable_end_of_its_source(self) -> None:
        new = self.create(Create(fork=ForkRequest("src")), SOURCE)
        assert isinstance(new, NewStream)
        assert new.config.origin == ForkOrigin("src", Offset(3, 9), 0, 9)

    def test_refusals_come_in_the_order_of_precedence(self) -> None:
        """Each request has the faults of all that follow it."""
        gone = dataclasses.replace(SOURCE, deleted=True)
        inside = ForkRequest("src", Offset(3, 1))
        worst = Create(TEXT, body=b"{", fork=inside)
        assert self.create(worst) == SourceNotFound("src")
        assert self.create(worst, gone) == SourceGone("src")
        assert self.create(worst, SOURCE) == ContentTypeMismatch("src", JSON, TEXT)
        better = Create(JSON, body=b"{", fork=inside)
        assert self.create(better, SOURCE) == OffsetInsideMessage(Offset(3, 1))
        last = Create(JSON, body=b"{", fork=ForkRequest("src"))
        assert isinstance(self.create(last, SOURCE), InvalidJson)

    def test_an_existing_stream_is_compared_before_the_source_is_checked(self) -> None:
        request = Create(JSON, body=b"{", fork=ForkRequest("src"))
        deleted = Stream(config(), deleted=True, forks=1)
        rule = decide_create("s", request, deleted, None)
        assert serve(rule, no_bytes) == PathBlocked("s")
        rule = decide_create("s", request, Stream(config()), None)
        assert serve(rule, no_bytes) == ConfigMismatch("s", "fork source", "none", "src")

    def test_a_fork_continues_the_lineage_of_its_source(self) -> None:
        plain, fork = config(), config(origin=ForkOrigin("src", Offset(3, 3), 1, 6))
        assert lineage_of(plain, 7, None) == Lineage(7)
        assert lineage_of(fork, 7, SOURCE) == Lineage(7, ((6, 3),))


@pytest.mark.parametrize(
    ("deleted", "forks", "removable"), [(False, 0, False), (True, 1, False), (True, 0, True)]
)
def test_a_stream_is_removable_once_it_is_deleted_and_has_no_forks(
    deleted: bool, forks: int, removable: bool
) -> None:
    stream = Stream(config(), deleted=deleted, forks=forks)
    assert is_removable(stream) is removable
