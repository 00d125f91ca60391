"""SSE: one frame per change, shared by all subscribers of a stream (PROTOCOL 5.8).

A subscriber first catches up by itself, then joins its stream's hub. The hub reads each change once
and hands the same bytes to everyone. A subscriber whose connection can't keep up leaves the hub and
catches up again from the log when there is room: being slow costs no memory here.
"""

import asyncio
import logging
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


class Sink(Protocol):
    """Where the frames of one subscriber go: a connection, or an ASGI `send`."""

    @property
    def chunked(self) -> bool:
        """Whether frames are wanted in HTTP's chunked coding."""

    @property
    def full(self) -> bool:
        """Whether the other side reads too slowly to be sent more now."""

    def write(self, frame: bytes) -> None: ...

    def end(self) -> None:
        """Finish the response after what was written."""


class Feed(Protocol):
    """What sends the frames of an event stream."""

    def start(self, sink: Sink) -> None:
        """Begin to send: called once the headers are on their way."""

    def resume(self) -> None:
        """Go on after the sink was full."""

    def stop(self) -> None:
        """Let go of everything: the connection is gone."""


class Frame:
    """The bytes of an event pair, and the same in chunked coding, made once for everybody."""

    __slots__ = ("chunked", "plain")

    def __init__(self, plain: bytes) -> None:
        self.plain = plain
        self.chunked = b"%x\r\n%b\r\n" % (len(plain), plain)


class EventStream:
    """The response to an SSE read: headers now, frames as they come."""

    __slots__ = ("headers", "subscriber")

    status: Final = 200

    def __init__(self, headers: Headers, subscriber: Feed) -> None:
        self.headers = headers
        self.subscriber = subscriber


class Subscriber:
    """One SSE connection."""

    __slots__ = (
        "_catching_up",
        "_context",
        "_cursor",
        "_hub",
        "_sink",
        "_timer",
        "_told",
        "position",
    )

    def __init__(self, context: Context, hub: "Hub", position: Offset, cursor: int | None) -> None:
        self._context = context
        self._hub = hub
        self._cursor = (
            0 if cursor is None else next_cursor(cursor, context.clock(), context.jitter())
        )
        self._sink: Sink | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._catching_up: InlineTask | None = None
        self._told = False
        self.position = position

    @property
    def full(self) -> bool:
        return self._sink is None or self._sink.full

    def start(self, sink: Sink) -> None:
        """Begin to send: called once the headers are on their way."""
        self._sink = sink
        self._context.waiting.add(self.expire)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._context.settings.sse_duration, self.expire)
        self.catch_up()

    def resume(self) -> None:
        """Go on after the sink was full."""
        if self._sink is not None and self._catching_up is None and not self._hub.has(self):
            self.catch_up()

    def stop(self) -> None:
        """Let go of everything: the connection is gone, or the response has ended."""
        self._sink = None
        self._context.waiting.discard(self.expire)
        self._hub.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None

    def expire(self) -> None:
        """End the connection: the client reconnects where the last control event says."""
        if self._sink is not None:
            if self._context.draining:
                cursor = self.cursor(interval_at(self._context.clock()))
                self.write(Frame(control_event(self.position, cursor, up_to_date=False)))
            self.end()

    def end(self) -> None:
        """Finish the response."""
        sink = self._sink
        self.stop()
        if sink is not None:
            sink.end()

    def write(self, frame: Frame) -> None:
        sink = self._sink
        if sink is not None:
            self._told = True
            sink.write(frame.chunked if sink.chunked else frame.plain)

    def cursor(self, interval: int) -> int:
        """Never backwards, and past the one that the client came with (PROTOCOL 10.1)."""
        self._cursor = max(interval, self._cursor)
        return self._cursor

    def catch_up(self) -> None:
        """Send from the log until the tail is reached or the sink is full."""
        call = start(self._send_from_log(), self._caught_up)
        if call is not None:
            self._catching_up = call

    def _caught_up(self, _: None, error: Exception | None) -> None:
        self._catching_up = None
        if error is not None:
            log.error("sse failed path=%s", self._hub.path, exc_info=error)
            self.end()

    async def _send_from_log(self) -> None:
        context = self._context
        while self._sink is not None and not self._sink.full:
            chunk = await context.store.read(
                self._hub.path, self.position, context.copied_bytes, context.clock()
            )
            if self._sink is None:
                return
            if not isinstance(chunk, Chunk):  # deleted or expired: a reconnect will be told so
                self.end()
                return
            if chunk.parts or not self._told or chunk.at_end:
                self.write(encode(chunk, self.cursor(interval_at(context.clock()))))
            self.position = chunk.end
            if chunk.at_end:
                self.end()
                return
            if chunk.up_to_date and not self._sink.full:
                self._hub.join(self)
                return


