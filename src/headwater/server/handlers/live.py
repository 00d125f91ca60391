"""SSE: live readers of a stream, served in slices from shared frames (PROTOCOL 5.8).

A subscriber first catches up from the log, then joins the `LiveStream` of its path. A change is
read and encoded once for all subscribers at the same position. They are served in slices, with one
write each. The event loop runs between two slices: appends that arrive meanwhile are acknowledged,
and the next write to each subscriber contains all of them. While such an append waits for the disk,
the processor is yielded after each slice (docs/decisions/0057). A subscriber whose connection can't
keep up leaves, and catches up from the log once the connection is writable again. So no memory is
used for slow subscribers.
"""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakValueDictionary

from headwater.protocol.caching import interval_at, next_cursor
from headwater.protocol.content_types import is_text
from headwater.protocol.offsets import Now, Offset
from headwater.protocol.sse import control_event, data_event
from headwater.server.context import Context
from headwater.server.http1.inline_tasks import InlineTask, start
from headwater.server.messages import Headers, Response
from headwater.server.problems import refuse
from headwater.storage.store import Chunk

log: Final = logging.getLogger("headwater.live")

SLICE: Final = 8
"""Subscribers that are served in one turn of the event loop."""
_yield_processor: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class Sink(Protocol):
    """The destination of one subscriber's frames: a connection, or an ASGI `send`."""

    @property
    def chunked(self) -> bool:
        """Whether frames are sent in HTTP's chunked coding."""

    @property
    def full(self) -> bool:
        """Whether the write buffer of the client is full."""

    def write(self, frame: bytes) -> None: ...

    def end(self) -> None:
        """Finish the response after the frames that were written."""


class Frame:
    """Encoded events, plain and in chunked coding."""

    __slots__ = ("chunked", "events")

    def __init__(self, events: bytes) -> None:
        self.events = events
        self.chunked = b"%x\r\n%b\r\n" % (len(events), events)


class EventFeed(ABC):
    """The events of one SSE response, from its headers to its end."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sink: Sink | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, sink: Sink) -> None:
        """Begin to send: called once the headers are written."""
        self._sink = sink
        self._context.drain_callbacks.add(self.expire)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._context.settings.sse_duration, self.expire)
        self._begin()

    @abstractmethod
    def resume(self) -> None:
        """Continue after the sink was full."""

    def stop(self) -> None:
        """Release all resources: the connection is closed, or the response has ended."""
        self._sink = None
        self._context.drain_callbacks.discard(self.expire)
        if self._timer is not None:
            self._timer.cancel()
        self._cancel()

    def expire(self) -> None:
        """End the response after its maximum duration, or because the server stops."""
        self.end()

    def end(self) -> None:
        """Finish the response."""
        sink = self._sink
        self.stop()
        if sink is not None:
            sink.end()

    def write(self, frame: Frame) -> None:
        """Write a frame, unless the response has ended."""
        sink = self._sink
        if sink is not None:
            sink.write(frame.chunked if sink.chunked else frame.events)

    @abstractmethod
    def _begin(self) -> None:
        """Send the first events."""

    @abstractmethod
    def _cancel(self) -> None:
        """Stop reading."""


class EventStream:
    """The response to an SSE read: its headers, and the feed that sends its events."""

    __slots__ = ("feed", "headers")

    status: Final = 200

    def __init__(self, headers: Headers, feed: EventFeed) -> None:
        self.headers = headers
        self.feed = feed


class Update:
    """The events of a chunk, encoded once for all subscribers at its start."""

    __slots__ = ("_data", "_frames", "_interval", "chunk", "start")

    def __init__(self, chunk: Chunk, start: Offset, now: float) -> None:
        self.chunk = chunk
        self.start = start
        self._interval = interval_at(now)
        self._data: bytes | None = None
        self._frames: dict[int, Frame] = {}

    def frame(self, cursor: int) -> tuple[int, Frame]:
        """Return the next cursor of a client, and the frame that contains it.

        A cursor never decreases, and exceeds the one that the client sent (PROTOCOL 10.1).
        """
        cursor = max(self._interval, cursor)
        frame = self._frames.get(cursor)
        if frame is None:
            chunk = self.chunk
            if self._data is None:
                media_type = chunk.info.config.media_type
                self._data = data_event(chunk.joined(), media_type) if chunk.parts else b""
            control = control_event(
                chunk.end, cursor, up_to_date=chunk.up_to_date, closed=chunk.at_end
            )
            frame = self._frames[cursor] = Frame(self._data + control)
        return cursor, frame


class Subscriber(EventFeed):
    """The feed of one SSE reader of a stream."""

    def __init__(
        self, context: Context, live: "LiveStream", position: Offset, cursor: int | None
    ) -> None:
        super().__init__(context)
        self._live = live
        self._cursor = (
            0 if cursor is None else next_cursor(cursor, context.clock(), context.jitter())
        )
        self._catch_up: InlineTask | None = None
        self._has_sent = False
        self.position = position

    @property
    def full(self) -> bool:
        return self._sink is None or self._sink.full

    def resume(self) -> None:
        if self._sink is not None and self._catch_up is None and self not in self._live:
            self._begin()

    def expire(self) -> None:
        if self._sink is not None and self._context.draining:
            cursor = max(interval_at(self._context.clock()), self._cursor)
            self.write(Frame(control_event(self.position, cursor, up_to_date=False)))
        self.end()

    def send(self, update: Update) -> None:
        """Send the events that begin at this subscriber's position."""
        chunk = update.chunk
        if chunk.parts or chunk.at_end or not self._has_sent:
            self._has_sent = True
            self._cursor, frame = update.frame(self._cursor)
            self.write(frame)
        self.position = chunk.end
        if chunk.at_end:
            self.end()

    def _begin(self) -> None:
        """Send from the log until the tail is reached or the sink is full."""
        task = start(self._send_from_log(), self._caught_up)
        if task is not None:
            self._catch_up = task

    def _cancel(self) -> None:
        self._live.leave(self)
        if self._catch_up is not None:
            self._catch_up.cancel()
            self._catch_up = None

    def _caught_up(self, _: None, error: Exception | None) -> None:
        self._catch_up = None
        if error is not None:
            log.error("sse failed", exc_info=error, extra={"path": self._live.path})
            self.end()

    async def _send_from_log(self) -> None:
        while not self.full:
            changes = self._live.changes
            update = await self._live.read(self.position)
            if self._sink is None:
                return
            if update is None:
                self.end()
                return
            self.send(update)
            if update.chunk.up_to_date and not self.full:
                self._live.join(self, changes)
                return


