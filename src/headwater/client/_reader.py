"""Reading a stream, without I/O: what to request next, and what the responses mean.

A reader first catches up with plain reads; if it follows the stream, it then stays live. Its offset
advances only when a whole response, or the control event after the data, has arrived (PROTOCOL
5.8). If the connection breaks before that, the data is dropped and requested again: nothing is lost
or seen twice.

Server-Sent Events (WHATWG HTML, 9.2) are parsed as bytes. Text may be cut anywhere, even inside a
character, so it is decoded only after it was parsed.
"""

from base64 import b64decode
from binascii import Error as BadBase64
from typing import Final, Literal

import msgspec
from msgspec import Struct

from headwater.client import _calls
from headwater.client._error_mapping import error_from_response, unexpected_response
from headwater.client._http1 import Request, Response
from headwater.client._values import Batch, Position
from headwater.errors import OffsetGone, StreamRecreated
from headwater.protocol import headers as names
from headwater.protocol.content_types import holds_json, is_json, is_text, media_type

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class SseEvent(Struct, frozen=True):
    """One event: its name, and its data lines joined with newlines."""

    name: str
    data: bytes


class SseParser:
    """Parses the body of one response, in pieces of any size."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._name = ""
        self._data: list[bytes] = []
        self._after_return = False
        self._first = True

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Parse a piece; returns the events that it completes."""
        piece = self._normalise(piece)
        if b"\n" not in piece:
            # Pieces of a long line are joined once, when it ends.
            self._line.append(piece)
            return []
        lines = b"".join((*self._line, piece)).split(b"\n")
        self._line = [lines.pop()]
        events = []
        for line in lines:
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    def _normalise(self, piece: bytes) -> bytes:
        """Make every line end a newline; a return and its newline may be in two pieces."""
        if not piece:
            return piece
        ends_in_return = piece.endswith(b"\r")
        if self._after_return and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_return = ends_in_return
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return piece

    def _take(self, line: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None  # a comment, or a field that Durable Streams does not use

    def _dispatch(self) -> SseEvent | None:
        name, data = self._name, self._data
        self._name, self._data = "", []
        return SseEvent(name or "message", b"\n".join(data)) if data else None


Live = Literal["auto", "sse", "long-poll"]

_LINE_BREAKS: Final = b"\r\n"
_SHORT_CONNECTION_SECONDS: Final = 1.0
_MAX_SHORT_CONNECTIONS: Final = 3


class ControlData(Struct, frozen=True, rename="camel"):
    """The data of a control event."""

    stream_next_offset: str
    stream_cursor: str | None = None
    up_to_date: bool = False
    stream_closed: bool = False


_CONTROL: Final = msgspec.json.Decoder(ControlData)


class Reader:
    """The state of a read; without `live`, it ends when it has caught up."""

    def __init__(
        self, url: str, offset: str, live: Live | None = None, *, until: str | None = None
    ) -> None:
        if live not in {None, "auto", "sse", "long-poll"}:
            raise ValueError(f"live={live!r} is not allowed: it must be auto, sse or long-poll")
        start = Position.parse(offset)
        self.url = url
        self.offset = start.offset
        self.closed = False
        self.caught_up = False
        """Whether a plain read has reached the tail, so that the next read is live."""
        self.content_type = ""
        self._live: Live | None = live
        self._until = until
        self._skip = start.skip
        self._cursor: str | None = None
        self._incarnation: str | None = None
        self._reported_up_to_date = False
        self._short_connections = 0

    @property
    def position(self) -> Position:
        """The position after everything that was read."""
        return Position(self.offset, self._skip)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to request."""
        if self._until is not None and self.offset >= self._until:
            return True
        return self.closed or (self.caught_up and self._live is None)

    @property
    def mode(self) -> Literal["sse", "long-poll"]:
        """How the reader stays live.

        SSE ends a line at a carriage return and so can't carry every text exactly: with `auto`,
        text is read by long-poll.
        """
        if self._live in {"sse", "long-poll"}:
            return "sse" if self._live == "sse" else "long-poll"
        media = media_type(self.content_type) or ""
        return "long-poll" if is_text(media) and not is_json(media) else "sse"

    @property
    def streams(self) -> bool:
        """Whether the next response is an event stream."""
        return self.caught_up and self.mode == "sse"

    def request(self) -> Request:
        """Return the next request for a whole response: catch-up or long-poll."""
        if not self.caught_up:
            return _calls.read_request(self.url, self.offset, self._until)
        return _calls.live_request(self.url, self.offset, "long-poll", self._cursor)

    def take(self, response: Response) -> Batch | None:
        """Interpret the response to `request`; returns None if it has nothing new."""
        self._check_incarnation(response)
        cursor = response.headers.get(names.STREAM_CURSOR.lower())
        if response.status == 204 and self.caught_up:
            # The long-poll timed out (PROTOCOL 5.7): no content, and no content type.
            closed = _calls.is_set(response, names.STREAM_CLOSED)
            offset = _calls.next_offset(response)
            end = Batch(b"", self.offset, offset, True, closed, self.content_type, cursor)
            _calls.check_progress(response, end)
            return self.advance(end)
        batch = _calls.read_batch(response, self.url, self.offset)
        self.content_type = batch.content_type
        self.caught_up = batch.up_to_date or self.caught_up
        return self.advance(batch)

    def events_request(self) -> Request:
        """Return the next SSE request."""
        return _calls.live_request(self.url, self.offset, "sse", self._cursor)

    def open_events(self, response: Response) -> "EventReader":
        """Begin to read an event stream, given its status and headers."""
        self._check_incarnation(response)
        if response.status != 200:
            raise error_from_response(response)
        if media_type(_calls.content_type_of(response)) != "text/event-stream":
            raise unexpected_response(
                response, f"{_calls.content_type_of(response)}, not text/event-stream"
            )
        return EventReader(self, response)

    def end_events(self, seconds: float) -> bool:
        """Record that an event stream ended; returns whether several in a row ended too soon.

        With `auto`, the reader then uses long-poll.
        """
        if seconds >= _SHORT_CONNECTION_SECONDS:
            self._short_connections = 0
            return False
        self._short_connections += 1
        if self._short_connections < _MAX_SHORT_CONNECTIONS:
            return False
        if self._live == "auto":
            self.use_long_poll()
        return True

    def use_long_poll(self) -> None:
        """Use long-poll from now on, because a proxy buffers events."""
        self._live = "long-poll"

    def advance(self, batch: Batch) -> Batch | None:
        """Advance past a batch; returns None if it has nothing new."""
        self.closed = batch.closed
        self._cursor = batch.cursor or self._cursor
        self.offset = batch.next_offset
        if self._skip and not batch.empty:
            known = min(self._skip, batch.count())
            self._skip -= known
            batch = batch.without(known)
        if self._skip and batch.up_to_date:
            # The stream is shorter than the position, so it is another stream.
            raise recreated(self.url, 200)
        reaches_end = batch.up_to_date and not self._reported_up_to_date
        is_news = not batch.empty or batch.closed or reaches_end
        self._reported_up_to_date = batch.up_to_date
        return batch if is_news else None

    def _check_incarnation(self, response: Response) -> None:
        """Raise an error if the stream was deleted and created again since the last response."""
        incarnation = response.headers.get(names.STREAM_INCARNATION.lower())
        if incarnation is None:
            return
        if response.status >= 400:
            # A Headwater server reports the incarnation when it refuses an offset of another one.
            error = error_from_response(response)
            if isinstance(error, OffsetGone):
                raise recreated(self.url, response.status, str(error))
            return
        if self._incarnation not in {None, incarnation}:
            raise recreated(self.url, response.status)
        self._incarnation = incarnation


def recreated(url: str, status: int, message: str = "") -> StreamRecreated:
    """Return the error for a stream that is not the one read before."""
    return StreamRecreated(
        message or f"The stream at {url} was deleted and created again: read it again from -1.",
        url=url,
        status=status,
        code="stream-recreated",
    )


class EventReader:
    """Turns the body of one SSE response into batches."""

    def __init__(self, reader: Reader, response: Response) -> None:
        self._reader = reader
        self._response = response
        self._parser = SseParser()
        self._base64 = response.headers.get(names.STREAM_SSE_DATA_ENCODING.lower()) == "base64"
        self._pending: list[bytes] = []
        self.has_position = False
        """Whether a control event has arrived: a connection without one has failed."""

    def feed(self, piece: bytes) -> list[Batch]:
        """Parse a piece of the body; returns the batches that it completes."""
        batches = []
        for event in self._parser.feed(piece):
            if event.name == "data":
                self._pending.append(self._decode(event))
            elif event.name == "control":
                batch = self._control(event)
                if batch is not None:
                    batches.append(batch)
        return batches

    def _control(self, event: SseEvent) -> Batch | None:
        try:
            control = _CONTROL.decode(event.data)
        except msgspec.DecodeError as error:
            raise unexpected_response(
                self._response, f"a control event that can't be parsed ({error})"
            ) from None
        self.has_position = True
        content_type = self._reader.content_type
        batch = Batch(
            join_payloads(self._pending, content_type),
            self._reader.offset,
            control.stream_next_offset,
            # PROTOCOL 5.8: closed implies up to date.
            control.up_to_date or control.stream_closed,
            control.stream_closed,
            content_type,
            control.stream_cursor,
            url=self._reader.url,
        )
        self._pending = []
        return self._reader.advance(batch)

    def _decode(self, event: SseEvent) -> bytes:
        if not self._base64:
            return event.data
        try:
            return b64decode(event.data.translate(None, _LINE_BREAKS), validate=True)
        except BadBase64 as error:
            raise unexpected_response(
                self._response, f"data that is not base64 ({error})"
            ) from None


def join_payloads(payloads: list[bytes], content_type: str) -> bytes:
    """Join the data events before a control event: some servers send one for each message."""
    if len(payloads) == 1:
        return payloads[0]
    if not holds_json(content_type):
        return b"".join(payloads)
    inner = (payload.strip()[1:-1] for payload in payloads)
    return b"[" + b",".join(part for part in inner if part.strip()) + b"]"
