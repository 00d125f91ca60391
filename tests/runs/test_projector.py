"""The projector: follows all runs, survives restarts, measures its lag and raises alerts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from headwater.errors import RunStoreUnavailable
from headwater.runs import RunStatus, RunStore, project
from headwater.runs.alerts import LAG_HIGH, NON_CONTIGUOUS, Alert, Alerts
from headwater.runs.events import StoredEvent
from headwater.runs.projection import Health
from headwater.runs.projector import Options, Projector, Resync
from headwater.runs.store import PAGE, Changes, Checkpoint
from headwater.runs.stores.memory import MemoryRunStore
from headwater.runs.stores.sqlite import SqliteRunStore
from tests.suites.run_steps import (
    all_events,
    append,
    numbered,
    started,
    step_completed,
    step_started,
)
from tests.support.patience import PATIENCE_SECONDS, until


class LateStore(MemoryRunStore):
    """A store whose events may be committed after later ones, as with a sequence per run."""

    gaps_are_final = False

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        super().__init__(clock or partial(datetime.now, UTC))
        self.hidden: set[int] = set()
        self.down = False
        self.refused = 0
        self.full = False
        self.position = ""
        self.fetches: list[int] = []

    async def fetch_events(
        self, run_id: str, after_seq: int = 0, limit: int = PAGE
    ) -> list[StoredEvent]:
        self.fetches.append(after_seq)
        found = await super().fetch_events(run_id, after_seq, limit)
        return [each for each in found if each.run_seq not in self.hidden]

    async def changes(self, mark: str = "", limit: int = PAGE) -> Changes:
        if self.down:
            self.refused += 1
            raise RunStoreUnavailable("here", "it is down")
        return await super().changes(mark, limit)

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        if self.full:
            self.refused += 1
            raise RunStoreUnavailable("here", "it is full")
        await super().save_checkpoints(checkpoints)

    async def save_position(self, position: str) -> None:
        self.position = position

    async def load_position(self) -> str:
        return self.position


class CountingStore(SqliteRunStore):
    """A store that tells which runs were read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read: list[str] = []

    async def fetch_each(
        self, wanted: Sequence[tuple[str, int]], limit: int = PAGE
    ) -> list[list[StoredEvent]]:
        self.read += [run_id for run_id, _ in wanted]
        return await super().fetch_each(wanted, limit)


def has_applied(projector: Projector, events: int) -> bool:
    """Tell whether a projector has applied so many events."""
    return projector.metrics().events_applied == events


def has_looked(store: LateStore, times: int) -> bool:
    """Tell whether events were asked for so often."""
    return len(store.fetches) >= times


async def run_until_applied(projector: Projector, wanted: int) -> None:
    """Run a projector until it has applied so many events; then stop it."""
    task = asyncio.create_task(projector.run())
    await until(partial(has_applied, projector, wanted))
    projector.stop()
    await asyncio.wait_for(task, PATIENCE_SECONDS)