class LiveStream:
    """The subscribers of one stream that have caught up, in the order in which they joined."""

    __slots__ = (
        "__weakref__",
        "_context",
        "_due",
        "_serving",
        "_subscribers",
        "_unwatch",
        "_update",
        "changes",
        "path",
    )

    def __init__(self, context: Context, path: str) -> None:
        self._context = context
        self._subscribers: dict[Subscriber, None] = {}
        self._due = False
        self._serving = False
        self._update: Update | None = None
        """The last one that was read in this round, for all subscribers at its start."""
        self._unwatch: Callable[[], None] | None = None
        self.path = path
        self.changes = 0

    def __contains__(self, subscriber: Subscriber) -> bool:
        return subscriber in self._subscribers

    def join(self, subscriber: Subscriber, changes: int) -> None:
        """Add a subscriber that has read to the tail; `changes` is the count before its read."""
        self._subscribers[subscriber] = None
        if self._unwatch is None:
            self._unwatch = self._context.store.watch(self.path, self.changed)
            self.changed()  # there was no watch during the subscriber's read
        elif changes != self.changes:
            self.changed()

    def leave(self, subscriber: Subscriber) -> None:
        self._subscribers.pop(subscriber, None)
        if not self._subscribers and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def changed(self) -> None:
        """Serve all subscribers, because the stream has changed."""
        self.changes += 1
        self._due = True
        self._update = None
        if not self._serving:
            self._serving = True
            start(self._serve(), self._served)

    async def read(self, position: Offset) -> Update | None:
        """Read what follows a position; None if the stream was deleted or has expired."""
        context = self._context
        now = context.clock()
        chunk = await context.store.read(self.path, position, context.copied_bytes, now)
        return Update(chunk, position, now) if isinstance(chunk, Chunk) else None

    async def _serve(self) -> None:
        """Serve all subscribers in slices; repeat until the stream does not change meanwhile."""
        while self._due and self._subscribers:
            self._due = False
            subscribers = tuple(self._subscribers)
            for first in range(0, len(subscribers), SLICE):
                # Responses to writers are flushed, and requests are received.
                await asyncio.sleep(0)
                if self._context.store.committing:
                    _yield_processor()
                for subscriber in subscribers[first : first + SLICE]:
                    if subscriber not in self._subscribers:
                        continue
                    update = self._update
                    if update is None or update.start != subscriber.position:
                        update = await self._read_for(subscriber)
                        if update is None:
                            continue
                    if subscriber.full:
                        self.leave(subscriber)
                        continue
                    subscriber.send(update)
                    if not update.chunk.up_to_date:
                        self._due = True
            self._update = None

    async def _read_for(self, subscriber: Subscriber) -> Update | None:
        """Read for a subscriber; None if it has left meanwhile, or if the stream is gone."""
        position = subscriber.position
        update = await self.read(position)
        if subscriber not in self._subscribers or subscriber.position != position:
            return None
        if update is None:
            subscriber.end()  # the reason is reported when the client reconnects
        # One update is enough: subscribers at the same position follow each other.
        self._update = update
        return update

    def _served(self, _: None, error: Exception | None) -> None:
        self._serving = False
        if error is not None:
            log.error("fan-out failed", exc_info=error, extra={"path": self.path})
            for subscriber in tuple(self._subscribers):
                subscriber.end()


class Fanout:
    """The live streams of all paths that have subscribers."""

    __slots__ = ("_context", "_streams")

    def __init__(self, context: Context) -> None:
        self._context = context
        # A live stream is referenced by its subscribers only.
        self._streams: WeakValueDictionary[str, LiveStream] = WeakValueDictionary()

    async def subscribe(
        self, path: str, position: Offset | Now, cursor: int | None
    ) -> Response | EventStream:
        """Answer an SSE read with a refusal, or with its headers and its feed."""
        context = self._context
        chunk = await context.store.read(path, position, 1, context.clock())
        if not isinstance(chunk, Chunk):
            return refuse(chunk)
        headers: Headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"stream-incarnation", b"%d" % chunk.info.incarnation),
        ]
        if not is_text(chunk.info.config.media_type):
            headers.append((b"stream-sse-data-encoding", b"base64"))
        if chunk.info.closed and chunk.start == chunk.info.tail:
            headers.append((b"stream-closed", b"true"))
        subscriber = Subscriber(context, self._live(path), chunk.start, cursor)
        return EventStream(headers, subscriber)

    def _live(self, path: str) -> LiveStream:
        live = self._streams.get(path)
        if live is None:
            live = self._streams[path] = LiveStream(self._context, path)
        return live
