"""Runs in memory: for tests and trials, gone with the process.

Everything happens between two turns of the loop, so an append is numbered and there in one step:
numbers have no gaps, and gaps would be final.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import ClassVar

from headwater.errors import RunDeleted, StoreNotOpen
from headwater.runs.events import Document, StoredEvent, instant_of, instant_text, stored_event
from headwater.runs.reducer import status_after
from headwater.runs.store import (
    PAGE,
    AppendResult,
    Changes,
    Checkpoint,
    RunInfo,
    RunPage,
    RunStore,
    check_limit,
    check_page,
    cursor_of,
    parse_cursor,
)
from headwater.runs.values import RunStatus


class _Run:
    """One log."""

    __slots__ = ("checkpoint", "deleted", "keys", "log", "run_id", "status")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.status = RunStatus.PENDING
        self.log: list[tuple[str, bytes]] = []
        """When each event was persisted, and its document; its place is its number less one."""
        self.keys: dict[str, int] = {}
        self.checkpoint: Checkpoint | None = None
        self.deleted: RunInfo | None = None

    def info(self) -> RunInfo:
        if self.deleted is not None:
            return self.deleted
        return RunInfo(
            self.run_id,
            self.status,
            len(self.log),
            instant_of(self.log[0][0]),
            instant_of(self.log[-1][0]),
        )


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryRunStore(RunStore):
    """Keeps runs in memory."""

    authority: ClassVar[str] = "the length of the run's log, in the one process that holds it"
    gaps_are_final: ClassVar[bool] = True
    is_shared: ClassVar[bool] = False

    def __init__(self, clock: Callable[[], datetime] = _now) -> None:
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._changed: dict[str, int] = {}
        """The number of the last change of each run, in the order of these numbers."""
        self._change = 0
        self._news = asyncio.Event()
        self._opened = False

    @classmethod
    def from_url(cls, url: str) -> "MemoryRunStore":  # noqa: ARG003 - there is nothing to choose
        return cls()

    async def open(self) -> None:
        self._opened = True

    async def close(self) -> None:
        self._opened = False

    async def _append(self, run_id: str, documents: Sequence[Document]) -> list[AppendResult]:
        self._check_open()
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _Run(run_id)
        if run.deleted is not None:
            raise RunDeleted(run_id)
        at = instant_text(self._clock())
        results = []
        for document in documents:
            known = run.keys.get(document.idempotency_key)
            if known is not None:
                results.append(AppendResult.duplicate(known))
                continue
            run.log.append((at, document.body))
            run.keys[document.idempotency_key] = len(run.log)
            run.status = status_after(run.status, document.event_type)
            results.append(AppendResult.stored(len(run.log)))
        if any(result.persisted for result in results):
            self._tell(run_id)
        return results

    def _tell(self, run_id: str) -> None:
        self._change += 1
        self._changed.pop(run_id, None)
        self._changed[run_id] = self._change
        self._news.set()
        self._news = asyncio.Event()

    async def fetch_events(
        self, run_id: str, after_seq: int = 0, limit: int = PAGE
    ) -> list[StoredEvent]:
        self._check_open()
        check_page(after_seq, limit)
        run = self._runs.get(run_id)
        if run is None:
            return []
        page = run.log[after_seq : after_seq + limit]
        return [
            stored_event(run_id, body, after_seq + place, at)
            for place, (at, body) in enumerate(page, 1)
        ]

    async def find_run(self, run_id: str) -> RunInfo | None:
        self._check_open()
        run = self._runs.get(run_id)
        return None if run is None or run.deleted is not None else run.info()

    async def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> RunPage:
        self._check_open()
        check_limit(limit)
        behind = None if after is None else parse_cursor(after)
        ordered = sorted(
            (run.log[0][0], run.run_id) for run in self._runs.values() if run.deleted is None
        )
        if behind is not None:
            ordered = ordered[: bisect_right(ordered, behind)]
            if ordered and ordered[-1] == behind:
                ordered.pop()
        found: list[RunInfo] = []
        last = ""
        for at, run_id in reversed(ordered):
            info = self._runs[run_id].info()
            if (
                (status is None or info.status is status)
                and (created_from is None or info.created_at >= created_from)
                and (created_before is None or info.created_at < created_before)
            ):
                if len(found) == limit:
                    return RunPage(tuple(found), last)
                found.append(info)
                last = cursor_of(info, at)
        return RunPage(tuple(found))

    async def delete_run(self, run_id: str) -> bool:
        self._check_open()
        run = self._runs.get(run_id)
        if run is None or run.deleted is not None:
            return False
        info = run.info()
        run.deleted = RunInfo(
            run_id, info.status, info.last_event_seq, info.created_at, self._clock(), deleted=True
        )
        run.log, run.keys, run.checkpoint = [], {}, None
        self._tell(run_id)
        return True

    async def changes(self, mark: str = "", limit: int = PAGE) -> Changes:
        self._check_open()
        check_limit(limit)
        known = int(mark or 0)
        found: list[RunInfo] = []
        # The newest last: go back only as far as the mark.
        behind = []
        for run_id, change in reversed(self._changed.items()):
            if change <= known:
                break
            behind.append(run_id)
        for run_id in behind[: -limit - 1 : -1]:
            found.append(self._runs[run_id].info())
            known = self._changed[run_id]
        return Changes(tuple(found), str(known))

    async def wait(self, mark: str, seconds: float) -> None:
        self._check_open()
        if int(mark or 0) < self._change:
            return
        news = self._news
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), seconds)

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        self._check_open()
        for checkpoint in checkpoints:
            run = self._runs.get(checkpoint.run_id)
            if run is None or run.deleted is not None:
                continue
            kept = run.checkpoint
            if kept is None or kept.last_event_seq <= checkpoint.last_event_seq:
                run.checkpoint = checkpoint

    async def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        self._check_open()
        run = self._runs.get(run_id)
        return None if run is None else run.checkpoint

    def _check_open(self) -> None:
        if not self._opened:
            raise StoreNotOpen
