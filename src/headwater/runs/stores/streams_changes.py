"""The stream of changes: which run is about to change, and which has. It is what projectors tail.

A change is told in two messages, before and after. Where only the first is there, the writer is
still at it or died: the mark stays before it until its time is over, then the run is looked at.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from headwater.client import AsyncStream
from headwater.errors import ClientError, OffsetGone, RunQueryRefused
from headwater.runs.events import instant_text
from headwater.runs.store import Changes, RunInfo

_OPEN_SECONDS: Final = 60.0
"""How long a writer may be at a change before it counts as dead."""


class ChangeStream:
    """Tells of changes and reads what was told."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self._telling: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
        self._teller: asyncio.Task[None] | None = None

    async def begin(self, run_id: str, writer: str, at: str) -> None:
        """Say that a run is about to change."""
        await self._tell({"run": run_id, "begins": writer, "at": at})

    async def end(self, writer: str, info: RunInfo | None) -> None:
        """Say that it has changed."""
        await self._tell({"ends": writer, "info": msgspec.to_builtins(info)})

    async def deleted(self, info: RunInfo) -> None:
        """Say that a run is deleted."""
        await self._tell({"info": msgspec.to_builtins(info)})

    async def _tell(self, message: dict[str, Any]) -> None:
        """Write a message; those that wait while a request is under way go together."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._telling.append((message, told))
        if self._teller is None:
            self._teller = asyncio.create_task(self._tell_all())
        await told

    async def _tell_all(self) -> None:
        try:
            while self._telling:
                group, self._telling = self._telling, []
                try:
                    messages = [message for message, _ in group]
                    # One producer for as long as the store is open: the server remembers each.
                    await self._stream.append_many(messages, idempotent=True)
                except ClientError as error:
                    for _, told in group:
                        if not told.done():
                            told.set_exception(error)
                else:
                    for _, told in group:
                        if not told.done():
                            told.set_result(None)
        finally:
            self._teller = None

    async def finish(self) -> None:
        """Wait until all that is to be told is told."""
        if self._teller is not None:
            await asyncio.wait({self._teller})

    async def read(
        self, mark: str, limit: int, find_run: Callable[[str], Awaitable[RunInfo | None]]
    ) -> Changes:
        """Name the runs that changed behind a mark; raises `RunQueryRefused` where that is gone."""
        found: dict[str, RunInfo] = {}
        begun: dict[str, str] = {}
        """Changes under way, each with the mark before it."""
        at = mark or "-1"
        expired: list[str] = []
        oldest = instant_text(datetime.now(UTC) - timedelta(seconds=_OPEN_SECONDS))
        try:
            async for message, position in self._stream.read(at).items_with_offsets():
                if "begins" in message:
                    if message["at"] > oldest:
                        begun[message["begins"]] = at
                    else:
                        expired.append(message["run"])
                else:
                    begun.pop(message.get("ends", ""), None)
                    info = msgspec.convert(message["info"], RunInfo)
                    found.pop(info.run_id, None)
                    found[info.run_id] = info
                at = str(position)
                if len(found) >= limit:
                    break
        except OffsetGone:
            raise RunQueryRefused("mark", mark, "the mark of an earlier answer") from None
        for run_id in expired:
            if run_id not in found and (info_now := await find_run(run_id)) is not None:
                found[run_id] = info_now
        return Changes(tuple(found.values()), next(iter(begun.values()), at))

    async def wait(self, mark: str, seconds: float) -> None:
        """Wait for a message behind a mark, for some seconds at most."""
        following = self._stream.follow(mark or "-1", live="long-poll")

        async def news() -> None:
            async for batch in following:
                if not batch.empty:
                    return

        with suppress(TimeoutError):
            await asyncio.wait_for(news(), seconds)
        following.stop()
