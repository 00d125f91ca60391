"""What any run store promises of fetching, snapshots, lists, changes and checkpoints."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headwater.errors import RunNotFound, RunQueryRefused
from headwater.runs import (
    RunSnapshot,
    RunStatus,
    RunStore,
    StepStatus,
    StoredEvent,
    project,
)
from headwater.runs.store import Checkpoint
from tests.suites.behaviours import runs_behaviours
from tests.suites.run_steps import (
    TEMPORAL,
    all_changes,
    all_events,
    append,
    at,
    event,
    numbered,
    started,
    step_completed,
    step_failed,
    step_started,
)

WHOLE_RUN = [
    event("RunQueued"),
    event("RunApproved"),
    started(seconds=1),
    step_started("extract", seconds=2),
    step_failed("extract", seconds=3),
    step_started("extract", attempt=2, seconds=4),
    event("SomethingNew", {"x": 1}),
    step_completed("extract", attempt=2, seconds=5, artifacts=["s3://a", "s3://b"]),
    event("RunCompleted", {"completedAt": "2026-02-11T10:00:09Z"}, seconds=9),
]


@runs_behaviours
class Fetching:
    """The log of a run."""

    async def test_events_come_in_the_order_of_their_numbers(self, store: RunStore) -> None:
        await asyncio.gather(*map(store.append_event, numbered(30)))
        seqs = [each.run_seq for each in await store.fetch_events("run-001")]
        assert seqs == sorted(set(seqs))

    async def test_a_watermark_gives_what_lies_behind_it(self, store: RunStore) -> None:
        numbers = await append(store, *numbered(10))
        behind = await store.fetch_events("run-001", after_seq=numbers[3])
        assert [each.run_seq for each in behind] == numbers[4:]
        assert await store.fetch_events("run-001", after_seq=numbers[-1]) == []
        assert await store.fetch_events("run-001", after_seq=10**9) == []

    async def test_pages_join_to_the_whole(self, store: RunStore) -> None:
        numbers = await append(store, *numbered(23))
        found: list[int] = []
        while page := await store.fetch_events("run-001", found[-1] if found else 0, limit=5):
            assert len(page) <= 5
            found += [each.run_seq for each in page]
        assert found == numbers

    async def test_several_runs_are_read_at_once(self, store: RunStore) -> None:
        for run in ("a", "b", "c"):
            await append(store, *numbered(5, run=run))
        log = await all_events(store, "a")
        wanted = [("c", 0), ("nobody", 0), ("a", log[1].run_seq), ("b", log[4].run_seq)]
        third, nobody, first, second = await store.fetch_each(wanted, 3)
        assert third == (await all_events(store, "c"))[:3]
        assert first == log[2:]
        assert (nobody, second) == ([], [])
        assert await store.fetch_each([]) == []

    async def test_an_unknown_run_has_no_events(self, store: RunStore) -> None:
        assert await store.fetch_events("nothing") == []

    @pytest.mark.parametrize(("after", "limit"), [(-1, 10), (0, 0), (0, -5), (0, 10**9)])
    async def test_a_page_that_makes_no_sense_is_refused(
        self, store: RunStore, after: int, limit: int
    ) -> None:
        with pytest.raises(RunQueryRefused):
            await store.fetch_events("run-001", after, limit)

    async def test_run_ids_are_taken_as_they_are(self, store: RunStore) -> None:
        names = ["a/b", "A", "a", "a b", "ü", "../x", "a%2Fb", "run:1?x=1#y", "'; DROP", "%", "_"]
        for name in names:
            await append(store, started(name))
        for name in names:
            (only,) = await all_events(store, name)
            assert only.run_id == name
        assert {info.run_id for info in (await store.list_runs()).runs} == set(names)


@runs_behaviours
class Snapshots:
    """What a run looks like."""

    async def test_the_whole_story(self, store: RunStore) -> None:
        numbers = await append(store, *WHOLE_RUN)
        snapshot = await store.project_snapshot("run-001")
        assert snapshot.status is RunStatus.COMPLETED
        assert snapshot.last_event_seq == numbers[-1]
        assert snapshot.engine_run_ref == TEMPORAL
        assert (snapshot.started_at, snapshot.completed_at) == (at(1), at(9))
        assert snapshot.total_duration_ms == 8000
        assert snapshot.failed_steps == 1
        (step,) = snapshot.steps
        assert (step.status, step.logical_attempt_id) == (StepStatus.SUCCESS, 2)
        assert [each.uri for each in snapshot.artifacts] == ["s3://a", "s3://b"]

    async def test_a_snapshot_is_the_projection_of_the_log(self, store: RunStore) -> None:
        for each in WHOLE_RUN:
            await append(store, each)
            expected = project("run-001", await all_events(store))
            assert await store.project_snapshot("run-001") == expected
            assert await store.get_snapshot("run-001") == expected

    async def test_an_unknown_run_has_none(self, store: RunStore) -> None:
        assert await store.get_snapshot("run-001") is None
        with pytest.raises(RunNotFound):
            await store.project_snapshot("run-001")

    async def test_the_materialised_one_is_brought_up_to_date(self, store: RunStore) -> None:
        numbers = await append(store, *WHOLE_RUN[:4])
        kept = project("run-001", await all_events(store))
        await store.save_checkpoints([Checkpoint(kept, numbers[-1])])
        await append(store, *WHOLE_RUN[4:])
        assert await store.get_snapshot("run-001") == await store.project_snapshot("run-001")

    async def test_a_long_run_is_projected_whole(self, store: RunStore) -> None:
        many = numbered(2500)
        size = min(store.max_batch, 500)
        for start in range(0, len(many), size):
            await append(store, *many[start : start + size])
        snapshot = await store.project_snapshot("run-001")
        assert snapshot.last_event_seq == (await all_events(store))[-1].run_seq
        assert len(await all_events(store)) == 2500


@runs_behaviours
class Listing:
    """Which runs there are."""

    async def test_a_run_is_described_by_its_head(self, store: RunStore) -> None:
        before = datetime.now(UTC) - timedelta(seconds=2)
        await append(store, started())
        last = await append(store, step_started("a"))
        info = await store.find_run("run-001")
        assert info is not None
        assert (info.run_id, info.last_event_seq, info.deleted) == ("run-001", last[0], False)
        assert before <= info.created_at <= info.updated_at
        assert (await store.list_runs()).runs == (info,)

    async def test_an_unknown_run_is_not_found(self, store: RunStore) -> None:
        assert await store.find_run("run-001") is None
        assert (await store.list_runs()).runs == ()

    async def test_pages_list_each_run_once_the_newest_first(self, store: RunStore) -> None:
        for number in range(11):
            await append(store, started(f"run-{number:02d}"))
            time.sleep(0.002)  # noqa: ASYNC251 - so that each is newer, by any store's clock
        names: list[str] = []
        after: str | None = None
        while True:
            page = await store.list_runs(limit=4, after=after)
            names += [info.run_id for info in page.runs]
            after = page.next
            if after is None:
                break
        assert names == [f"run-{number:02d}" for number in reversed(range(11))]

    async def test_a_full_last_page_is_the_last(self, store: RunStore) -> None:
        for number in range(4):
            await append(store, started(f"run-{number}"))
        assert (await store.list_runs(limit=4)).next is None
        assert (await store.list_runs(limit=3)).next is not None

    async def test_runs_are_found_by_status(self, store: RunStore) -> None:
        await append(store, event("RunQueued", run="waits"))
        await append(store, started("runs"))
        await append(store, started("ends"), event("RunCompleted", run="ends"))
        await _checkpoint_all(store)
        for status, name in (
            (RunStatus.PENDING, "waits"),
            (RunStatus.RUNNING, "runs"),
            (RunStatus.COMPLETED, "ends"),
        ):
            page = await store.list_runs(status=status)
            assert [(info.run_id, info.status) for info in page.runs] == [(name, status)]
        assert (await store.list_runs(status=RunStatus.PAUSED)).runs == ()

    async def test_runs_are_found_by_time(self, store: RunStore) -> None:
        await append(store, started("early"))
        early = await store.find_run("early")
        assert early is not None
        await asyncio.sleep(0.01)  # So that it is newer, by any store's clock.
        await append(store, started("late"))
        late = await store.find_run("late")
        assert late is not None

        async def names(**bounds: Any) -> list[str]:
            return [info.run_id for info in (await store.list_runs(**bounds)).runs]

        assert await names(created_from=late.created_at) == ["late"]
        assert await names(created_before=late.created_at) == ["early"]
        assert await names(created_from=early.created_at) == ["late", "early"]
        assert await names(created_before=early.created_at) == []

    @pytest.mark.parametrize("after", ["", "x", "2026~"])
    async def test_a_cursor_that_is_none_is_refused(self, store: RunStore, after: str) -> None:
        with pytest.raises(RunQueryRefused):
            await store.list_runs(after=after)
        with pytest.raises(RunQueryRefused):
            await store.list_runs(limit=0)


@runs_behaviours
class Changing:
    """How a projector learns what to look at."""

    async def test_every_run_that_changed_is_named(self, store: RunStore) -> None:
        for number in range(7):
            await append(store, started(f"run-{number}"))
        names, mark = await all_changes(store, limit=3)
        assert set(names) == {f"run-{number}" for number in range(7)}
        await append(store, step_started("a", run="run-3"))
        names, mark = await all_changes(store, mark)
        assert "run-3" in names
        info = next(info for info in (await store.changes("")).runs if info.run_id == "run-3")
        assert info.last_event_seq == (await all_events(store, "run-3"))[-1].run_seq

    async def test_a_deleted_run_is_named_as_such(self, store: RunStore) -> None:
        await append(store, started())
        _, mark = await all_changes(store)
        await store.delete_run("run-001")
        changes = await store.changes(mark)
        assert [info.run_id for info in changes.runs if info.deleted] == ["run-001"]

    async def test_waiting_ends_when_something_changes(self, store: RunStore) -> None:
        await append(store, started("a"))
        _, mark = await all_changes(store)
        waiting = asyncio.create_task(store.wait(mark, 600))
        await append(store, started("b"))
        await asyncio.wait_for(waiting, 60)
        seen: list[str] = []
        for _ in range(1200):
            names, mark = await all_changes(store, mark)
            seen += names
            if "b" in seen:
                return
            await asyncio.sleep(0.05)
        pytest.fail("the change was never named")

    async def test_waiting_ends_by_itself(self, store: RunStore) -> None:
        _, mark = await all_changes(store)
        await asyncio.wait_for(store.wait(mark, 0.05), 60)


@runs_behaviours
class Checkpointing:
    """How far projections have come."""

    async def test_a_checkpoint_comes_back_as_it_was_kept(self, store: RunStore) -> None:
        numbers = await append(store, *WHOLE_RUN)
        log = await all_events(store)
        whole, half = project("run-001", log), project("run-001", log[:4])
        kept = Checkpoint(whole, numbers[3], base=half, stale=True)
        assert await store.load_checkpoint("run-001") is None
        await store.save_checkpoints([kept])
        assert await store.load_checkpoint("run-001") == kept

    async def test_an_older_one_does_not_replace_a_newer_one(self, store: RunStore) -> None:
        numbers = await append(store, *WHOLE_RUN)
        log = await all_events(store)
        new = Checkpoint(project("run-001", log), numbers[-1])
        old = Checkpoint(project("run-001", log[:2]), numbers[1])
        await store.save_checkpoints([new])
        await store.save_checkpoints([old])
        assert await store.load_checkpoint("run-001") == new

    async def test_one_of_the_same_age_does(self, store: RunStore) -> None:
        numbers = await append(store, *WHOLE_RUN)
        snapshot = project("run-001", await all_events(store))
        await store.save_checkpoints([Checkpoint(snapshot, numbers[0], stale=True)])
        await store.save_checkpoints([Checkpoint(snapshot, numbers[-1])])
        kept = await store.load_checkpoint("run-001")
        assert kept == Checkpoint(snapshot, numbers[-1])

    async def test_one_of_a_run_that_is_gone_is_dropped(self, store: RunStore) -> None:
        nobody = RunSnapshot("nobody", RunStatus.RUNNING, 3, (), ())
        await append(store, *WHOLE_RUN)
        gone = Checkpoint(project("run-001", await all_events(store)), 1)
        await store.delete_run("run-001")
        await store.save_checkpoints([gone, Checkpoint(nobody, 3)])
        assert await store.load_checkpoint("run-001") is None
        assert await store.load_checkpoint("nobody") is None
        assert await store.find_run("nobody") is None

    async def test_a_run_that_grows_is_kept_whole_each_time(self, store: RunStore) -> None:
        seen: list[StoredEvent] = []
        snapshot: RunSnapshot | None = None
        for first in range(0, 80, 16):
            names = [f"step-{number}" for number in range(first, first + 16)]
            await append(store, *map(step_started, names))
            # The first step of all is told of again and again: a part that was kept long ago.
            await append(store, step_started("step-0", attempt=first + 2))
            fresh = [each for each in await all_events(store) if each not in seen]
            seen += fresh
            snapshot = project("run-001", fresh, snapshot)
            kept = Checkpoint(snapshot, snapshot.last_event_seq)
            await store.save_checkpoints([kept])
            assert await store.load_checkpoint("run-001") == kept
        assert await store.get_snapshot("run-001") == await store.project_snapshot("run-001")

    async def test_the_position_kept_last_counts(self, store: RunStore) -> None:
        assert await store.load_position() == ""
        for turn in range(3):
            await store.save_position(f'{{"mark": "{turn}"}}')
        # A store may leave it, and then does so always.
        assert await store.load_position() in {"", '{"mark": "2"}'}

    async def test_many_are_kept_at_once(self, store: RunStore) -> None:
        for number in range(30):
            await append(store, started(f"run-{number}"))
        await _checkpoint_all(store)
        for number in range(30):
            kept = await store.load_checkpoint(f"run-{number}")
            assert kept is not None
            assert kept.snapshot.status is RunStatus.RUNNING


async def _checkpoint_all(store: RunStore) -> None:
    """Do once what a projector does all the time."""
    names, _ = await all_changes(store)
    snapshots = [await store.project_snapshot(name) for name in dict.fromkeys(names)]
    await store.save_checkpoints([Checkpoint(each, each.last_event_seq) for each in snapshots])
