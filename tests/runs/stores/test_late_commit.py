"""An event committed below the watermark: lost by a plain watermark, found by the projector's two.

Nothing is arranged within the store. A transaction from outside brings the key of an event and does
not commit: the index makes the store's own append of that key wait, with its number drawn from the
run's sequence, until the other one is rolled back.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from headwater.runs import NewEvent, RunStore, StepStatus, run_store
from headwater.runs.projection import Health
from headwater.runs.projector import Options, Projector
from headwater.runs.store import AppendResult
from tests.suites.run_steps import (
    all_changes,
    append,
    event,
    started,
    step_completed,
    step_started,
)
from tests.support.engines.postgres import Postgres
from tests.support.patience import until

RUN = "run-001"


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.run_store_url("postgresql+sequence")


class Late:
    """An append that has drawn its number and can't commit yet."""

    def __init__(self, call: asyncio.Task[AppendResult], holder: Any) -> None:
        self._call = call
        self._holder = holder

    async def commit(self) -> int:
        """Let it go on; gives its number."""
        await self._holder.rollback()
        return (await self._call).run_seq


@asynccontextmanager
async def held_back(
    server: Postgres, url: str, store: RunStore, new: NewEvent
) -> AsyncIterator[Late]:
    """Have a store append an event, up to the moment before its commit."""
    (schema,) = parse_qs(urlsplit(url).query)["schema"]
    holder = await psycopg.AsyncConnection.connect(server.url, options=f"-c search_path={schema}")
    async with holder:
        await holder.execute(
            "INSERT INTO events SELECT number, 1000000, %s, now(), '{}' FROM runs "
            "WHERE run_id = %s",
            (new.idempotency_key, new.run_id),
        )
        call = asyncio.create_task(store.append_event(new))
        await until(lambda: waiting_in(server) == 1, "waiting for the key")
        yield Late(call, holder)


def waiting_in(server: Postgres) -> int:
    """Count the transactions that wait for another one."""
    return len(server.execute(b"SELECT DISTINCT pid FROM pg_locks WHERE NOT granted"))


def test_a_plain_watermark_loses_what_is_committed_below_it(postgres: Postgres, url: str) -> None:
    async def scenario() -> None:
        async with run_store(url) as store:
            await append(store, started(), step_started("a"))
            async with held_back(postgres, url, store, step_completed("a", seconds=5)) as late:
                (later,) = await append(store, step_started("b"))
                # The loop of the contract's section 4.1.
                seen = [each.run_seq for each in await store.fetch_events(RUN)]
                watermark = seen[-1]
                assert watermark == later
                number = await late.commit()
            assert number < watermark
            seen += [each.run_seq for each in await store.fetch_events(RUN, after_seq=watermark)]
            assert number not in seen
            assert number in {each.run_seq for each in await store.fetch_events(RUN)}

    asyncio.run(scenario())


def test_the_projector_finds_it(postgres: Postgres, url: str) -> None:
    async def scenario() -> None:
        async with run_store(url) as store:
            projector = Projector(store, Options(grace_seconds=60))
            await append(store, started(), step_started("a"))
            await projector.catch_up()
            async with held_back(postgres, url, store, step_completed("a", seconds=5)) as late:
                await append(store, step_started("b"))
                await projector.catch_up()
                before = await store.load_checkpoint(RUN)
                assert before is not None
                assert before.stale
                assert before.contiguous_seq == 2
                assert [step.status for step in before.snapshot.steps] == [StepStatus.RUNNING] * 2
                await late.commit()
            await projector.catch_up()
            after = await store.load_checkpoint(RUN)
            assert after is not None
            assert (after.stale, after.contiguous_seq, after.last_event_seq) == (False, 4, 4)
            assert after.snapshot == await store.project_snapshot(RUN)
            assert after.snapshot.steps[0].status is StepStatus.SUCCESS
            assert projector.health(RUN) is Health.LIVE

    asyncio.run(scenario())


def test_the_head_row_leaves_no_room_for_a_late_commit(postgres: Postgres) -> None:
    async def scenario() -> None:
        url = postgres.run_store_url()
        async with run_store(url) as store:
            await append(store, started(), step_started("a"))
            async with held_back(postgres, url, store, step_completed("a", seconds=5)) as late:
                other = asyncio.create_task(store.append_event(step_started("b")))
                await until(lambda: waiting_in(postgres) == 2, "waiting for the one before it")
                number = await late.commit()
            assert (await other).run_seq == number + 1

    asyncio.run(scenario())


def test_a_late_commit_is_named_behind_a_mark_that_was_taken_before_it(
    postgres: Postgres, url: str
) -> None:
    async def scenario() -> None:
        async with run_store(url) as store:
            for run in ("x", "y", RUN):
                await append(store, started(run))
            async with held_back(postgres, url, store, event("Ticked")) as late:
                await append(store, event("Ticked", run="x"), event("Tocked", run="x"))
                names, mark = await all_changes(store, limit=1)
                assert sorted(names) == sorted({"x", "y", RUN})
                assert (await store.changes(mark)).runs == ()
                await late.commit()
            assert [info.run_id for info in (await store.changes(mark)).runs] == [RUN]

    asyncio.run(scenario())
