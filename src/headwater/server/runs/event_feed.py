"""The events of a run by SSE; the id of each event is its `runSeq`, from which readers resume."""

import asyncio
import logging
from typing import Final

import msgspec

from headwater.errors import HeadwaterError
from headwater.runs.events import StoredEvent, event_to_wire
from headwater.runs.store import RunStore
from headwater.server.context import Context
from headwater.server.handlers.live import EventFeed, Frame
from headwater.server.runs.service import RunService

log: Final = logging.getLogger("headwater.runs")

_PAGE: Final = 200
_KEEP_ALIVE_SECONDS: Final = 15.0
_KEEP_ALIVE: Final = Frame(b": still here\n\n")


class RunEventFeed(EventFeed):
    """The feed of one reader; it reads nothing while the write buffer of its connection is full."""

    def __init__(
        self, context: Context, service: RunService, store: RunStore, run_id: str, after: int
    ) -> None:
        super().__init__(context)
        self._service = service
        self._store = store
        self._run_id = run_id
        self._after = after
        self._task: asyncio.Task[None] | None = None
        self._more = asyncio.Event()

    def resume(self) -> None:
        self._more.set()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._send())

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _send(self) -> None:
        unwatch = self._service.watch(self._run_id, self._more.set)
        try:
            while True:
                self._more.clear()
                events = await self._store.fetch_events(self._run_id, self._after, _PAGE)
                for event in events:
                    self.write(encode(event))
                    self._after = event.run_seq
                if events and self._sink is not None and not self._sink.full:
                    continue
                if not events and await self._store.find_run(self._run_id) is None:
                    break  # deleted: this is reported when the client reconnects
                await self._wait()
        except HeadwaterError as error:
            log.warning("run events ended", extra={"run": self._run_id, "error": error})
        finally:
            unwatch()
        self._task = None
        self.end()

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._more.wait(), _KEEP_ALIVE_SECONDS)
        except TimeoutError:
            self.write(_KEEP_ALIVE)


def encode(event: StoredEvent) -> Frame:
    """Encode an event as an SSE event; all line breaks in JSON are escaped."""
    data = msgspec.json.encode(event_to_wire(event))
    return Frame(b"id: %d\nevent: run-event\ndata: %b\n\n" % (event.run_seq, data))