def over(store: RunStore, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario over an open store."""

    async def run() -> None:
        async with store:
            await asyncio.wait_for(scenario(), 60)

    asyncio.run(run())


def test_every_run_is_materialised(tmp_path: Path) -> None:
    for store in (MemoryRunStore(), SqliteRunStore(tmp_path / "runs.db")):

        async def scenario(store: RunStore = store) -> None:
            for number in range(40):
                await append(store, started(f"r{number}"), *numbered(3, run=f"r{number}"))
            projector = Projector(store)
            assert await projector.catch_up() == 160
            assert await projector.catch_up() == 0
            for number in range(40):
                kept = await store.load_checkpoint(f"r{number}")
                assert kept is not None
                assert kept.snapshot == await store.project_snapshot(f"r{number}")
            metrics = projector.metrics()
            assert (metrics.events_behind, metrics.lag_seconds, metrics.stale_runs) == (0, 0, 0)
            assert metrics.events_applied == 160

        over(store, scenario)


def test_it_follows_live_and_stops_when_told() -> None:
    store = MemoryRunStore()

    async def scenario() -> None:
        # It does not look again by itself: the store has to report each change.
        projector = Projector(store, Options(wait_seconds=600))
        task = asyncio.create_task(projector.run())
        for number in range(30):
            await append(store, *numbered(2, first=number * 2))
            await until(partial(has_applied, projector, number * 2 + 2), "what was appended")
        kept = await store.load_checkpoint("run-001")
        assert kept is not None
        assert kept.last_event_seq == 60
        projector.stop()
        await asyncio.wait_for(task, PATIENCE_SECONDS)

    over(store, scenario)


def test_a_run_of_many_pages_is_projected_page_by_page() -> None:
    store = MemoryRunStore()

    async def scenario() -> None:
        await append(store, *numbered(PAGE * 2 + 7))
        projector = Projector(store)
        assert await projector.catch_up() == PAGE * 2 + 7

    over(store, scenario)


def test_a_late_event_is_found_and_its_gap_alerted_once() -> None:
    store = LateStore()
    alerts: list[Alert] = []

    async def scenario() -> None:
        projector = Projector(store, Options(grace_seconds=60), on_alert=Alerts(alerts.append))
        await append(store, started(), step_started("a"), step_completed("a"), *numbered(2))
        store.hidden = {2}
        await projector.catch_up()
        assert projector.health("run-001") is Health.STALE
        await projector.catch_up()
        assert [each.code for each in alerts].count(NON_CONTIGUOUS) == 1
        assert projector.metrics().stale_runs == 1
        store.hidden = set()
        await projector.catch_up()
        assert projector.health("run-001") is Health.LIVE
        kept = await store.load_checkpoint("run-001")
        assert kept is not None
        assert kept.snapshot == project("run-001", await all_events(store))
        assert not kept.stale

    over(store, scenario)


def test_a_gap_that_stays_is_given_up_after_the_grace_period() -> None:
    moment = [datetime.now(UTC)]
    store = LateStore(clock=lambda: moment[0])

    async def scenario() -> None:
        projector = Projector(store, Options(grace_seconds=0.2), clock=lambda: moment[0])
        task = asyncio.create_task(projector.run())
        await append(store, *numbered(5))
        store.hidden = {3}
        await until(lambda: projector.health("run-001") is Health.STALE)
        for seconds in (0, 0.1):
            moment[0] += timedelta(seconds=seconds)
            looked = len(store.fetches)
            await until(partial(has_looked, store, looked + 3), "more looks")
            assert projector.health("run-001") is Health.STALE
        moment[0] += timedelta(seconds=0.1)
        await until(lambda: projector.health("run-001") is Health.LIVE)
        kept = await store.load_checkpoint("run-001")
        assert kept is not None
        assert kept.contiguous_seq == 5
        projector.stop()
        await task

    over(store, scenario)


def test_another_projector_goes_on_from_the_checkpoints() -> None:
    store = LateStore()

    async def scenario() -> None:
        await append(store, *numbered(10))
        await Projector(store).catch_up()
        await append(store, *numbered(5, first=11))
        store.fetches.clear()
        assert await Projector(store).catch_up() == 5
        assert store.fetches == [10]

    over(store, scenario)


def test_a_restarted_projector_looks_only_at_what_changed(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "runs.db")

    async def scenario() -> None:
        for number in range(20):
            await append(store, *numbered(2, run=f"r{number}"))
        await run_until_applied(Projector(store), wanted=40)
        await append(store, *numbered(1, run="r7", first=3))
        store.read.clear()
        second = Projector(store)
        assert await second.catch_up() == 1
        assert store.read == ["r7"]

    over(store, scenario)


def test_a_restarted_projector_comes_back_to_an_open_gap() -> None:
    store = LateStore()

    async def scenario() -> None:
        await append(store, *numbered(5))
        store.hidden = {3}
        first = Projector(store, Options(grace_seconds=60))
        await run_until_applied(first, wanted=4)
        assert first.health("run-001") is Health.STALE
        # Nothing changes any more, and still the gap has to be given up one day.
        second = Projector(store, Options(grace_seconds=0))
        await second.catch_up()
        await second.catch_up()
        kept = await store.load_checkpoint("run-001")
        assert kept is not None
        assert (kept.contiguous_seq, kept.stale) == (5, False)

    over(store, scenario)


def test_a_position_that_means_nothing_here_is_no_obstacle(tmp_path: Path) -> None:
    for number, text in enumerate(("", "{", '{"mark": 3}')):
        store = CountingStore(tmp_path / f"runs-{number}.db")

        async def scenario(store: CountingStore = store, text: str = text) -> None:
            await append(store, *numbered(2))
            await store.save_position(text)
            await Projector(store).catch_up()
            assert (await store.load_checkpoint("run-001")) is not None

        over(store, scenario)


def test_what_could_not_be_kept_is_kept_later() -> None:
    store = LateStore()

    async def scenario() -> None:
        await append(store, *numbered(3))
        store.full = True
        projector = Projector(store)
        with pytest.raises(RunStoreUnavailable):
            await projector.catch_up()
        store.full = False
        assert await projector.catch_up() == 3
        kept = await store.load_checkpoint("run-001")
        assert kept is not None
        assert kept.last_event_seq == 3
        assert projector.metrics().runs_behind == 0

    over(store, scenario)


def test_few_loaded_runs_are_enough() -> None:
    store = MemoryRunStore()

    async def scenario() -> None:
        projector = Projector(store, Options(max_loaded_runs=2))
        for turn in range(3):
            for number in range(10):
                await append(store, *numbered(2, run=f"r{number}", first=turn * 2 + 1))
            assert await projector.catch_up() == 20

    over(store, scenario)


def test_a_deleted_run_is_forgotten() -> None:
    store = MemoryRunStore()

    async def scenario() -> None:
        projector = Projector(store)
        await append(store, started())
        await projector.catch_up()
        await store.delete_run("run-001")
        await projector.catch_up()
        assert await store.get_snapshot("run-001") is None
        assert await projector.resync("run-001") is None

    over(store, scenario)


def test_a_lag_is_measured_and_alerted() -> None:
    moment = [datetime.now(UTC)]
    store = MemoryRunStore(clock=lambda: moment[0])
    alerts: list[Alert] = []

    async def scenario() -> None:
        projector = Projector(store, on_alert=Alerts(alerts.append), clock=lambda: moment[0])
        await append(store, *numbered(3))
        moment[0] += timedelta(seconds=4)
        await append(store, *numbered(2, first=4))
        moment[0] += timedelta(seconds=2)
        lag = await projector.lag_of("run-001")
        assert (lag.seconds, lag.events_behind) == (6.0, 5)
        await projector.catch_up()
        assert [each.code for each in alerts] == [LAG_HIGH]
        assert alerts[0].priority == "P2"
        lag = await projector.lag_of("run-001")
        assert (lag.seconds, lag.events_behind) == (0.0, 0)
        # Once it has caught up, falling behind again is reported again.
        await append(store, *numbered(1, first=6))
        moment[0] += timedelta(seconds=11)
        await projector.catch_up()
        assert [each.code for each in alerts] == [LAG_HIGH, LAG_HIGH]
        assert projector.health("run-001") is Health.LIVE
        kept = await store.load_checkpoint("run-001")
        assert kept is not None
        assert kept.last_event_seq == 6

    over(store, scenario)


def test_a_run_that_is_far_behind_is_projected_anew() -> None:
    moment = [datetime.now(UTC)]
    store = LateStore(clock=lambda: moment[0])

    async def scenario() -> None:
        options = Options(grace_seconds=0, resync=Resync.FULL)
        projector = Projector(store, options, clock=lambda: moment[0])
        await append(store, started(), step_started("a"), step_completed("a"))
        store.hidden = {2}
        await projector.catch_up()
        await projector.catch_up()
        assert projector.health("run-001") is Health.LIVE  # given up: the grace period is over
        store.hidden = set()

        async def is_whole() -> bool:
            kept = await store.load_checkpoint("run-001")
            assert kept is not None
            return kept.snapshot == project("run-001", await all_events(store))

        for step, seconds_behind, whole in (("b", 9, False), ("c", 11, True)):
            await append(store, step_started(step))
            moment[0] += timedelta(seconds=seconds_behind)
            await projector.catch_up()
            assert projector.health("run-001") is Health.LIVE
            assert await is_whole() is whole

    over(store, scenario)


def test_an_outage_of_the_store_is_waited_out_and_alerted() -> None:
    moment = [datetime.now(UTC)]
    store = LateStore(clock=lambda: moment[0])
    alerts: list[Alert] = []

    async def scenario() -> None:
        projector = Projector(
            store,
            Options(retry_seconds=0.02),
            on_alert=Alerts(alerts.append),
            clock=lambda: moment[0],
        )
        store.full = True
        task = asyncio.create_task(projector.run())
        await append(store, started())
        await until(lambda: store.refused >= 3, "attempts to save the checkpoint")
        store.down = True
        store.refused = 0
        await until(lambda: store.refused >= 3, "attempts to ask for changes")
        assert projector.metrics().events_applied == 0
        assert alerts == []
        moment[0] += timedelta(seconds=6)
        await until(lambda: alerts, "the alert")
        assert [each.code for each in alerts] == [LAG_HIGH]
        store.full = store.down = False
        await until(partial(has_applied, projector, 1))
        projector.stop()
        await task

    over(store, scenario)


def test_both_ways_to_resync_give_the_same_snapshot() -> None:
    store = LateStore()

    async def scenario() -> None:
        projector = Projector(store, Options(grace_seconds=0))
        await append(store, started(), step_started("a"), step_completed("a"), *numbered(2))
        store.hidden = {2}
        await projector.catch_up()
        await projector.catch_up()
        assert projector.health("run-001") is Health.LIVE  # given up: the grace period is over
        store.hidden = set()
        # What came after that is found by starting over, and only so.
        half = await projector.resync("run-001", Resync.FROM_SNAPSHOT)
        whole = await projector.resync("run-001", Resync.FULL)
        assert whole == project("run-001", await all_events(store))
        assert half != whole
        kept = await store.load_checkpoint("run-001")
        assert kept is not None
        assert kept.snapshot == whole
        assert kept.snapshot.status is RunStatus.RUNNING

    over(store, scenario)


def test_a_callback_that_fails_stops_nothing() -> None:
    store = MemoryRunStore()

    def fail(_: Alert) -> None:
        raise ValueError("no")

    async def scenario() -> None:
        projector = Projector(store, on_alert=Alerts(fail))
        await append(store, step_completed("never-started"))
        assert await projector.catch_up() == 1

    over(store, scenario)
