"""Following a run by SSE: every event with its `runSeq` as the id, so that any reader resumes."""

import asyncio
import logging
from typing import Final

import msgspec

from headwater.errors import HeadwaterError
from headwater.runs.events import StoredEvent, event_to_wire
from headwater.runs.store import RunStore
from headwater.server.context import Context
from headwater.server.handlers.live import Frame, Sink
from headwater.server.runs.service import RunService

log: Final = logging.getLogger("headwater.runs")

_PAGE: Final = 200
_KEEP_ALIVE_SECONDS: Final = 15.0
_KEEP_ALIVE: Final = Frame(b": still here\n\n")


class Follower:
    """One SSE connection; a slow one costs no memory: it is read for when there is room."""

    def __init__(
        self, context: Context, service: RunService, store: RunStore, run_id: str, after: int
    ) -> None:
        self._context = context
        self._service = service
        self._store = store
        self._run_id = run_id
        self._after = after
        self._sink: Sink | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._more = asyncio.Event()

    def start(self, sink: Sink) -> None:
        """Begin to send: called once the headers are on their way."""
        self._sink = sink
        self._context.waiting.add(self._expire)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._context.settings.sse_duration, self._expire)
        self._task = loop.create_task(self._send())

    def resume(self) -> None:
        """Go on after the sink was full."""
        self._more.set()

    def stop(self) -> None:
        """Let go of everything: the connection is gone, or the response has ended."""
        self._sink = None
        self._context.waiting.discard(self._expire)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _expire(self) -> None:
        """End the connection: the client comes back with the last id."""
        sink = self._sink
        self.stop()
        if sink is not None:
            sink.end()

    async def _send(self) -> None:
        unwatch = self._service.watch(self._run_id, self._more.set)
        try:
            while True:
                self._more.clear()
                events = await self._store.fetch_events(self._run_id, self._after, _PAGE)
                for event in events:
                    self._write(frame(event))
                    self._after = event.run_seq
                if events and self._sink is not None and not self._sink.full:
                    continue
                if not events and await self._store.find_run(self._run_id) is None:
                    break  # deleted: a client that comes back is told so
                await self._wait()
        except HeadwaterError as error:
            log.warning("following ended run=%s: %s", self._run_id, error)
        finally:
            unwatch()
        self._task = None
        self._expire()

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._more.wait(), _KEEP_ALIVE_SECONDS)
        except TimeoutError:
            self._write(_KEEP_ALIVE)

    def _write(self, made: Frame) -> None:
        sink = self._sink
        if sink is not None:
            sink.write(made.chunked if sink.chunked else made.plain)


def frame(event: StoredEvent) -> Frame:
    """Write an event as an SSE event; JSON holds no line break that is not escaped."""
    data = msgspec.json.encode(event_to_wire(event))
    return Frame(b"id: %d\nevent: run-event\ndata: %b\n\n" % (event.run_seq, data))
