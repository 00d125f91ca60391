"""Workflows of a real Temporal server become runs, with the right keys and references."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Worker

from headwater.errors import RunStoreUnavailable
from headwater.runs import (
    RunSnapshot,
    RunStatus,
    RunStore,
    StepStatus,
    StoredEvent,
    idempotency_key,
)
from headwater.runs.event_data import PlanRef, RunContext
from headwater.runs.store import AppendResult
from headwater.runs.stores.memory import MemoryRunStore
from headwater.runs.stores.sqlite import SqliteRunStore
from headwater.runs.temporal import RunRecorder
from tests.runs import temporal_workflows as work
from tests.suites.run_steps import all_events

PLAN = PlanRef("s3://plans/orders.json", "ab" * 32, "1", "orders", "1.2.0")
CONTEXT = RunContext("t", "p", "prod")

Scenario = Callable[["Recorded"], Awaitable[None]]


class Recorded:
    """A client, a worker that records, and the store that it records to."""

    def __init__(self, client: Client, queue: str, store: RunStore) -> None:
        self.client = client
        self.queue = queue
        self.store = store

    async def start(self, run: Any, *args: Any) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            run, args=args, id=f"wf-{uuid4()}", task_queue=self.queue
        )

    async def log(self, handle: WorkflowHandle[Any, Any]) -> list[StoredEvent]:
        return await all_events(self.store, handle.first_execution_run_id or "")

    async def snapshot(self, handle: WorkflowHandle[Any, Any]) -> RunSnapshot:
        return await self.store.project_snapshot(handle.first_execution_run_id or "")

    async def reaches(self, handle: WorkflowHandle[Any, Any], event_type: str) -> None:
        """Wait until an event is in the log."""
        for _ in range(6000):
            if event_type in {each.event_type for each in await self.log(handle)}:
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"there was no {event_type}")


def worker(client: Client, queue: str, *plugins: RunRecorder) -> Worker:
    return Worker(
        client,
        task_queue=queue,
        workflows=work.WORKFLOWS,
        activities=work.ACTIVITIES,
        plugins=plugins,
    )


@asynccontextmanager
async def recorded(address: str, store: RunStore) -> AsyncIterator[Recorded]:
    client = await Client.connect(address)
    queue = f"queue-{uuid4()}"
    recorder = RunRecorder(store, plan=PLAN, context=CONTEXT)
    async with store, worker(client, queue, recorder):
        yield Recorded(client, queue, store)


def run(address: str, scenario: Scenario, store: RunStore | None = None) -> None:
    async def main() -> None:
        async with recorded(address, store or MemoryRunStore()) as there:
            await asyncio.wait_for(scenario(there), 300)

    asyncio.run(main())


def kinds(log: list[StoredEvent]) -> list[str]:
    return [f"{each.event_type} {each.step_id or ''}".strip() for each in log]


def test_a_workflow_is_a_run_and_its_activities_are_steps(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario(there: Recorded) -> None:
        handle = await there.start(work.Orders.run, "orders")
        assert await handle.result() == "orders"
        log = await there.log(handle)
        told = kinds(log)
        assert (told[0], told[-1]) == ("RunStarted", "RunCompleted")
        # The end of a step and the start of the next are told by two who do not wait.
        for step in ("extract", "extract#2", "flaky"):
            assert [each.event_type for each in log if each.step_id == step] == [
                "StepStarted",
                "StepCompleted",
            ]
        assert len(log) == 8
        ref = {
            "provider": "temporal",
            "namespace": "default",
            "workflowId": handle.id,
            "runId": handle.first_execution_run_id,
            "taskQueue": there.queue,
        }
        for each in log:
            assert each.engine_run_ref == ref
            assert each.idempotency_key == idempotency_key(
                each.run_id,
                each.event_type,
                "1.2.0",
                step_id=each.step_id,
                logical_attempt_id=each.logical_attempt_id,
            )
        snapshot = await there.snapshot(handle)
        assert snapshot.status is RunStatus.COMPLETED
        assert snapshot.engine_run_ref == ref
        assert [step.status for step in snapshot.steps] == [StepStatus.SUCCESS] * 3
        assert snapshot.failed_steps == 0

    run(temporal_address, scenario, SqliteRunStore(tmp_path / "runs.db"))


def test_an_activity_that_fails_for_good_fails_its_step_and_the_run(temporal_address: str) -> None:
    async def scenario(there: Recorded) -> None:
        handle = await there.start(work.Failing.run, "orders")
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        snapshot = await there.snapshot(handle)
        assert snapshot.status is RunStatus.FAILED
        (step,) = snapshot.steps
        assert step.status is StepStatus.FAILED
        for error in (step.error, snapshot.error):
            assert error is not None
            assert (error.code, error.message) == ("GONE", "orders is gone")
            assert not error.retryable

    run(temporal_address, scenario)


def test_calling_one_activity_id_again_is_the_next_attempt_of_its_step(
    temporal_address: str,
) -> None:
    async def scenario(there: Recorded) -> None:
        handle = await there.start(work.RetriesItself.run, "orders")
        await handle.result()
        steps = [each for each in await there.log(handle) if each.step_id]
        assert [(each.event_type, each.step_id, each.logical_attempt_id) for each in steps] == [
            ("StepStarted", "load", 1),
            ("StepFailed", "load", 1),
            ("StepStarted", "load", 2),
            ("StepCompleted", "load", 2),
        ]
        (step,) = (await there.snapshot(handle)).steps
        assert (step.status, step.logical_attempt_id) == (StepStatus.SUCCESS, 2)

    run(temporal_address, scenario)


def test_a_step_that_no_worker_takes_fails_all_the_same(temporal_address: str) -> None:
    async def scenario(there: Recorded) -> None:
        handle = await there.start(work.NobodyTakesIt.run)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        (step,) = (await there.snapshot(handle)).steps
        assert step.status is StepStatus.FAILED
        assert step.error is not None
        assert step.error.code == "TIMEOUT"

    run(temporal_address, scenario)


def test_a_cancelled_workflow_is_a_cancelled_run(temporal_address: str) -> None:
    async def scenario(there: Recorded) -> None:
        handle = await there.start(work.Endless.run)
        await there.reaches(handle, "StepStarted")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        snapshot = await there.snapshot(handle)
        assert snapshot.status is RunStatus.CANCELLED
        assert [step.status for step in snapshot.steps] == [StepStatus.FAILED]
        assert snapshot.steps[0].error is not None
        assert snapshot.steps[0].error.code == "CANCELLED"

    run(temporal_address, scenario)


def test_each_signal_is_an_event_of_its_own(temporal_address: str) -> None:
    async def scenario(there: Recorded) -> None:
        handle = await there.start(work.Waits.run)
        for signal in (work.Waits.pause, work.Waits.resume, work.Waits.pause, work.Waits.resume):
            await handle.signal(signal)
        await handle.signal(work.Waits.end)
        await handle.result()
        log = await there.log(handle)
        assert kinds(log)[0] == "RunStarted"
        assert kinds(log)[1:] == [
            *("RunPaused", "RunResumed", "RunPaused", "RunResumed"),
            *("SignalAccepted", "RunCompleted"),
        ]
        signals = [each.caused_by_signal_id for each in log[1:-1]]
        assert None not in signals
        assert len(set(signals)) == 5
        assert (await there.snapshot(handle)).status is RunStatus.COMPLETED

    run(temporal_address, scenario)


def test_executions_that_continue_as_new_are_one_run(temporal_address: str) -> None:
    async def scenario(there: Recorded) -> None:
        handle = await there.start(work.Rounds.run, 3)
        await handle.result()
        log = kinds(await there.log(handle))
        assert (log[0], log[-1]) == ("RunStarted", "RunCompleted")
        assert sorted(log[1:-1]) == [
            *("StepCompleted extract", "StepCompleted extract#2", "StepCompleted extract#3"),
            *("StepStarted extract", "StepStarted extract#2", "StepStarted extract#3"),
        ]

    run(temporal_address, scenario)


class Moody(MemoryRunStore):
    """A store whose every other answer gets lost; what was asked for is done."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def _append(self, run_id: str, documents: Any) -> list[AppendResult]:
        results = await super()._append(run_id, documents)
        self.calls += 1
        if self.calls % 2:
            raise RunStoreUnavailable("memory", "the answer got lost")
        return results


