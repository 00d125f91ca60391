"""Periodic jobs, which run again after a failure."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

log: Final = logging.getLogger("headwater.housekeeping")


class Job(NamedTuple):
    """A function that is called repeatedly, with a pause before each call."""

    name: str
    seconds: float
    run: Callable[[], Awaitable[None]]


class Housekeeping:
    """Runs each job in a task; a job that fails is logged and runs again after its pause."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the jobs on the running loop."""
        self._tasks = [asyncio.create_task(_repeat(job)) for job in self._jobs]

    async def stop(self) -> None:
        """Cancel the jobs and wait until they have ended."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _repeat(job: Job) -> None:
    while True:
        await asyncio.sleep(job.seconds)
        try:
            await job.run()
        except Exception:
            log.exception("housekeeping failed, will run again", extra={"job": job.name})
