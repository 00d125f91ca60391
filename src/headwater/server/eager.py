"""Running a coroutine at once, without a task, until it first has to wait.

Most requests are answered without waiting for anything, and those that wait do so once, for the
commit. A task for each would cost more than the work itself.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


Done = Callable[[T | None, Exception | None], None]
"""Told the result of a coroutine, or its error."""


class Eager(Generic[T]):
    """A coroutine that waits for something."""

    __slots__ = ("_coroutine", "_done", "_waiting")

    def __init__(self, coroutine: Coroutine[Any, Any, T], done: Done[T]) -> None:
        self._coroutine = coroutine
        self._done = done
        self._waiting: asyncio.Future[Any] | None = None

    def step(self, _: object = None) -> None:
        """Run until it waits again, or to its end."""
        self._waiting = None
        try:
            waiting = self._coroutine.send(None)
        except StopIteration as stop:
            self._done(stop.value, None)
        except Exception as error:  # noqa: BLE001 - handed on to whoever waits for the result
            self._done(None, error)
        else:
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


def start(coroutine: Coroutine[Any, Any, T], done: Done[T]) -> Eager[T] | None:
    """Run a coroutine; None where it has ended already and `done` was told."""
    try:
        waiting = coroutine.send(None)
    except StopIteration as stop:
        done(stop.value, None)
        return None
    except Exception as error:  # noqa: BLE001 - handed on to whoever waits for the result
        done(None, error)
        return None
    eager = Eager(coroutine, done)
    eager.wait_for(waiting)
    return eager
