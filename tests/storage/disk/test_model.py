"""The disk store gives the answers of the memory store, through crashes and restarts.

The disk store lives in a process of its own, and a crash is its end by SIGKILL, idle or in the
middle of a call. Both stores get the same calls, and whatever a client can see must agree; the
numbers of incarnations, and so the offsets, are each store's own. `HEADWATER_TEST_EFFORT` sets how
many histories are tried.
"""

import asyncio
import copy
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwater.protocol.expiry import NEVER, Expiry
from headwater.protocol.forks import ForkRequest
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.offsets import NOW, START, Offset
from headwater.protocol.producers import ProducerClaim
from headwater.storage.disk.options import DiskOptions
from headwater.storage.memory import MemoryStore
from headwater.storage.store import Appended, Chunk, Created, StreamInfo
from tests.storage.disk.killable import KillableStore, at_once
from tests.suites.steps import BINARY, JSON, PLENTY, T0
from tests.suites.store_model import KINDS, PATHS, RAW, TTLS, VALUES
from tests.support.effort import examples

TINY: Final = DiskOptions(
    tail_budget=64,
    journal_bytes=4096,
    max_dirty_streams=2,
    streams_per_turn=1,
    max_loaded_streams=1,
    max_open_segments=2,
    checkpoint_seconds=0.02,
)
ROOMY: Final = DiskOptions(journal_bytes=64 * 1024)
_PATHS: Final = ("a", "b", "c", "d", "e")
_SEQS: Final = st.one_of(st.none(), st.sampled_from(["1", "2", "3", "9"]))
_CLAIMS: Final = st.one_of(
    st.none(),
    st.builds(ProducerClaim, st.sampled_from(["p", "q"]), st.integers(0, 2), st.integers(0, 4)),
)


def seen(outcome: object) -> object:
    """Reduce an answer to what must agree: everything but the numbers of incarnations."""
    if isinstance(outcome, StreamInfo):
        config = msgspec.structs.replace(outcome.config, origin=None)
        origin = outcome.config.origin
        fork = origin and (origin.source, origin.anchor.byte, origin.sub_offset, origin.at)
        return (outcome.path, config, fork, outcome.tail.byte, outcome.closed)
    if isinstance(outcome, Created):
        return ("created", seen(outcome.info), outcome.new)
    if isinstance(outcome, Appended):
        known = (outcome.closed, outcome.producer, outcome.repeated)
        return ("appended", outcome.tail.byte, *known)
    if isinstance(outcome, Chunk):
        data = outcome.joined()
        places = (outcome.start.byte, outcome.end.byte)
        return ("chunk", seen(outcome.info), places, data, outcome.up_to_date)
    if isinstance(outcome, msgspec.Struct):
        values = [
            value.byte if isinstance(value, Offset) else value
            for name, value in msgspec.structs.asdict(outcome).items()
            if name != "epoch" or type(outcome).__name__ == "Fenced"
        ]
        return (type(outcome).__name__, *values)
    return outcome


