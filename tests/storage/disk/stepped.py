"""A disk store whose threads do something only when a test wants it, for races in slow motion."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context
from typing import Any, Final, TypeVar

from headwater.storage.disk.store import DiskStore

T = TypeVar("T")

_TURNS: Final = 20_000
"""More than any schedule needs: after so many, something waits that nothing will resume."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """Holds back what a job in a thread reports, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.holds_back = False
        self.reports: list[asyncio.Handle] = []

    def call_soon_threadsafe(  # type: ignore[override] # arguments of any type
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if not self.holds_back:
            return super().call_soon_threadsafe(callback, *args, context=context)
        self.reports.append(asyncio.Handle(callback, args, self, context))
        return self.reports[-1]


def run_stepped(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario on such a loop."""
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(scenario)


class Threads(Executor):
    """Runs a job when the test wants it; `in_order` as a single thread does."""

    def __init__(self, *, in_order: bool) -> None:
        self._in_order = in_order
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def step(self, choice: int) -> None:
        if not self.jobs:
            return
        future, job = self.jobs.pop(0 if self._in_order else choice % len(self.jobs))
        try:
            future.set_result(job())
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            future.set_exception(error)


class SteppedStore:
    """An open store, and its threads."""

    def __init__(self, store: DiskStore) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        self._loop = loop
        self.store = store
        self._real = (store._reads._threads, store._checkpointer._worker)
        self._real_compactions = store._checkpointer._compactor._worker
        self.reads = store._reads._threads = Threads(in_order=False)  # type: ignore[assignment]
        self.worker = store._checkpointer._worker = Threads(in_order=True)  # type: ignore[assignment]
        compactor = store._checkpointer._compactor
        self.compactions = compactor._worker = Threads(in_order=True)  # type: ignore[assignment]

    def use_real_threads(self) -> None:
        """Leave what follows to the threads of the store."""
        self.store._reads._threads, self.store._checkpointer._worker = self._real
        self.store._checkpointer._compactor._worker = self._real_compactions

    async def turns(self, count: int) -> None:
        """Let the loop run."""
        for _ in range(count):
            await asyncio.sleep(0)

    def read(self, choice: int = 0) -> None:
        """Run a lookup or a read, and hold back its result."""
        self._loop.holds_back = True
        self.reads.step(choice)
        self._loop.holds_back = False

    def report(self, choice: int = 0) -> None:
        """Deliver a result that was held back."""
        reports = self._loop.reports
        if reports:
            self._loop._ready.append(reports.pop(choice % len(reports)))  # type: ignore[attr-defined]

    def evict(self, times: int = 2) -> None:
        """Evict the streams that are not in use; those used lately go the second time."""
        for _ in range(times):
            self.store._registry.evict(0)

    def begin_checkpoint(self) -> None:
        self.store._checkpointer._tick()
        self.store._checkpointer._timer.cancel()

    async def save(self) -> None:
        """Run a checkpoint to its end, while reads stay as they are."""
        self.begin_checkpoint()
        checkpointer = self.store._checkpointer
        for _ in range(_TURNS):
            self.worker.step(0)
            await asyncio.sleep(0)
            if not self.worker.jobs and not checkpointer._has_unsaved() and not self._saves():
                return
        raise AssertionError("the checkpoint did not end")

    def _saves(self) -> bool:
        checkpointer = self.store._checkpointer
        return checkpointer._running is not None or self.store._journal.preparing is not None

    async def settle(self, ended: Callable[[], bool]) -> None:
        """Run all threads until what is waited for has ended, and nothing is left to do."""
        for _ in range(_TURNS):
            jobs = self.reads.jobs or self.worker.jobs or self.compactions.jobs
            if ended() and not jobs and not self._loop.reports and not self._saves():
                return
            self.report()
            for threads in (self.reads, self.worker, self.compactions):
                threads.step(0)
            await asyncio.sleep(0)
        raise AssertionError("something waits that nothing will resume")

    async def finish(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end."""
        task = asyncio.get_running_loop().create_task(call)
        await self.settle(task.done)
        return task.result()
