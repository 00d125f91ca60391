"""What holds under fire: writers that race, retry with the same keys, are cut off and are killed.

`FireSuite` runs writers as tasks of one process and drops their calls half-way. `SharedFireSuite`
runs each writer as a process of its own, kills some of them at any point, and starts others that
write the same events again, as an engine does after a crash. Every acknowledgement goes to a ledger
that is checked against the log at the end. A backend that is reached over a network overrides
`disturb`, which is called all the while, to cut its connections.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from headwater.errors import RunStoreUnavailable
from headwater.runs import NewEvent, RunStore, run_store
from headwater.runs.store import AppendResult
from tests.suites.behaviours import runs_behaviours
from tests.suites.run_steps import all_events, event
from tests.support.effort import examples

WRITERS = 16
RUNS = 3
EVENTS = 120
"""Of each run; every one of them is written by several writers."""
PAUSE_SECONDS = 0.005
"""Between two batches of a writer: so that there is time to be killed in."""
_PATIENCE_SECONDS = 150
"""For one batch: an engine may be slow on a busy machine, but must not stand still."""
_HANG_SECONDS = 480
"""For all of them."""
_MAY_END = "may-end"
"""The file, beside the ledgers, without which no writer writes its last batch."""
ROOT = Path(__file__).parents[2]


class Ack(NamedTuple):
    """What a writer was told."""

    run_id: str
    key: str
    run_seq: int
    persisted: bool


def duties(writer: int, seed: int, events: int = EVENTS) -> list[list[NewEvent]]:
    """Say what a writer writes: batches of some of the events, in an order of its own."""
    chance = random.Random(seed * 1000 + writer)
    batches: list[list[NewEvent]] = []
    for run in range(RUNS):
        mine = [number for number in range(events) if (number + writer) % 4 == 0]
        chance.shuffle(mine)
        while mine:
            size = chance.choice((1, 1, 1, 2, 5))
            batch, mine = mine[:size], mine[size:]
            batches.append(
                [event("Ticked", {"n": n}, run=f"fire-{run}", step=f"t{n}") for n in batch]
            )
    chance.shuffle(batches)
    return batches


def acks(batch: list[NewEvent], results: list[AppendResult]) -> list[Ack]:
    """Say what a writer was told of a batch."""
    return [
        Ack(new.run_id, new.idempotency_key, result.run_seq, result.persisted)
        for new, result in zip(batch, results, strict=True)
    ]


async def write_all(store: RunStore, batches: Iterable[list[NewEvent]], ledger: Path) -> None:
    """Write batches, each until it is acknowledged, and note every acknowledgement.

    Before a store answered, or when its answer got lost, the same keys are sent again.
    """
    with ledger.open("a") as file:
        for batch in batches:
            until = time.monotonic() + _PATIENCE_SECONDS
            while True:
                try:
                    results = await store.append_events(batch)
                    break
                except RunStoreUnavailable:
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(0.02)
            lines = [json.dumps(ack) + "\n" for ack in acks(batch, results)]
            file.write("".join(lines))
            file.flush()
            await asyncio.sleep(PAUSE_SECONDS)


def read_ledger(path: Path) -> list[Ack]:
    """Read what a writer noted; the last line may be torn where it was killed."""
    lines = path.read_text().splitlines(keepends=True)
    return [Ack(*json.loads(line)) for line in lines if line.endswith("\n")]


async def check_invariants(store: RunStore, noted: list[Ack], events: int = EVENTS) -> None:
    """Hold the logs against what was acknowledged."""
    told: dict[tuple[str, str], set[int]] = defaultdict(set)
    firsts: dict[tuple[str, str], int] = defaultdict(int)
    for ack in noted:
        told[ack.run_id, ack.key].add(ack.run_seq)
        firsts[ack.run_id, ack.key] += ack.persisted
    for run in range(RUNS):
        run_id = f"fire-{run}"
        log = await all_events(store, run_id)
        seqs = [each.run_seq for each in log]
        assert seqs == sorted(set(seqs)), "run_seq is not strictly increasing"
        by_key = {each.idempotency_key: each.run_seq for each in log}
        assert len(by_key) == len(log), "a key is there twice"
        assert len(log) == events, "every event was written by someone"
        for (acked_run, key), numbers in told.items():
            if acked_run == run_id:
                assert numbers == {by_key[key]}, "a duplicate was answered with another number"
                assert firsts[acked_run, key] <= 1, "an event was written twice"


@runs_behaviours
class FireSuite:
    """Many tasks in one process, whose calls are dropped half-way."""

    async def test_the_invariants_hold_when_calls_are_dropped(self, store: RunStore) -> None:
        noted: list[Ack] = []

        async def write(writer: int) -> None:
            chance = random.Random(writer)
            for batch in duties(writer, 0):
                while True:
                    call = asyncio.ensure_future(store.append_events(batch))
                    await asyncio.sleep(0)
                    if chance.random() < 0.2:
                        call.cancel()  # the caller has gone: nobody knows whether it happened
                    try:
                        noted.extend(acks(batch, await call))
                        break
                    except (asyncio.CancelledError, RunStoreUnavailable):
                        await asyncio.sleep(0.001)

        await asyncio.gather(*map(write, range(WRITERS)))
        await check_invariants(store, noted)


class SharedFireSuite:
    """Many processes over one store; wants a fixture `run_store_url` of an empty store."""

    writers = examples(8, WRITERS)
    kills = 12
    events = EVENTS
    """Fewer where the engine is slow: every one of them is a transaction or two."""

    def disturb(self) -> None:
        """Break something besides the writers; called every few milliseconds."""

    @pytest.mark.kills
    def test_the_invariants_hold_when_processes_are_killed(
        self, run_store_url: str, tmp_path: Path
    ) -> None:
        chance = random.Random(7)
        ledgers = [tmp_path / f"writer-{number}" for number in range(self.writers)]
        writers = [
            _Writer(run_store_url, number, ledgers[number], self.events)
            for number in range(self.writers)
        ]
        killed = 0
        until = time.monotonic() + _HANG_SECONDS
        try:
            while any(writer.alive for writer in writers):
                assert time.monotonic() < until, "the writers did not finish"
                time.sleep(0.02)
                self.disturb()
                busy = [writer for writer in writers if writer.alive and writer.has_written]
                if killed < self.kills and busy and chance.random() < 0.5:
                    chance.choice(busy).kill_and_start_again()
                    killed += 1
                if killed == self.kills:
                    (tmp_path / _MAY_END).touch()
            for writer in writers:
                assert writer.code == 0, writer.complaint
            assert killed == self.kills
        finally:
            for writer in writers:
                writer.stop()

        async def check() -> None:
            async with run_store(run_store_url) as store:
                noted = [ack for ledger in ledgers for ack in read_ledger(ledger)]
                await check_invariants(store, noted, self.events)

        asyncio.run(check())


class _Writer:
    """A process that does the duties of one writer."""

    def __init__(self, url: str, number: int, ledger: Path, events: int) -> None:
        self._command = [
            *(sys.executable, "-m", "tests.suites.run_store_fire"),
            *(url, str(number), str(ledger), str(events)),
        ]
        self._ledger = ledger
        ledger.touch()
        self._start()

    def _start(self) -> None:
        self._before = self._ledger.stat().st_size
        self._errors = self._ledger.with_suffix(".err").open("w+")
        self._process = subprocess.Popen(self._command, cwd=ROOT, stderr=self._errors)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def has_written(self) -> bool:
        return self._ledger.stat().st_size > self._before

    @property
    def code(self) -> int | None:
        return self._process.poll()

    @property
    def complaint(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def kill_and_start_again(self) -> None:
        """Kill it wherever it is, and have another do all of its duties again."""
        self.stop()
        self._end_torn_line()
        self._start()

    def _end_torn_line(self) -> None:
        text = self._ledger.read_text()
        self._ledger.write_text(text[: text.rfind("\n") + 1])

    def stop(self) -> None:
        """Kill it if it lives."""
        self._process.kill()
        self._process.wait()
        self._errors.close()


async def _main(url: str, number: int, ledger: Path, events: int) -> None:
    async with AsyncExitStack() as held:
        store = await _opened(url, held)
        *most, last = duties(number, 0, events)
        await write_all(store, most, ledger)
        await _leave_to_end(ledger.with_name(_MAY_END))
        await write_all(store, [last], ledger)


async def _leave_to_end(file: Path) -> None:
    """Wait until all kills have happened, however slow the process that kills is."""
    parent = os.getppid()

    def wait() -> None:
        while not file.exists() and os.getppid() == parent:
            time.sleep(0.02)

    await asyncio.to_thread(wait)


async def _opened(url: str, held: AsyncExitStack) -> RunStore:
    """Open a store that others open at the same time, and whose connections are cut."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return await held.enter_async_context(run_store(url))
        except RunStoreUnavailable:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
