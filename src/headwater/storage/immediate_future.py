"""A future whose callbacks run in the turn of the event loop in which it is done.

An `asyncio.Future` schedules its callbacks for the next turn. That costs each writer that waits for
a commit, and each reader that waits for a change, one more turn.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Final, Generic, TypeVar

log: Final = logging.getLogger("headwater.storage")

T = TypeVar("T")


class ImmediateFuture(Generic[T]):
    """What a task or an inline task requires of a future; it is never cancelled.

    It must not be done while a task is running: other tasks that wait for it resume at once.
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
        """Resume everything that waits, in this turn of the loop."""
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
                # The others wait for the same result and would not be resumed later.
                log.exception("a callback of a future failed")

    def done(self) -> bool:
        return self._done

    def result(self) -> T | None:
        """Return the result, or None before it is done."""
        return self._result

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - the signature of futures
        """Return False: others may wait for it; a cancelled task resumes when it is done."""
        return False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop
