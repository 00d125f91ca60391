"""What an append may do to a stream, and when a creation agrees with what exists."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from headwater.protocol.expiry import NEVER, Expiry
from headwater.protocol.forks import ForkOrigin, ForkRequest
from headwater.protocol.framing import EmptyArray, InvalidJson
from headwater.protocol.lifecycle import (
    AlreadyClosed,
    Append,
    AppendPlan,
    Create,
    StreamConfig,
    decide_append,
    existing_mismatch,
)
from headwater.protocol.offsets import START, Offset
from headwater.protocol.producers import (
    EpochStartsAtZero,
    Fenced,
    ProducerClaim,
    ProducerState,
    Repeated,
    SequenceGap,
)
from headwater.protocol.refusals import (
    ConfigMismatch,
    ContentTypeMismatch,
    SeqRegression,
    StreamClosed,
)

JSON = "application/json"
TEXT = "text/plain"
TAIL = Offset(1, 100)


@dataclass
class Writer:
    """A stream as the rules see it."""

    path: str = "s"
    media_type: str = JSON
    closed: bool = False
    closed_by: ProducerClaim | None = None
    last_seq: str | None = None
    producers: dict[str, ProducerState] = field(default_factory=dict)
    tail: Offset = TAIL


def claim(epoch: int, seq: int) -> ProducerClaim:
    return ProducerClaim("p", epoch, seq)


class TestAppend:
    """`decide_append`."""

    @pytest.mark.parametrize(
        ("stream", "request_", "decision"),
        [
            (Writer(), Append(JSON, b"1"), AppendPlan(b"1,\n", None)),
            (Writer(), Append("Application/JSON;q=1", b"1"), AppendPlan(b"1,\n", None)),
            (Writer(media_type=TEXT), Append(TEXT, b"1"), AppendPlan(b"1", None)),
            (Writer(), Append(close=True), AppendPlan(b"", None)),
            (Writer(), Append("what/ever", b"", close=True), AppendPlan(b"", None)),
            (Writer(), Append(TEXT, b"1"), ContentTypeMismatch("s", JSON, TEXT)),
            (Writer(), Append("", b"1"), ContentTypeMismatch("s", JSON, "")),
            (Writer(), Append(JSON, b"[]"), EmptyArray()),
            (Writer(last_seq="5"), Append(JSON, b"1", seq="6"), AppendPlan(b"1,\n", None)),
            (Writer(last_seq="5"), Append(JSON, b"1", seq="5"), SeqRegression("s", "5", "5")),
            (Writer(last_seq="5"), Append(JSON, b"1", seq="10"), SeqRegression("s", "5", "10")),
            (Writer(last_seq="5"), Append(JSON, b"1"), AppendPlan(b"1,\n", None)),
            (Writer(last_seq="5"), Append(close=True, seq="4"), SeqRegression("s", "5", "4")),
            (Writer(closed=True), Append(close=True), AlreadyClosed()),
            (Writer(closed=True), Append(JSON, b"1"), StreamClosed("s", TAIL)),
            (Writer(closed=True), Append(JSON, b"1", close=True), StreamClosed("s", TAIL)),
            (Writer(closed=True), Append(TEXT, b"1"), StreamClosed("s", TAIL)),
            (
                Writer(closed=True),
                Append(close=True, producer=claim(0, 0)),
                StreamClosed("s", TAIL),
            ),
        ],
    )
    def test_without_a_producer(self, stream: Writer, request_: Append, decision: object) -> None:
        assert decide_append(stream, request_) == decision

    @pytest.mark.parametrize(
        ("stored", "claimed", "decision"),
        [
            (None, claim(0, 0), AppendPlan(b"1,\n", ProducerState(0, 0))),
            (None, claim(0, 1), SequenceGap("p", 0, 1)),
            (ProducerState(1, 1), claim(1, 2), AppendPlan(b"1,\n", ProducerState(1, 2))),
            (ProducerState(1, 1), claim(1, 1), Repeated(ProducerState(1, 1))),
            (ProducerState(1, 1), claim(1, 3), SequenceGap("p", 2, 3)),
            (ProducerState(1, 1), claim(0, 2), Fenced("p", 0, 1)),
            (ProducerState(1, 1), claim(2, 0), AppendPlan(b"1,\n", ProducerState(2, 0))),
            (ProducerState(1, 1), claim(2, 1), EpochStartsAtZero("p", 2, 1)),
        ],
    )
    def test_with_a_producer(
        self, stored: ProducerState | None, claimed: ProducerClaim, decision: object
    ) -> None:
        stream = Writer(producers={} if stored is None else {"p": stored})
        assert decide_append(stream, Append(JSON, b"1", producer=claimed)) == decision

    def test_only_the_claim_that_closed_is_a_repetition(self) -> None:
        stream = Writer(closed=True, closed_by=claim(1, 5), producers={"p": ProducerState(1, 5)})
        again = Append(JSON, b"1", close=True, producer=claim(1, 5))
        assert decide_append(stream, again) == Repeated(ProducerState(1, 5))
        for other in (claim(1, 4), claim(1, 6), claim(2, 0)):
            request = Append(JSON, b"1", close=True, producer=other)
            refusal = StreamClosed("s", TAIL, ProducerState(1, 5))
            assert decide_append(stream, request) == refusal
        stranger = Append(JSON, b"1", close=True, producer=ProducerClaim("q", 1, 5))
        assert decide_append(stream, stranger) == StreamClosed("s", TAIL)

    def test_a_repetition_is_told_before_a_regression(self) -> None:
        stream = Writer(last_seq="5", producers={"p": ProducerState(0, 0)})
        request = Append(JSON, b"1", seq="5", producer=claim(0, 0))
        assert decide_append(stream, request) == Repeated(ProducerState(0, 0))

    def test_a_repetition_is_told_whatever_its_body_says(self) -> None:
        stream = Writer(producers={"p": ProducerState(0, 0)})
        request = Append(JSON, b"{", producer=claim(0, 0))
        assert decide_append(stream, request) == Repeated(ProducerState(0, 0))

    def test_a_broken_body_is_refused(self) -> None:
        assert isinstance(decide_append(Writer(), Append(JSON, b"{")), InvalidJson)


ORIGIN = ForkOrigin("src", Offset(1, 10), 2, 30)
AT = Expiry(expires_at="2030-01-01T00:00:00Z", instant=1893456000.0)
SAME_AT = Expiry(expires_at="2030-01-01T01:00:00+01:00", instant=1893456000.0)


def config(**fields: Any) -> StreamConfig:
    return StreamConfig("application/json; charset=utf-8", JSON, **fields)


class TestExisting:
    """`existing_mismatch`."""

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
    def test_what_agrees(self, has: StreamConfig, closed: bool, wants: Create) -> None:
        assert existing_mismatch("s", has, closed=closed, request=wants) is None

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
    def test_what_does_not(
        self, has: StreamConfig, closed: bool, wants: Create, field_name: str
    ) -> None:
        mismatch = existing_mismatch("s", has, closed=closed, request=wants)
        assert mismatch is not None
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
    def test_a_mismatch_says_what_there_is_and_what_was_asked_for(
        self, has: StreamConfig, wants: Create, mismatch: tuple[str, str, str]
    ) -> None:
        found = existing_mismatch("s", has, closed=False, request=wants)
        assert found == ConfigMismatch("s", *mismatch)


def test_a_close_without_a_body_keeps_the_producers_number() -> None:
    request = Append(close=True, producer=claim(0, 0))
    assert decide_append(Writer(), request) == AppendPlan(b"", ProducerState(0, 0))


def test_an_append_of_nothing_to_a_closed_stream_is_no_close() -> None:
    assert decide_append(Writer(closed=True), Append(JSON)) == StreamClosed("s", TAIL)
