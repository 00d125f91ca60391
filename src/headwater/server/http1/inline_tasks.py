"""Coroutines that run inline, without a task, until they first wait.

Most requests are answered without waiting, and an append waits once, for its commit. A task for
each would cost more than the work itself.

Finishing a coroutine raises StopIteration, for which compiled code creates a traceback each time.
So the wrapper never finishes: it reports the result through a callback and stays suspended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Self, TypeVar, cast

T = TypeVar("T")


Done = Callable[[T | None, Exception | None], None]
"""Called with the result of a coroutine, or with its error."""


class _Finished:
    """What the wrapper awaits once it has reported its result."""

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
    except Exception as error:  # noqa: BLE001 - passed to the callback
        failure = error
    done(result, failure)
    await cast("Awaitable[None]", _FINISHED)


class InlineTask:
    """A coroutine that is suspended."""

    __slots__ = ("_cancelled", "_coroutine", "_waiting")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._waiting: asyncio.Future[Any] | None = None
        self._cancelled = False

    def step(self, _: object = None) -> None:
        """Resume it until it waits again or reports its result."""
        self._waiting = None
        if self._cancelled:
            self._coroutine.close()
            return
        waiting = self._coroutine.send(None)
        if waiting is not _FINISHED:
            self.wait_for(waiting)

    def wait_for(self, waiting: "asyncio.Future[Any] | None") -> None:
        """Resume it when a future is done; None is a bare yield, as in asyncio.sleep(0)."""
        if waiting is None:
            asyncio.get_running_loop().call_soon(self.step)
            return
        waiting._asyncio_future_blocking = False
        self._waiting = waiting
        waiting.add_done_callback(self.step)

    def cancel(self) -> None:
        """Close it where it waits: its `finally` blocks run, and `done` is not called.

        If it is to be resumed already, it is closed then.
        """
        self._cancelled = True
        waiting = self._waiting
        if waiting is not None and waiting.remove_done_callback(self.step):
            self._waiting = None
            self._coroutine.close()


def start(coroutine: Coroutine[Any, Any, T], done: Done[T]) -> InlineTask | None:
    """Run a coroutine; return None if it has reported its result already."""
    reporting = _report(coroutine, done)
    waiting = reporting.send(None)
    if waiting is _FINISHED:
        return None
    task = InlineTask(reporting)
    task.wait_for(waiting)
    return task
