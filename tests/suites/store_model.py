"""A store against a model: random operations on a few paths, and lists that say what must be there.

The model holds a stream as the list of its units (JSON values, or single bytes). A fork is a copy
of a list. Offsets are opaque to it: it records those that were returned, and how many units lay
before them.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headwater.protocol.expiry import NEVER, Expiry
from headwater.protocol.forks import ForkRequest
from headwater.protocol.framing import render
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.offsets import START, Offset
from headwater.protocol.producers import ProducerClaim
from headwater.protocol.refusals import (
    ConfigMismatch,
    PathBlocked,
    SourceGone,
    SourceNotFound,
    StreamClosed,
    StreamGone,
    StreamNotFound,
    SubOffsetOvershoot,
)
from headwater.storage.store import Appended, Chunk, Created, Store, StreamInfo
from tests.suites.steps import BINARY, JSON, PLENTY, T0, expect
from tests.support.effort import examples

PATHS: Final = st.sampled_from(["a", "b", "c", "d", "e"])
KINDS: Final = st.sampled_from([JSON, BINARY])
VALUES: Final = st.lists(
    st.one_of(st.integers(0, 99), st.text(max_size=5), st.lists(st.integers(0, 9), max_size=2)),
    min_size=1,
    max_size=4,
)
RAW: Final = st.binary(min_size=1, max_size=12)
TTLS: Final = st.sampled_from([None, None, None, 5, 50])


class Expected:
    """What the model knows of one incarnation."""

    def __init__(self, kind: str, ttl: int | None, now: float) -> None:
        self.kind = kind
        self.ttl = ttl
        self.touched = now
        self.units: list[Any] = []
        self.marks: dict[Offset, int] = {START: 0}
        self.closed = False
        self.deleted = False
        self.source: Expected | None = None
        self.forks = 0
        self.producer = (-1, -1)


class StoreMachine(RuleBasedStateMachine):
    """Drives a store; `factory` is set by `store_machine`."""

    factory: Callable[[], Store]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.run = self.runner.run
        self.store = type(self).factory()
        self.now = T0
        self.streams: dict[str, Expected] = {}
        self.incarnations: set[int] = set()

    @initialize()
    def open(self) -> None:
        self.run(self.store.open())

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    @rule(path=PATHS, kind=KINDS, values=VALUES, raw=RAW, ttl=TTLS, empty=st.booleans())
    def create(
        self, path: str, kind: str, values: list[Any], raw: bytes, ttl: int | None, empty: bool
    ) -> None:
        units, body = ([], b"") if empty else _units(kind, values, raw)
        expiry = Expiry(ttl=ttl) if ttl else NEVER
        outcome = self.run(self.store.create(path, Create(kind, expiry, body), self.now))
        existing = self.streams.get(path)
        if existing is None:
            self._added(path, Expected(kind, ttl, self.now), units, outcome)
        elif existing.deleted:
            assert outcome == PathBlocked(path)
        elif (existing.kind, existing.ttl, existing.closed, existing.source) == (
            kind,
            ttl,
            False,
            None,
        ):
            assert not expect(Created, outcome).new
        else:
            expect(ConfigMismatch, outcome)

    @rule(path=PATHS, source=PATHS, mark=st.integers(0, 20), sub=st.integers(0, 3))
    def fork(self, path: str, source: str, mark: int, sub: int) -> None:
        origin = self.streams.get(source)
        offset, before = _pick(origin, mark)
        request = Create(fork=ForkRequest(source, offset, sub))
        outcome = self.run(self.store.create(path, request, self.now))
        existing = self.streams.get(path)
        if existing is not None:
            wanted = PathBlocked if existing.deleted else ConfigMismatch | Created
            assert isinstance(outcome, wanted)
            assert not (isinstance(outcome, Created) and outcome.new)
        elif origin is None:
            assert outcome == SourceNotFound(source)
        elif origin.deleted:
            assert outcome == SourceGone(source)
        elif before + sub > len(origin.units):
            expect(SubOffsetOvershoot, outcome)
        else:
            child = Expected(origin.kind, origin.ttl, self.now)
            child.units = origin.units[: before + sub]
            child.marks = {o: n for o, n in origin.marks.items() if n <= before + sub}
            child.source = origin
            origin.forks += 1
            origin.touched = self.now
            self._added(path, child, [], outcome)

    @rule(path=PATHS, values=VALUES, raw=RAW, close=st.booleans(), kind=KINDS)
    def append(self, path: str, values: list[Any], raw: bytes, close: bool, kind: str) -> None:
        stream = self.streams.get(path)
        units, body = _units(stream.kind if stream else kind, values, raw)
        request = Append(stream.kind if stream else kind, body, close and len(units) == 1)
        outcome = self.run(self.store.append(path, request, self.now))
        if stream is None or stream.deleted:
            assert outcome == _missing(path, stream)
        elif stream.closed:
            expect(StreamClosed, outcome)
            self._touch(path, stream)
        else:
            self._grown(stream, units, expect(Appended, outcome).tail)
            stream.closed = request.close

    @rule(path=PATHS, epoch=st.integers(0, 2), seq=st.integers(0, 3), value=st.integers(0, 9))
    def produce(self, path: str, epoch: int, seq: int, value: int) -> None:
        stream = self.streams.get(path)
        if stream is None or stream.deleted or stream.closed:
            return
        units, body = _units(stream.kind, [value], b"%d" % value)
        request = Append(stream.kind, body, producer=ProducerClaim("p", epoch, seq))
        outcome = self.run(self.store.append(path, request, self.now))
        last_epoch, last_seq = stream.producer
        fresh = (epoch > last_epoch and seq == 0) or (epoch == last_epoch and seq == last_seq + 1)
        again = epoch == last_epoch and seq <= last_seq
        if fresh:
            stream.producer = (epoch, seq)
            self._grown(stream, units, expect(Appended, outcome).tail)
        else:
            assert isinstance(outcome, Appended) == again
            self._touch(path, stream)

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        stream = self.streams.get(path)
        outcome = self.run(self.store.delete(path, self.now))
        if stream is None or stream.deleted:
            assert outcome == _missing(path, stream)
        else:
            assert outcome is None
            self._remove(stream)

    @rule(path=PATHS, mark=st.integers(0, 20), limit=st.integers(1, 40))
    def read(self, path: str, mark: int, limit: int) -> None:
        stream = self.streams.get(path)
        offset, before = _pick(stream, mark)
        outcome = self.run(self.store.read(path, offset or START, limit, self.now))
        if stream is None or stream.deleted:
            assert outcome == _missing(path, stream)
            return
        stream.touched = self.now
        chunk = expect(Chunk, outcome)
        got = _seen(chunk, stream.kind)
        assert got == stream.units[before : before + len(got)]
        assert bool(got) == (before < len(stream.units))
        assert chunk.up_to_date == (before + len(got) == len(stream.units))
        self._remember(stream, chunk.end, before + len(got))

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        over = [
            stream
            for stream in self.streams.values()
            if stream.ttl and not stream.deleted and stream.touched + stream.ttl <= self.now
        ]
        assert self.run(self.store.expire(self.now, 1000)) == len(over)
        for stream in over:
            self._remove(stream)

    @invariant()
    def everything_is_there_and_nothing_else(self) -> None:
        for path in ("a", "b", "c", "d", "e"):
            stream = self.streams.get(path)
            info = self.run(self.store.head(path, self.now))
            if stream is None or stream.deleted:
                assert info == _missing(path, stream)
                continue
            assert expect(StreamInfo, info).closed == stream.closed
            assert stream.marks[expect(StreamInfo, info).tail] == len(stream.units)
            known = sorted(stream.marks, key=lambda offset: (stream.marks[offset], offset))
            assert [str(offset) for offset in known] == sorted(map(str, stream.marks))

    def _added(self, path: str, stream: Expected, units: list[Any], outcome: object) -> None:
        created = expect(Created, outcome)
        assert created.new
        assert created.info.incarnation not in self.incarnations
        self.incarnations.add(created.info.incarnation)
        self.streams[path] = stream
        self._grown(stream, units, created.info.tail)
        # The whole content, through every border, at least once for each stream.
        chunk = expect(Chunk, self.run(self.store.read(path, START, PLENTY, self.now)))
        assert _seen(chunk, stream.kind) == stream.units

    def _grown(self, stream: Expected, units: list[Any], tail: Offset) -> None:
        stream.units += units
        stream.touched = self.now
        self._remember(stream, tail, len(stream.units))

    def _touch(self, path: str, stream: Expected) -> None:
        """Whether a refusal counts as an access is not promised: make it one."""
        expect(Chunk, self.run(self.store.read(path, START, 1, self.now)))
        stream.touched = self.now

    def _remember(self, stream: Expected, offset: Offset, units: int) -> None:
        assert stream.marks.setdefault(offset, units) == units

    def _remove(self, stream: Expected) -> None:
        stream.deleted = True
        current: Expected | None = stream
        while current is not None and current.deleted and current.forks == 0:
            self.streams = {p: s for p, s in self.streams.items() if s is not current}
            current = current.source
            if current is not None:
                current.forks -= 1


def _units(kind: str, values: list[Any], raw: bytes) -> tuple[list[Any], bytes]:
    if kind == JSON:
        return values, json.dumps(values).encode()
    return list(raw), raw


def _seen(chunk: Chunk, kind: str) -> list[Any]:
    body = b"".join(render([chunk.joined()] if chunk.parts else [], chunk.info.config.media_type))
    return list(json.loads(body)) if kind == JSON else list(body)


def _missing(path: str, stream: Expected | None) -> StreamNotFound | StreamGone:
    return StreamNotFound(path) if stream is None else StreamGone(path)


def _pick(stream: Expected | None, mark: int) -> tuple[Offset | None, int]:
    """Choose one of the offsets that were returned."""
    if stream is None:
        return None, 0
    return list(stream.marks.items())[mark % len(stream.marks)]


def store_machine(make: Callable[[], Store]) -> type[StoreMachine]:
    """Make the machine that drives stores of one kind."""

    class Machine(StoreMachine):
        factory = staticmethod(make)

    Machine.TestCase.settings = settings(
        max_examples=examples(20, 200),
        stateful_step_count=40,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return Machine
