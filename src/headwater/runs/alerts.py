"""Alerts: what a projector raises, and where it goes: the log always, a callback, a stream."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final, Self

import msgspec

from headwater.errors import ClientError
from headwater.runs.values import Instant, Value

if TYPE_CHECKING:
    from headwater.client import AsyncStream

log: Final = logging.getLogger("headwater.runs")

LAG_HIGH: Final = "PROJECTOR_LAG_HIGH"
NON_CONTIGUOUS: Final = "PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED"
INVALID_TRANSITION: Final = "INVALID_TRANSITION"
RUN_UNREADABLE: Final = "PROJECTOR_RUN_UNREADABLE"

_PRIORITY: Final = {LAG_HIGH: "P2", NON_CONTIGUOUS: "P2", RUN_UNREADABLE: "P2"}


class Alert(Value, frozen=True):
    """Something that a person or a program should know."""

    code: str
    run_id: str
    message: str
    raised_at: Instant
    priority: str


def alert(code: str, run_id: str, message: str, now: datetime) -> Alert:
    """Make an alert with the priority of its code."""
    return Alert(code, run_id, message, now, _PRIORITY.get(code, "P3"))


Callback = Callable[[Alert], None]


class Alerts:
    """Hands alerts to the log and to callbacks; one that fails is logged and stops nothing."""

    def __init__(self, *callbacks: Callback) -> None:
        self._callbacks = callbacks

    def __call__(self, raised: Alert) -> None:
        """Raise an alert."""
        level = logging.WARNING if raised.priority == "P2" else logging.INFO
        log.log(level, "%s run=%s %s", raised.code, raised.run_id, raised.message)
        for callback in self._callbacks:
            try:
                callback(raised)
            except Exception:
                log.exception("a callback for alerts failed code=%s", raised.code)


class StreamAlerts:
    """A callback that appends alerts to a stream, in their order, while it is entered.

    The projector never waits for it: alerts are queued, and beyond `most` the oldest give way,
    which is logged.
    """

    def __init__(self, stream: "AsyncStream", most: int = 10_000) -> None:
        self._stream = stream
        self._most = most
        self._waiting: list[Alert] = []
        self._more = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._ending = False

    def __call__(self, raised: Alert) -> None:
        """Queue an alert."""
        if len(self._waiting) >= self._most:
            dropped = self._waiting.pop(0)
            log.error("too many alerts wait for their stream; dropped code=%s", dropped.code)
        self._waiting.append(raised)
        self._more.set()

    async def __aenter__(self) -> Self:
        await self._stream.create("application/json")
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        self._more.set()
        if self._sending is not None:
            await self._sending

    async def _send(self) -> None:
        while self._waiting or not self._ending:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                batch = self._waiting[:100]
                try:
                    await self._stream.append_many(
                        [msgspec.to_builtins(each) for each in batch], idempotent=True
                    )
                except ClientError:
                    if self._ending:
                        log.exception("alerts were not written count=%d", len(self._waiting))
                        return
                    log.exception("alerts can't be written now; trying again")
                    await asyncio.sleep(1)
                else:
                    # Those that gave way meanwhile are gone from the front already.
                    sent = set(map(id, batch))
                    self._waiting = [each for each in self._waiting if id(each) not in sent]
