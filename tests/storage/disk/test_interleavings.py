"""Operations in progress at the same time take effect one after another, in some order.

Hypothesis chooses the operations and everything that a thread or the loop may do between them: when
each begins, which lookup or read ends next, and when streams are evicted, saved and compacted. The
store has hardly any memory, so that most of it is cold. The answers, and what is there in the end,
must be those of the memory store for one order of the operations that agrees with their times.
"""

import asyncio
import copy
import shutil
import tempfile
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from headwater.protocol.expiry import Expiry
from headwater.protocol.forks import ForkRequest
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.offsets import START
from headwater.protocol.producers import ProducerClaim
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from headwater.storage.memory import MemoryStore
from headwater.storage.store import Store
from tests.storage.disk.stepped import SteppedStore, run_stepped
from tests.storage.disk.test_model import seen
from tests.suites.steps import JSON, PLENTY, T0
from tests.support.effort import examples

T = TypeVar("T")

_OPTIONS: Final = DiskOptions(
    durability="os",
    tail_budget=4096,
    journal_bytes=4096,
    max_dirty_streams=2,
    streams_per_turn=1,
    max_loaded_streams=1,
    max_open_segments=2,
    checkpoint_seconds=3600,
)
_NAMES: Final = ("a", "b")
_PATHS: Final = st.sampled_from(_NAMES)


class Call(NamedTuple):
    """One operation, by the name of its method."""

    name: str
    arguments: tuple[Any, ...]

    async def run(self, store: Store) -> object:
        outcome = await getattr(store, self.name)(*self.arguments)
        return [seen(item) for item in outcome] if isinstance(outcome, list) else seen(outcome)


_BODIES: Final = st.sampled_from([b"", b"1", b"22", b'"%b"' % (b"x" * 300)])
_CLAIMS: Final = st.one_of(
    st.none(), st.builds(ProducerClaim, st.sampled_from("pq"), st.just(0), st.integers(0, 2))
)


def create(path: str, body: bytes, ttl: int | None) -> Call:
    return Call("create", (path, Create(JSON, Expiry(ttl=ttl), body), T0))


def fork(path: str, source: str, sub: int) -> Call:
    place = START if sub else None
    return Call("create", (path, Create(fork=ForkRequest(source, place, sub)), T0))


def append(path: str, body: bytes, claim: ProducerClaim | None, *, close: bool) -> Call:
    request = Append(JSON if body else "", body, close or not body, producer=claim)
    return Call("append", (path, request, T0))


def read(path: str, limit: int) -> Call:
    return Call("read", (path, START, limit, T0))


CALLS: Final = st.one_of(
    st.builds(create, _PATHS, _BODIES, st.sampled_from([None, None, 5])),
    st.builds(fork, _PATHS, _PATHS, st.integers(0, 1)),
    st.builds(append, _PATHS, _BODIES, _CLAIMS, close=st.sampled_from([False, False, True])),
    st.builds(read, _PATHS, st.sampled_from([1, 100, PLENTY])),
    st.builds(lambda path: Call("delete", (path, T0)), _PATHS),
    st.builds(lambda path: Call("head", (path, T0)), _PATHS),
)
BEFORE: Final = st.one_of(CALLS, st.just(Call("expire", (T0 + 5, 10))))
"""Deletions of expired streams come in batches, so they are no single step beside others."""
SCHEDULES: Final = st.lists(
    st.tuples(
        st.sampled_from(
            ["begin", "begin", "turn", "read", "read", "report", "report", "evict", "save", "work"]
        ),
        st.integers(0, 3),
    ),
    max_size=40,
)


class Progress(NamedTuple):
    """An operation in progress, and when it began and ended."""

    call: Call
    task: "asyncio.Task[object]"
    began: int
    ended: list[int]


class Bench:
    """Operations in progress on a store whose threads wait for the schedule."""

    def __init__(self, store: DiskStore) -> None:
        self.store = SteppedStore(store)
        self.time = 0
        self.calls: list[Progress] = []

    def begin(self, call: Call) -> None:
        self.time += 1
        ended: list[int] = []
        task = asyncio.get_running_loop().create_task(call.run(self.store.store))

        def end(_: object) -> None:
            self.time += 1
            ended.append(self.time)

        task.add_done_callback(end)
        self.calls.append(Progress(call, task, self.time, ended))

    async def step(self, what: str, choice: int) -> None:
        store = self.store
        if what == "turn":
            await store.turns(choice + 1)
        elif what == "read":
            store.read(choice)
        elif what == "report":
            store.report(choice)
        elif what == "evict":
            store.evict(choice + 1)
        elif what == "save":
            store.begin_checkpoint()
        elif what == "work":
            (store.worker if choice else store.compactions).step(0)

    async def finish(self) -> None:
        """Run everything to its end."""
        await self.store.settle(lambda: all(progress.ended for progress in self.calls))


async def whole(store: Store) -> list[object]:
    """Return all that a client can see."""
    calls = [read(path, PLENTY) for path in _NAMES] + [Call("list_streams", ("", "", 10, T0))]
    return [await call.run(store) for call in calls]


def orders(calls: list[Progress]) -> Iterator[tuple[Progress, ...]]:
    """Yield the orders in which operations may have taken effect: none before one that ended."""
    for order in permutations(calls):
        if all(
            later.ended[0] > earlier.began
            for place, earlier in enumerate(order)
            for later in order[place + 1 :]
        ):
            yield order


async def agrees(memory: MemoryStore, order: tuple[Progress, ...], final: list[object]) -> bool:
    """Return whether the memory store gives the same answers in an order of the operations."""
    model = copy.deepcopy(memory)
    for progress in order:
        if await progress.call.run(model) != progress.task.result():
            return False
    return await whole(model) == final


async def check(
    folder: Path, before: list[Call], calls: list[Call], schedule: list[tuple[str, int]]
) -> None:
    memory = MemoryStore()
    await memory.open()
    store = DiskStore(folder, _OPTIONS, lambda: T0)
    await store.open()
    bench = Bench(store)
    for call in before:
        bench.begin(call)
        await bench.finish()
        bench.store.evict(2)
        assert bench.calls.pop().task.result() == await call.run(memory)
    rest = list(calls)
    for what, choice in schedule:
        if what == "begin" and rest:
            bench.begin(rest.pop(0))
        else:
            await bench.step(what, choice)
    for call in rest:
        bench.begin(call)
    await bench.finish()
    bench.store.use_real_threads()
    final = await whole(store)
    answers = [(progress.call, progress.task.result()) for progress in bench.calls]
    matching = [order for order in orders(bench.calls) if await agrees(memory, order, final)]
    assert matching, (answers, final)
    await store.close()
    again = DiskStore(folder, _OPTIONS, lambda: T0)
    await again.open()
    assert await whole(again) == final
    await again.close()


@settings(
    max_examples=examples(300, 5000),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(BEFORE, max_size=8), st.lists(CALLS, min_size=2, max_size=4), SCHEDULES)
def test_operations_at_the_same_time_agree_with_one_order_of_them(
    before: list[Call], calls: list[Call], schedule: list[tuple[str, int]]
) -> None:
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="headwater-interleaving-", dir=place))
    try:
        run_stepped(check(folder / "data", before, calls, schedule))
    finally:
        shutil.rmtree(folder)
