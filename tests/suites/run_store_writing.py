"""What any run store promises of appending, batches, keys and deleting."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from headwater.errors import (
    EventRefused,
    RunDeleted,
    RunNotFound,
    StoreNotOpen,
    UnknownContract,
)
from headwater.runs import AppendResult, NewEvent, RunStatus, RunStore
from tests.suites.behaviours import runs_behaviours
from tests.suites.run_steps import (
    all_events,
    append,
    append_each,
    event,
    numbered,
    started,
    step_completed,
    step_started,
)


def changed(new: NewEvent, **fields: Any) -> NewEvent:
    """Make an event that differs in some fields."""
    return msgspec.structs.replace(new, **fields)


@runs_behaviours
class Opening:
    """Whether a store can be used."""

    async def test_closing_twice_is_the_same_as_once(self, store: RunStore) -> None:
        await store.close()
        await store.close()

    async def test_opening_twice_is_the_same_as_once(self, store: RunStore) -> None:
        await append(store, started())
        await store.open()
        assert len(await all_events(store)) == 1

    async def test_a_closed_store_says_so(self, store: RunStore) -> None:
        await store.close()
        with pytest.raises(StoreNotOpen):
            await store.append_event(started())
        with pytest.raises(StoreNotOpen):
            await store.fetch_events("run-001")

    async def test_a_store_tells_how_it_numbers(self, store: RunStore) -> None:
        assert store.authority
        assert store.gaps_are_final in {True, False}


@runs_behaviours
class Appending:
    """One event at a time."""

    async def test_the_first_event_of_a_run_is_number_1(self, store: RunStore) -> None:
        result = await store.append_event(started())
        assert result == AppendResult(1, idempotent=False, persisted=True)

    async def test_numbers_increase_strictly(self, store: RunStore) -> None:
        results = await append_each(store, *numbered(20))
        numbers = [result.run_seq for result in results]
        assert numbers == sorted(set(numbers))
        assert all(result.persisted for result in results)

    async def test_each_run_has_numbers_of_its_own(self, store: RunStore) -> None:
        await append(store, *numbered(5, run="a"))
        assert (await store.append_event(started("b"))).run_seq == 1

    async def test_an_event_comes_back_as_it_was_written(self, store: RunStore) -> None:
        written = msgspec.structs.replace(
            event(
                "StepCompleted",
                {
                    "completedAt": "2026-02-11T10:00:01.123456+02:00",
                    "artifactRefs": [{"uri": "s3://ü/ \u2028", "kind": "table", "rows": 2**53}],
                    "result": {"deep": [1, 2.5, None, True, "\x00"]},
                },
                step="model.orders/ö",
                attempt=3,
                engine_attempt_id=7,
                adapter_version="0.9",
                engine_run_ref={"provider": "mine", "handle": [1]},
                parent_event_id="p",
            ),
            extra={"laterField": {"x": 1}, "extra": "kept too"},
        )
        before = datetime.now(UTC) - timedelta(seconds=2)
        (seq,) = await append(store, written)
        (read,) = await store.fetch_events("run-001")
        for name in NewEvent.__struct_fields__:
            assert getattr(read, name) == getattr(written, name), name
        assert read.run_seq == seq
        assert before <= read.persisted_at <= datetime.now(UTC) + timedelta(seconds=2)

    async def test_an_unknown_type_is_kept(self, store: RunStore) -> None:
        await append(store, event("CoffeeSpilled", [1, "two", None]))
        (read,) = await store.fetch_events("run-001")
        assert (read.event_type, read.event_data) == ("CoffeeSpilled", [1, "two", None])

    @pytest.mark.parametrize(
        ("wrong", "because"),
        [
            (event("StepStarted", {}, step="a"), "startedAt"),
            (event("StepStarted", {"startedAt": "2026-02-11T10:00:00"}, step="a"), "timezone"),
            (event("StepStarted", {"startedAt": "2026-02-11T10:00:00Z"}), "stepId"),
            (event("RunQueued", {}, step="a"), "stepId"),
            (event("StepCompleted", {"completedAt": "2026-02-11T10:00:00Z"}, step="a"), "artifact"),
            (event("RunFailed", {"failedAt": "2026-02-11T10:00:00Z", "error": {}}), "code"),
            (event("StepSkipped", {"reasonCode": "NO_MOOD"}, step="a"), "reasonCode"),
            (event("StepCorrected", {"status": "RUNNING"}, step="a"), "status"),
            (event("StepCorrected", {"status": "FAILED"}, step="a"), "error"),
            (event("RunStarted", {"startedAt": "2026-02-11T10:00:00Z"}), "engineRunRef"),
            (event("Ticked", object()), "JSON"),
            (event("Ticked", engine_run_ref={"provider": "temporal"}), "namespace"),
            (changed(event("Ticked"), run_id=""), "runId"),
            (changed(event("Ticked"), run_id="a\x00b"), "printed"),
            (changed(event("Ticked"), idempotency_key=""), "idempotencyKey"),
            (changed(event("Ticked"), event_type="x" * 300), "eventType"),
            (event("Ticked", attempt=0), "attempts"),
            (changed(event("Ticked"), emitted_at=datetime(2026, 1, 1)), "UTC"),  # noqa: DTZ001 - no zone, on purpose
            (event("Ticked", "x" * (2 << 20)), "bytes"),
        ],
    )
    async def test_an_event_that_breaks_the_contract_is_refused_and_leaves_no_trace(
        self, store: RunStore, wrong: NewEvent, because: str
    ) -> None:
        with pytest.raises(EventRefused, match=because) as caught:
            await store.append_events([event("RunQueued"), wrong])
        assert caught.value.code == "SCHEMA_VALIDATION_FAILED"
        assert await store.find_run("run-001") is None
        assert await store.fetch_events("run-001") == []

    @pytest.mark.parametrize("version", ["2.0", "10.1", "one", ""])
    async def test_another_major_version_is_refused_and_none_at_all_is_1(
        self, store: RunStore, version: str
    ) -> None:
        told = changed(event("Ticked"), contract_version=version)
        if version:
            with pytest.raises(UnknownContract):
                await store.append_event(told)
        else:
            assert (await store.append_event(told)).persisted

    async def test_a_later_minor_version_is_accepted(self, store: RunStore) -> None:
        told = changed(event("Ticked"), contract_version="1.7")
        assert (await store.append_event(told)).persisted
        assert (await all_events(store))[0].contract_version == "1.7"


@runs_behaviours
class Deduplicating:
    """The idempotency key."""

    async def test_a_duplicate_is_answered_with_the_first_number(self, store: RunStore) -> None:
        await append(store, *numbered(3))
        first = await store.append_event(started())
        await append(store, *numbered(3, first=4))
        again = await store.append_event(started())
        assert again == AppendResult(first.run_seq, idempotent=True, persisted=False)
        assert len(await all_events(store)) == 7

    async def test_the_first_event_wins_whatever_the_duplicate_says(self, store: RunStore) -> None:
        first = event("Ticked", {"n": 1})
        await append(store, first)
        await store.append_event(changed(first, event_data={"n": 2}, event_id="other"))
        (read,) = await all_events(store)
        assert (read.event_data, read.event_id) == ({"n": 1}, first.event_id)

    async def test_the_key_is_opaque_and_belongs_to_its_run(self, store: RunStore) -> None:
        for run in ("a", "b"):
            told = changed(event("Ticked", run=run), idempotency_key="any text, even | this")
            assert (await store.append_event(told)).persisted
            assert (await store.append_event(told)).idempotent

    async def test_a_duplicate_takes_no_number(self, store: RunStore) -> None:
        first, second = numbered(2)
        await append(store, first)
        before = (await store.append_event(second)).run_seq
        for _ in range(5):
            await store.append_event(first)
        after = (await store.append_event(event("Ticked"))).run_seq
        assert after == before + 1

    async def test_each_pause_by_another_signal_is_an_event_of_its_own(
        self, store: RunStore
    ) -> None:
        pauses = [event("RunPaused", {"signalId": name}, signal=name) for name in ("s1", "s2")]
        results = await append_each(store, started(), *pauses, *pauses)
        assert [result.persisted for result in results] == [True, True, True, False, False]
        assert results[1].run_seq == results[3].run_seq != results[2].run_seq

    async def test_the_same_event_from_many_at_once_is_stored_once(self, store: RunStore) -> None:
        await append(store, *numbered(1))
        same = started()
        results = await asyncio.gather(*(store.append_event(same) for _ in range(16)))
        assert len({result.run_seq for result in results}) == 1
        assert sum(result.persisted for result in results) == 1
        assert sum(result.idempotent for result in results) == 15

    async def test_many_events_at_once_have_a_number_each(self, store: RunStore) -> None:
        results = await asyncio.gather(*map(store.append_event, numbered(64)))
        assert len({result.run_seq for result in results}) == 64
        read = await all_events(store)
        assert {each.run_seq for each in read} == {result.run_seq for result in results}


@runs_behaviours
class Batching:
    """Several events in one transaction."""

    async def test_a_batch_is_stored_in_its_order(self, store: RunStore) -> None:
        numbers = await append(store, *numbered(40))
        assert numbers == sorted(set(numbers))
        assert [each.event_data["n"] for each in await all_events(store)] == list(range(1, 41))

    async def test_an_empty_batch_does_nothing(self, store: RunStore) -> None:
        assert await store.append_events([]) == []

    async def test_what_is_known_of_a_batch_is_told_one_by_one(self, store: RunStore) -> None:
        events = numbered(6)
        await append(store, events[1], events[3])
        results = await store.append_events(events)
        assert [result.persisted for result in results] == [True, False, True, False, True, True]
        again = await store.append_events(events)
        assert [result.run_seq for result in again] == [result.run_seq for result in results]
        assert all(result.idempotent for result in again)
        assert len(await all_events(store)) == 6

    async def test_a_key_twice_in_a_batch_is_one_event(self, store: RunStore) -> None:
        one, two = numbered(2)
        results = await store.append_events([one, two, one])
        assert [result.idempotent for result in results] == [False, False, True]
        assert results[2].run_seq == results[0].run_seq
        assert len(await all_events(store)) == 2

    async def test_a_batch_of_two_runs_is_refused_whole(self, store: RunStore) -> None:
        with pytest.raises(EventRefused, match="one run"):
            await store.append_events([started("a"), started("b")])
        assert await store.find_run("a") is None

    async def test_a_batch_that_is_too_large_is_refused_whole(self, store: RunStore) -> None:
        with pytest.raises(EventRefused, match=f"{store.max_batch}"):
            await store.append_events(numbered(1) * (store.max_batch + 1))
        assert await store.find_run("run-001") is None

    async def test_batches_at_once_are_not_mixed_up(self, store: RunStore) -> None:
        batches = [numbered(8, first=number * 100) for number in range(8)]
        answers = await asyncio.gather(*map(store.append_events, batches))
        read = {each.run_seq: each.event_data["n"] for each in await all_events(store)}
        assert len(read) == 64
        for batch, answer in zip(batches, answers, strict=True):
            numbers = [result.run_seq for result in answer]
            assert numbers == sorted(numbers)
            assert [read[number] for number in numbers] == [e.event_data["n"] for e in batch]


@runs_behaviours
class Deleting:
    """Whole runs only."""

    async def test_a_deleted_run_is_gone(self, store: RunStore) -> None:
        await append(store, started(), step_started("a"))
        assert await store.delete_run("run-001")
        assert await store.fetch_events("run-001") == []
        assert await store.find_run("run-001") is None
        assert await store.get_snapshot("run-001") is None
        assert await store.load_checkpoint("run-001") is None
        assert (await store.list_runs()).runs == ()
        with pytest.raises(RunNotFound):
            await store.project_snapshot("run-001")

    async def test_a_late_retry_can_not_bring_half_of_it_back(self, store: RunStore) -> None:
        await append(store, started(), step_started("a"))
        await store.delete_run("run-001")
        for late in (started(), step_completed("a")):
            with pytest.raises(RunDeleted):
                await store.append_event(late)
        assert await store.fetch_events("run-001") == []

    async def test_deleting_again_or_nothing_says_so(self, store: RunStore) -> None:
        assert not await store.delete_run("run-001")
        await append(store, started())
        assert await store.delete_run("run-001")
        assert not await store.delete_run("run-001")

    async def test_deleting_what_never_was_leaves_no_tombstone(self, store: RunStore) -> None:
        assert not await store.delete_run("run-001")
        await append(store, started())

    async def test_other_runs_stay(self, store: RunStore) -> None:
        await append(store, started("a"))
        await append(store, started("b"))
        await store.delete_run("a")
        assert len(await all_events(store, "b")) == 1
        info = await store.find_run("b")
        assert info is not None
        assert info.status in {RunStatus.RUNNING, RunStatus.PENDING}
