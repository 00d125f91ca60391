"""Workflows and activities that the tests of the Temporal recorder run."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

SOON = timedelta(seconds=120)
TRIES = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=3)


@activity.defn
async def extract(table: str) -> str:
    return f"{table} rows"


@activity.defn
async def flaky(table: str) -> str:
    if activity.info().attempt < 3:
        raise ApplicationError(f"{table} is not there yet", type="NOT_YET")
    return table


@activity.defn
async def broken(table: str) -> str:
    raise ApplicationError(f"{table} is gone", type="GONE", non_retryable=True)


@activity.defn
async def endless() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.05)


ACTIVITIES: list[Callable[..., Any]] = [extract, flaky, broken, endless]


@workflow.defn
class Orders:
    @workflow.run
    async def run(self, table: str) -> str:
        await workflow.execute_activity(extract, table, start_to_close_timeout=SOON)
        await workflow.execute_local_activity(extract, table, start_to_close_timeout=SOON)
        return await workflow.execute_activity(
            flaky, table, start_to_close_timeout=SOON, retry_policy=TRIES
        )


@workflow.defn
class Failing:
    @workflow.run
    async def run(self, table: str) -> str:
        return await workflow.execute_activity(broken, table, start_to_close_timeout=SOON)


@workflow.defn
class RetriesItself:
    @workflow.run
    async def run(self, table: str) -> str:
        with suppress(ActivityError):
            await workflow.execute_activity(
                broken, table, activity_id="load", start_to_close_timeout=SOON
            )
        return await workflow.execute_activity(
            extract, table, activity_id="load", start_to_close_timeout=SOON
        )


@workflow.defn
class NobodyTakesIt:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            extract,
            "x",
            task_queue="nobody-is-there",
            schedule_to_start_timeout=timedelta(milliseconds=200),
            start_to_close_timeout=SOON,
        )


@workflow.defn
class Endless:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            endless, start_to_close_timeout=SOON, heartbeat_timeout=timedelta(seconds=60)
        )


@workflow.defn
class Waits:
    def __init__(self) -> None:
        self.paused = False
        self.ended = False

    @workflow.signal
    def pause(self) -> None:
        self.paused = True

    @workflow.signal
    def resume(self) -> None:
        self.paused = False

    @workflow.signal
    def end(self) -> None:
        self.ended = True

    @workflow.query
    def is_paused(self) -> bool:
        return self.paused

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.ended and not self.paused)


@workflow.defn
class Rounds:
    @workflow.run
    async def run(self, left: int) -> None:
        await workflow.execute_activity(extract, "x", start_to_close_timeout=SOON)
        if left > 1:
            workflow.continue_as_new(left - 1)


WORKFLOWS = [Orders, Failing, RetriesItself, NobodyTakesIt, Endless, Waits, Rounds]