def test_an_answer_that_gets_lost_is_asked_for_again_and_counts_once(
    temporal_address: str,
) -> None:
    async def scenario(there: Recorded) -> None:
        handle = await there.start(work.Orders.run, "orders")
        await handle.result()
        log = kinds(await there.log(handle))
        assert len(log) == len(set(log)) == 8

    run(temporal_address, scenario, Moody())


def test_a_deleted_run_does_not_keep_its_workflow_from_ending(temporal_address: str) -> None:
    async def scenario(there: Recorded) -> None:
        handle = await there.start(work.Waits.run)
        run_id = handle.first_execution_run_id or ""
        await there.reaches(handle, "RunStarted")
        await there.store.delete_run(run_id)
        await handle.signal(work.Waits.end)
        await handle.result()
        assert await there.log(handle) == []

    run(temporal_address, scenario)


def test_a_run_goes_on_with_another_worker(temporal_address: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        client = await Client.connect(temporal_address)
        queue = f"queue-{uuid4()}"
        async with SqliteRunStore(tmp_path / "runs.db") as store:
            there = Recorded(client, queue, store)
            recorder = RunRecorder(store, plan=PLAN, context=CONTEXT)
            async with worker(client, queue, recorder):
                handle = await there.start(work.Waits.run)
                await there.reaches(handle, "RunStarted")
            await handle.signal(work.Waits.pause)
            await handle.signal(work.Waits.resume)
            await handle.signal(work.Waits.end)
            # The other one has only the history, and replays it.
            other = RunRecorder(store, plan=PLAN, context=CONTEXT)
            async with worker(client, queue, other):
                await handle.result()
            assert kinds(await there.log(handle)) == [
                *("RunStarted", "RunPaused", "RunResumed", "SignalAccepted", "RunCompleted"),
            ]

    asyncio.run(scenario())


def test_what_began_before_it_was_recorded_goes_on_without(temporal_address: str) -> None:
    async def scenario() -> None:
        client = await Client.connect(temporal_address)
        queue = f"queue-{uuid4()}"
        async with MemoryRunStore() as store:
            there = Recorded(client, queue, store)
            async with worker(client, queue):
                handle = await there.start(work.Waits.run)
                await handle.signal(work.Waits.pause)
                assert await handle.query(work.Waits.is_paused)
            await handle.signal(work.Waits.resume)
            await handle.signal(work.Waits.end)
            async with worker(client, queue, RunRecorder(store, plan=PLAN, context=CONTEXT)):
                await handle.result()
            assert await there.log(handle) == []

    asyncio.run(scenario())