class Pair(RuleBasedStateMachine):
    """Drives a disk store and a memory store side by side."""

    options = TINY

    def __init__(self) -> None:
        super().__init__()
        # In memory where there is such a place: what a sync does is not the question here.
        place = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self._folder = Path(tempfile.mkdtemp(prefix="headwater-model-", dir=place))
        self._runner = asyncio.Runner()
        self.now = T0
        self.memory = MemoryStore()
        self._runner.run(self.memory.open())
        self.disk = self._start()
        self.marks: dict[str, list[tuple[Offset, Offset]]] = {}
        """By path: the same positions, as the memory store and as the disk store name them."""

    def _start(self) -> KillableStore:
        return KillableStore(self._folder / "data", self.options, self.now)

    def teardown(self) -> None:
        self.disk.close()
        self._runner.close()
        shutil.rmtree(self._folder)

    def _memory(self, name: str, *arguments: object) -> Any:
        if name == "append_at_once":
            return self._runner.run(at_once(self.memory, *arguments))  # type: ignore[arg-type] # as the rule gave them
        return self._runner.run(getattr(self.memory, name)(*arguments))

    def _both(self, name: str, *arguments: object) -> tuple[Any, Any]:
        """Ask both stores the same, and have them agree."""
        return self._each((name, *arguments), (name, *arguments))

    def _each(self, memory: tuple[Any, ...], disk: tuple[Any, ...]) -> tuple[Any, Any]:
        wanted = self._memory(*memory)
        got = self.disk.ask(*disk)
        assert seen(got) == seen(wanted)
        return wanted, got

    def _mark(self, path: str, wanted: Offset, got: Offset) -> None:
        marks = self.marks.setdefault(path, [])
        if (wanted, got) not in marks:
            marks.append((wanted, got))

    def _pick(self, path: str, index: int) -> tuple[Offset, Offset]:
        marks = [(START, START), *self.marks.get(path, [])]
        return marks[index % len(marks)]

    # What clients do

    @rule(path=PATHS, kind=KINDS, values=VALUES, raw=RAW, ttl=TTLS, close=st.booleans())
    def create(
        self, path: str, kind: str, values: list[Any], raw: bytes, ttl: int | None, close: bool
    ) -> None:
        body = msgspec.json.encode(values) if kind == JSON else raw
        expiry = Expiry(ttl=ttl) if ttl else NEVER
        request = Create(kind, expiry, body, close and len(values) == 1)
        self._created(path, request, request)

    @rule(path=PATHS, kind=KINDS, size=st.integers(1, 9000))
    def create_large(self, path: str, kind: str, size: int) -> None:
        request = Create(kind, NEVER, b'"%b"' % (b"x" * size))
        self._created(path, request, request)

    @rule(path=PATHS, source=PATHS, mark=st.integers(-1, 20), sub=st.integers(0, 3))
    def fork(self, path: str, source: str, mark: int, sub: int) -> None:
        places = (None, None) if mark < 0 else self._pick(source, mark)
        requests = [Create(fork=ForkRequest(source, place, sub)) for place in places]
        wanted = self._created(path, *requests)
        if isinstance(wanted, Created) and wanted.new:
            self.marks[path] += [
                pair for pair in self.marks.get(source, []) if pair[0].byte <= wanted.info.tail.byte
            ]

    def _created(self, path: str, memory: Create, disk: Create) -> object:
        wanted, got = self._each(
            ("create", path, memory, self.now), ("create", path, disk, self.now)
        )
        if isinstance(wanted, Created):
            if wanted.new:
                self.marks[path] = []
            self._mark(path, wanted.info.tail, got.info.tail)
        return wanted

    @rule(
        path=PATHS,
        kind=KINDS,
        values=VALUES,
        raw=RAW,
        close=st.booleans(),
        seq=_SEQS,
        claim=_CLAIMS,
    )
    def append(
        self,
        path: str,
        kind: str,
        values: list[Any],
        raw: bytes,
        close: bool,
        seq: str | None,
        claim: ProducerClaim | None,
    ) -> None:
        body = msgspec.json.encode(values) if kind == JSON else raw
        request = Append(kind, body, close and len(values) == 1, seq, claim)
        self._appended(path, request)

    @rule(path=PATHS, claim=_CLAIMS)
    def close(self, path: str, claim: ProducerClaim | None) -> None:
        self._appended(path, Append(close=True, producer=claim))

    def _appended(self, path: str, request: Append) -> None:
        wanted, got = self._both("append", path, request, self.now)
        if isinstance(wanted, Appended):
            self._mark(path, wanted.tail, got.tail)
        else:
            self._touch(path)

    @rule(path=PATHS, sizes=st.lists(st.integers(1, 300), min_size=2, max_size=12))
    def append_at_once(self, path: str, sizes: list[int]) -> None:
        """Several appends at once: one batch, in the order of their calls."""
        self._both("append_at_once", path, self._some(path, sizes), self.now)
        self._touch(path)

    def _some(self, path: str, sizes: list[int]) -> list[Append]:
        info = self._memory("head", path, self.now)
        kind = info.config.media_type if isinstance(info, StreamInfo) else BINARY
        return [Append(kind, b'"%b"' % (b"%d" % (size % 10) * size)) for size in sizes]

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        self._both("delete", path, self.now)

    @rule(path=PATHS, mark=st.integers(0, 20), limit=st.integers(1, 40))
    def read(self, path: str, mark: int, limit: int) -> None:
        wanted, got = self._each(
            *(("read", path, place, limit, self.now) for place in self._pick(path, mark))
        )
        if isinstance(wanted, Chunk):
            self._mark(path, wanted.end, got.end)

    @rule(path=PATHS)
    def read_everything(self, path: str) -> None:
        self._both("read", path, START, PLENTY, self.now)

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self._both("expire", self.now, 1000)

    @rule(milliseconds=st.integers(0, 30))
    def breathe(self, milliseconds: int) -> None:
        """Let checkpoints and compactions run."""
        self.disk.ask("sleep", milliseconds / 1000)

    # What happens to the server

    @rule()
    def restart(self) -> None:
        self.disk.close()
        self.disk = self._start()

    @rule(
        call=st.sampled_from(["nothing", "append", "delete", "create"]),
        path=PATHS,
        source=PATHS,
        size=st.integers(1, 20_000),
        milliseconds=st.sampled_from([0, 0.3, 1, 3]),
    )
    def crash(self, call: str, path: str, source: str, size: int, milliseconds: float) -> None:
        if call == "nothing":
            self.disk.kill()
            self._recover()
        elif call == "append":
            append = self._some(path, [size])[0]
            self._crash_during(milliseconds, "append", path, append, self.now)
        elif call == "delete":
            self._crash_during(milliseconds, "delete", path, self.now)
        else:
            self.marks.setdefault(path, [])
            fork = Create(fork=ForkRequest(source))
            self._crash_during(milliseconds, "create", path, fork, self.now)

    def _crash_during(self, milliseconds: float, name: str, *arguments: object) -> None:
        """Kill it with a call in flight: that has happened as a whole, or not at all."""
        self.disk.begin(name, *arguments)
        time.sleep(milliseconds / 1000)  # Any moment will do: it is the one of the crash.
        self.disk.kill()
        before = self.memory
        # If it did happen, the model goes on from there.
        after = copy.deepcopy(before)
        self._runner.run(getattr(after, name)(*arguments))
        self.disk = self._start()
        for self.memory in (before, after):
            self._restart_windows()
            if self._agree():
                return
        self.memory = before
        self._everything_agrees()

    def _recover(self) -> None:
        self.disk = self._start()
        self._restart_windows()
        self._everything_agrees()

    def _restart_windows(self) -> None:
        """Accesses may be lost in a crash: sliding windows start again (`oldest_access`)."""
        for path in _PATHS:
            unwatch = self.memory.watch(path, _nothing)
            self._memory("read", path, NOW, 1, self.now)
            unwatch()

    def _agree(self) -> bool:
        return all(
            seen(self._memory("read", path, START, PLENTY, self.now))
            == seen(self.disk.ask("read", path, START, PLENTY, self.now))
            for path in _PATHS
        )

    def _everything_agrees(self) -> None:
        for path in _PATHS:
            self._both("read", path, START, PLENTY, self.now)

    # What must hold all the time

    def _touch(self, path: str) -> None:
        """Whether a refusal counts as an access is not promised: make it one."""
        self._both("read", path, NOW, 1, self.now)

    @invariant()
    def both_hold_the_same(self) -> None:
        for path in _PATHS:
            self._both("head", path, self.now)


def _nothing() -> None:
    """Watch without caring."""


class RoomyPair(Pair):
    """The same with room in memory: most of it is in the journal when the crash comes."""

    options = ROOMY


_SETTINGS: Final = settings(
    max_examples=examples(8, 80),
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
Pair.TestCase.settings = _SETTINGS
RoomyPair.TestCase.settings = _SETTINGS
TestDiskWithHardlyAnyMemoryAgainstMemory = Pair.TestCase
TestDiskAgainstMemory = RoomyPair.TestCase
