"""Appends that share a transaction: those that arrive while one is under way form the next.

A group that waits, as for a row that another process has locked, must not hold up the others: when
calls have waited for a moment, another group goes on beside it, up to so many.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from headwater.runs.events import Document
from headwater.runs.store import AppendResult

Outcome = list[AppendResult] | Exception

_MAX_CALLS: Final = 256
_MAX_EVENTS: Final = 2000
"""Of a group, unless one call brings more."""
_PATIENCE_SECONDS: Final = 0.02


class Call(NamedTuple):
    """An append to one run."""

    run_id: str
    documents: Sequence[Document]
    done: asyncio.Future[list[AppendResult]]


class Groups:
    """Collects appends and has them carried out, group after group."""

    def __init__(
        self, append: Callable[[Sequence[Call]], Awaitable[list[Outcome]]], most: int
    ) -> None:
        self._append = append
        self._most = most
        self._waiting: list[Call] = []
        self._working: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._timer: asyncio.TimerHandle | None = None

    async def append(self, run_id: str, documents: Sequence[Document]) -> list[AppendResult]:
        """Append in the next group; it happens also when whoever asked has gone."""
        loop = asyncio.get_running_loop()
        call = Call(run_id, documents, loop.create_future())
        self._waiting.append(call)
        if not self._busy:
            self._start()
        elif self._timer is None:
            self._timer = loop.call_later(_PATIENCE_SECONDS, self._start_another)
        return await call.done

    def _start(self) -> None:
        self._busy += 1
        work = asyncio.ensure_future(self._work())
        self._working.add(work)
        work.add_done_callback(self._working.discard)

    def _start_another(self) -> None:
        self._timer = None
        if self._waiting and self._busy < self._most:
            self._start()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_PATIENCE_SECONDS, self._start_another)

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._append_group(self._take())
        finally:
            # In the same turn as the last answer: whoever asks next finds us idle.
            self._busy -= 1

    async def _append_group(self, group: list[Call]) -> None:
        try:
            outcomes = await self._append(group)
        except Exception as error:  # noqa: BLE001 - given to each of those who wait
            outcomes = [error] * len(group)
        for call, outcome in zip(group, outcomes, strict=True):
            if call.done.done():  # whoever asked has gone; it is done all the same
                continue
            if isinstance(outcome, Exception):
                call.done.set_exception(outcome)
            else:
                call.done.set_result(outcome)

    def _take(self) -> list[Call]:
        events = 0
        count = 0
        for call in self._waiting[:_MAX_CALLS]:
            events += len(call.documents)
            if count and events > _MAX_EVENTS:
                break
            count += 1
        group = self._waiting[:count]
        del self._waiting[:count]
        return group

    async def finish(self) -> None:
        """Wait until nothing waits any more."""
        while self._working:
            await asyncio.wait(set(self._working))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
