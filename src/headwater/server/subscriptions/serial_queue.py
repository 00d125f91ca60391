"""SerialQueue: jobs that run one after another, each to its end, whoever still waits for it.

A request that is dropped must not stop half-way what it has begun, and two requests for one
subscription must not decide on the same state.
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
    """A queue of jobs, and the task that does them while there are any."""

    __slots__ = ("_jobs", "_runner")

    def __init__(self) -> None:
        self._jobs: deque[tuple[Job, asyncio.Future[Any]]] = deque()
        self._runner: asyncio.Task[None] | None = None

    def run(self, job: Callable[[], Awaitable[T]]) -> "asyncio.Future[T]":
        """Have a job done in its turn; the future gives its result."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((job, result))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._work())
        return result

    def submit(self, job: Job) -> None:
        """Have a job done in its turn that nobody waits for."""
        self.run(job).add_done_callback(_report)

    async def drain(self) -> None:
        """Wait until there is nothing to do."""
        while self._runner is not None:
            await asyncio.wait([self._runner])

    async def _work(self) -> None:
        try:
            while self._jobs:
                job, result = self._jobs.popleft()
                try:
                    value = await job()
                except Exception as error:  # noqa: BLE001 - told to whoever waits
                    if not result.done():
                        result.set_exception(error)
                else:
                    if not result.done():
                        result.set_result(value)
        finally:
            self._runner = None


def _report(result: "asyncio.Future[Any]") -> None:
    if not result.cancelled() and (error := result.exception()) is not None:
        log.error("a job failed", exc_info=error)