class Hub:
    """The subscribers of one stream that have caught up."""

    __slots__ = (
        "__weakref__",
        "_context",
        "_dirty",
        "_members",
        "_reading",
        "_unwatch",
        "path",
        "position",
    )

    def __init__(self, context: Context, path: str) -> None:
        self._context = context
        self._members: dict[Subscriber, None] = {}
        self._reading: InlineTask | None = None
        self._dirty = False
        self._unwatch: Callable[[], None] | None = None
        self.path = path
        self.position: Offset | None = None

    def has(self, subscriber: Subscriber) -> bool:
        return subscriber in self._members

    def join(self, subscriber: Subscriber) -> None:
        """Take in a subscriber that has read up to its position."""
        if self._unwatch is None:
            self._unwatch = self._context.store.watch(self.path, self._wake)
            self.position = subscriber.position
            self._members[subscriber] = None
            # A change between that subscriber's read and this watch would go unseen.
            self._wake()
        else:
            self._members[subscriber] = None
            if self.position is not None and subscriber.position < self.position:
                self._detach(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        self._members.pop(subscriber, None)
        if not self._members and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None

    def _detach(self, subscriber: Subscriber) -> None:
        """Have a subscriber go on by itself, from where it is."""
        self.leave(subscriber)
        subscriber.resume()

    def _wake(self) -> None:
        if self._reading is not None:
            self._dirty = True
            return
        call = start(self._broadcast(), self._broadcasted)
        if call is not None:
            self._reading = call

    def _broadcasted(self, _: None, error: Exception | None) -> None:
        self._reading = None
        if error is not None:
            log.error("fan-out failed path=%s", self.path, exc_info=error)
            for subscriber in tuple(self._members):
                subscriber.end()

    async def _broadcast(self) -> None:
        context = self._context
        more = True
        while more and self._members and self.position is not None:
            self._dirty = False
            start = self.position
            chunk = await context.store.read(
                self.path, start, context.copied_bytes, context.clock()
            )
            if not isinstance(chunk, Chunk):
                for subscriber in tuple(self._members):
                    subscriber.end()
                return
            if chunk.parts or chunk.at_end:
                self._deliver(chunk, start)
            more = self._dirty or not chunk.up_to_date

    def _deliver(self, chunk: Chunk, start: Offset) -> None:
        self.position = chunk.end
        interval = interval_at(self._context.clock())
        frames: dict[int, Frame] = {}
        behind: list[Subscriber] = []
        for subscriber in tuple(self._members):
            if subscriber.position != start:
                if subscriber.position < chunk.end:
                    behind.append(subscriber)
                continue
            if subscriber.full:
                self.leave(subscriber)
                continue
            cursor = subscriber.cursor(interval)
            frame = frames.get(cursor)
            if frame is None:
                frame = frames[cursor] = encode(chunk, cursor)
            subscriber.write(frame)
            subscriber.position = chunk.end
            if chunk.at_end:
                subscriber.end()
        for subscriber in behind:
            self._detach(subscriber)


def encode(chunk: Chunk, cursor: int) -> Frame:
    """Make the events of a chunk: its data, if any, and where it ends."""
    control = control_event(chunk.end, cursor, up_to_date=chunk.up_to_date, closed=chunk.at_end)
    if not chunk.parts:
        return Frame(control)
    return Frame(data_event(chunk.joined(), chunk.info.config.media_type) + control)


class Fanout:
    """The hubs of all streams that have subscribers."""

    __slots__ = ("_context", "_hubs")

    def __init__(self, context: Context) -> None:
        self._context = context
        # A hub lives as long as one of its subscribers does.
        self._hubs: WeakValueDictionary[str, Hub] = WeakValueDictionary()

    async def subscribe(
        self, path: str, position: Offset | Now, cursor: int | None
    ) -> Response | EventStream:
        """Answer an SSE read: refuse it, or give its headers and what feeds it."""
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
        subscriber = Subscriber(context, self._hub(path), chunk.start, cursor)
        return EventStream(headers, subscriber)

    def _hub(self, path: str) -> Hub:
        hub = self._hubs.get(path)
        if hub is None:
            hub = self._hubs[path] = Hub(self._context, path)
        return hub
