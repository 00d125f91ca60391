"""A queue of jobs that run one after another, each to its end.

Two requests for one subscription must not decide on the same state, and a request that is cancelled
must not stop a change half-way: a job runs to its end even if its caller no longer waits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

log: Final = logging.getLogger("headwater.subscriptions")

T = TypeVar("T")
Job = Callable[[], Awaitable[Any]]


class SerialQueue:
    """Runs jobs in the order of their arrival, in a task that exists while there are any."""

    __slots__ = ("_jobs", "_runner")

    def __init__(self) -> None:
        self._jobs: deque[tuple[Job, asyncio.Future[Any]]] = deque()
        self._runner: asyncio.Task[None] | None = None

    def run(self, job: Callable[[], Awaitable[T]]) -> "asyncio.Future[T]":
        """Queue a job and return a future for its result."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((job, result))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run_jobs())
        return result

    def submit(self, job: Job) -> None:
        """Queue a job without waiting for it; a failure is logged."""
        self.run(job).add_done_callback(_log_failure)

    async def drain(self) -> None:
        """Wait until the queue is empty."""
        while self._runner is not None:
            await asyncio.wait([self._runner])

    async def _run_jobs(self) -> None:
        try:
            while self._jobs:
                job, result = self._jobs.popleft()
                try:
                    value = await job()
                except Exception as error:  # noqa: BLE001 - raised where the result is awaited
                    if not result.done():
                        result.set_exception(error)
                else:
                    if not result.done():
                        result.set_result(value)
        finally:
            self._runner = None


def _log_failure(result: "asyncio.Future[Any]") -> None:
    if not result.cancelled() and (error := result.exception()) is not None:
        log.error("subscription job failed", exc_info=error)
