"""Periodic jobs: one that fails is logged and runs again, and the others are not affected."""

import asyncio
import logging

import pytest

from headwater.server.housekeeping import Housekeeping, Job
from tests.support.patience import PATIENCE_SECONDS


def test_a_job_that_fails_is_logged_and_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        runs = 0
        again = asyncio.Event()
        other = asyncio.Event()

        async def fail() -> None:
            nonlocal runs
            runs += 1
            if runs == 3:
                again.set()
            raise OSError("no space left")

        async def succeed() -> None:
            other.set()

        housekeeping = Housekeeping([Job("first", 0.001, fail), Job("second", 0.001, succeed)])
        housekeeping.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await again.wait()
            await other.wait()
        await housekeeping.stop()

    with caplog.at_level(logging.ERROR, "headwater.housekeeping"):
        asyncio.run(scenario())
    assert len(caplog.records) >= 3
    assert {record.__dict__["job"] for record in caplog.records} == {"first"}
    assert "no space left" in caplog.text


def test_a_stopped_job_runs_no_more() -> None:
    async def scenario() -> None:
        started = asyncio.Event()
        ended: list[str] = []

        async def run() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")

        housekeeping = Housekeeping([Job("endless", 0.001, run)])
        await housekeeping.stop()  # before it was started
        housekeeping.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await started.wait()
            await housekeeping.stop()
        assert ended == ["ended"]

    asyncio.run(scenario())
