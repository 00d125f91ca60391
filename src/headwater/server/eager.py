"""Running a coroutine at once, without a task, until it first has to wait.

Most requests are answered without waiting for anything, and those that wait do so once, for the
commit. A task for each would cost more than the work itself.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Eager(Generic[T]):
    """A coroutine under way; `done(result, error)` is called when it has ended."""

    __slots__ = ("_coroutine", "_done", "_waiting")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        done: Callable[[T | None, Exception | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._done = done
        self._waiting: asyncio.Future[Any] | None = None

    def step(self, _: object = None) -> None:
        """Run until the next wait; the first call starts it."""
        self._waiting = None
        try:
            waiting = self._coroutine.send(None)
        except StopIteration as stop:
            self._done(stop.value, None)
        except Exception as error:  # noqa: BLE001 - handed on to whoever waits for the result
            self._done(None, error)
        else:
            if waiting is None:  # a bare yield, as in asyncio.sleep(0)
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
