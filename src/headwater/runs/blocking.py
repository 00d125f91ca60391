"""The run store for code without an event loop: the same methods, which block."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar

from headwater.errors import StoreNotOpen
from headwater.runs.events import NewEvent, StoredEvent
from headwater.runs.store import PAGE, AppendResult, RunInfo, RunPage, RunStore
from headwater.runs.values import RunSnapshot, RunStatus

T = TypeVar("T")


class BlockingRunStore:
    """Wraps a store that is not open yet; use it in a `with` block, from any thread.

    The store lives on an event loop of its own in a thread of its own, so calls from several
    threads run at the same time and share commits where the store groups them.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Make the store ready."""
        if self._loop is not None:
            return
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="runs", daemon=True)
        self._thread.start()
        try:
            self._run(self._store.open())
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Finish what is under way and let go of everything; may be called twice."""
        if self._loop is not None:
            try:
                self._run(self._store.close())
            finally:
                self._end()

    def append_event(self, event: NewEvent) -> AppendResult:
        """See `RunStore.append_event`."""
        return self._run(self._store.append_event(event))

    def append_events(self, events: Sequence[NewEvent]) -> list[AppendResult]:
        """See `RunStore.append_events`."""
        return self._run(self._store.append_events(events))

    def fetch_events(self, run_id: str, after_seq: int = 0, limit: int = PAGE) -> list[StoredEvent]:
        """See `RunStore.fetch_events`."""
        return self._run(self._store.fetch_events(run_id, after_seq, limit))

    def events(self, run_id: str, after_seq: int = 0) -> Iterator[StoredEvent]:
        """See `RunStore.events`."""
        while page := self.fetch_events(run_id, after_seq):
            yield from page
            after_seq = page[-1].run_seq

    def find_run(self, run_id: str) -> RunInfo | None:
        """See `RunStore.find_run`."""
        return self._run(self._store.find_run(run_id))

    def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> RunPage:
        """See `RunStore.list_runs`."""
        return self._run(
            self._store.list_runs(
                status=status,
                created_from=created_from,
                created_before=created_before,
                after=after,
                limit=limit,
            )
        )

    def get_snapshot(self, run_id: str) -> RunSnapshot | None:
        """See `RunStore.get_snapshot`."""
        return self._run(self._store.get_snapshot(run_id))

    def project_snapshot(self, run_id: str) -> RunSnapshot:
        """See `RunStore.project_snapshot`."""
        return self._run(self._store.project_snapshot(run_id))

    def delete_run(self, run_id: str) -> bool:
        """See `RunStore.delete_run`."""
        return self._run(self._store.delete_run(run_id))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            call.close()
            raise StoreNotOpen
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _end(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
