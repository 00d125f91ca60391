"""Which streams changed lately, for readers of many streams who would otherwise ask for each.

Changes are numbered while somebody asks for them. A cursor names a number and the run of numbering
that it belongs to: after a restart, after a long silence, or where more streams changed than are
remembered, the answer is that nobody knows, and the reader looks at the streams themselves.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from headwater.protocol.globs import GlobIndex
from headwater.server.context import Context

MAX_REMEMBERED: Final = 16_384
MAX_TOLD: Final = 1000
IDLE_SECONDS: Final = 60.0


class Changed(Struct, frozen=True):
    """The streams that changed behind a cursor; None where that is not known."""

    cursor: str
    streams: list[str] | None


class Changes:
    """Remembers the order in which streams changed, and wakes whoever waits for one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._run = ""
        self._number = 0
        self._forgotten = 0
        """Up to this number, a change may not be remembered."""
        self._last: dict[str, int] = {}
        """The last change of each stream, oldest first."""
        self._waiting: dict[object, tuple[GlobIndex[int], Callable[[], None]]] = {}
        self._unobserve: Callable[[], None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def wait(self, globs: Sequence[str], after: str, seconds: float) -> Changed:
        """Tell what changed behind a cursor, as soon as there is something to tell."""
        self._begin()
        index: GlobIndex[int] = GlobIndex()
        for number, glob in enumerate(globs):
            index.add(number, glob)
        try:
            since = self._position(after)
            if since is None:
                return Changed(self._cursor(), None)
            found = self._since(since, index)
            if found == [] and seconds > 0:
                await self._any(index, seconds)
                # The wait is over for all who waited, also because the server stops.
                found = self._since(since, index) if since >= self._forgotten else None
            return Changed(self._cursor(), found)
        finally:
            self._rest()

    def stop(self) -> None:
        """Forget everything."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._unobserve is not None:
            self._unobserve()
            self._unobserve = None
        self._last.clear()

    def _begin(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._unobserve is None:
            self._run = secrets.token_hex(4)
            self._number = self._forgotten = 0
            self._unobserve = self._context.store.observe(self._tell)

    def _rest(self) -> None:
        if not self._waiting and self._unobserve is not None and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.stop)

    def _tell(self, path: str) -> None:
        self._number += 1
        last = self._last
        last.pop(path, None)
        last[path] = self._number
        if len(last) > MAX_REMEMBERED:
            oldest = next(iter(last))
            self._forgotten = last.pop(oldest)
        for index, wake in tuple(self._waiting.values()):
            if index.match(path):
                wake()

    def _position(self, cursor: str) -> int | None:
        run, _, number = cursor.partition("-")
        if run != self._run or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        position = int(number)
        return position if self._forgotten <= position <= self._number else None

    def _cursor(self) -> str:
        return f"{self._run}-{self._number}"

    def _since(self, since: int, index: GlobIndex[int]) -> list[str] | None:
        found: list[str] = []
        for path, number in reversed(self._last.items()):
            if number <= since:
                break
            if index.match(path):
                found.append(path)
                if len(found) > MAX_TOLD:
                    return None
        return found

    async def _any(self, index: GlobIndex[int], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        if self._context.draining:
            return
        key = object()
        self._waiting[key] = (index, wake)
        self._context.waiting.add(wake)
        timer = loop.call_later(seconds, wake)
        try:
            await future
        finally:
            timer.cancel()
            del self._waiting[key]
            self._context.waiting.discard(wake)
