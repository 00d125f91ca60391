"""Running a coroutine at once, without a task, until it first has to wait.

Most requests are answered without waiting for anything, and those that wait do so once, for the
commit. A task for each would cost more than the work itself.

A coroutine ends with an exception, for which compiled code makes a traceback each time. So what is
run here never ends: it tells its result, and is left where it waits for good.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Self, TypeVar, cast

T = TypeVar("T")


Done = Callable[[T | None, Exception | None], None]
"""Told the result of a coroutine, or its error."""


class _Finished:
    """What a coroutine waits for that is done."""

    def __await__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Self:
        return self


_FINISHED: Final = _Finished()


async def _report(coroutine: Coroutine[Any, Any, T], done: Done[T]) -> None:
    result: T | None = None
    failure: Exception | None = None
    try:
        result = await coroutine
    except Exception as error:  # noqa: BLE001 - handed on to whoever waits for the result
        failure = error
    done(result, failure)
    await cast("Awaitable[None]", _FINISHED)


class InlineTask:
    """A coroutine that waits for something."""

    __slots__ = ("_coroutine", "_waiting")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._waiting: asyncio.Future[Any] | None = None

    def step(self, _: object = None) -> None:
        """Run until it waits again, or has told its result."""
        self._waiting = None
        waiting = self._coroutine.send(None)
        if waiting is not _FINISHED:
            self.wait_for(waiting)

    def wait_for(self, waiting: "asyncio.Future[Any] | None") -> None:
        """Have it go on when a future is done; None is a bare yield, as in asyncio.sleep(0)."""
        if waiting is None:
            asyncio.get_running_loop().call_soon(self.step)
            return
        waiting._asyncio_future_blocking = False
        self._waiting = waiting
        waiting.add_done_callback(self.step)

    def cancel(self) -> None:
        """Drop it where it waits: its `finally` blocks run, `done` is not called."""
        if self._waiting is not None:
            self._waiting.remove_done_callback(self.step)
            self._waiting = None
            self._coroutine.close()


def start(coroutine: Coroutine[Any, Any, T], done: Done[T]) -> InlineTask | None:
    """Run a coroutine; None where `done` was told already."""
    reporting = _report(coroutine, done)
    waiting = reporting.send(None)
    if waiting is _FINISHED:
        return None
    task = InlineTask(reporting)
    task.wait_for(waiting)
    return task
