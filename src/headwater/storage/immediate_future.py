"""A future whose callbacks run in the same turn of the event loop in which it is done.

An `asyncio.Future` schedules its callbacks for the next turn, which delays each writer that waits
for a commit, and each reader that waits for a change, by one turn.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Final, Generic, TypeVar

log: Final = logging.getLogger("headwater.storage")

T = TypeVar("T")


class ImmediateFuture(Generic[T]):
    """A future that tasks and inline tasks can await; it can't be cancelled.

    Its result must not be set while a task is running, because waiting tasks are resumed at once.
    """

    __slots__ = ("_asyncio_future_blocking", "_callbacks", "_done", "_loop", "_result")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._callbacks: list[tuple[Callable[[Any], object], Context | None]] = []
        self._loop = loop
        self._done = False
        self._result: T | None = None

    def __await__(self) -> Generator["ImmediateFuture[T]", None, T | None]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        return self._result

    def add_done_callback(
        self, callback: Callable[[Any], object], *, context: Context | None = None
    ) -> None:
        self._callbacks.append((callback, context))

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        remaining = [item for item in self._callbacks if item[0] != callback]
        removed = len(self._callbacks) - len(remaining)
        self._callbacks = remaining
        return removed

    def set_result(self, result: T) -> None:
        """Set the result and run the callbacks at once."""
        self._done = True
        self._result = result
        callbacks, self._callbacks = self._callbacks, []
        for callback, context in callbacks:
            try:
                if context is None:
                    callback(self)
                else:
                    context.run(callback, self)
            except Exception:
                # The other callbacks must run: nothing would call them later.
                log.exception("a callback of a future failed")

    def done(self) -> bool:
        return self._done

    def result(self) -> T | None:
        """Return the result, or None before it is done."""
        return self._result

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - the signature of futures
        """Return False: others may wait for it. A cancelled task is resumed when it is done."""
        return False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop
