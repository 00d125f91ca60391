"""Following a stream, without I/O: what to ask for next, and what the answers mean.

A reader first catches up with plain reads, then stays live. Its offset moves only when a whole
answer, or the control event behind the data, has arrived (PROTOCOL 5.8). Data that a broken
connection left without its offset is dropped and asked for again: nothing is lost or seen twice.
"""

from base64 import b64decode
from binascii import Error as BadBase64
from typing import Final, Literal

import msgspec
from msgspec import Struct

from headwater.client import calls
from headwater.client.calls import Call
from headwater.client.failures import failure, unexpected
from headwater.client.messages import Answer, Request
from headwater.client.sse import Event, EventParser
from headwater.client.values import Chunk
from headwater.errors import OffsetGone
from headwater.protocol import headers as names
from headwater.protocol.content_types import is_json, is_text, media_type

Live = Literal["auto", "sse", "long-poll"]

_LINE_BREAKS: Final = b"\r\n"


class Control(Struct, frozen=True, rename="camel"):
    """What a control event tells."""

    stream_next_offset: str
    stream_cursor: str | None = None
    up_to_date: bool = False
    stream_closed: bool = False


_CONTROL: Final = msgspec.json.Decoder(Control)


class Reader:
    """Where a follower stands."""

    def __init__(self, url: str, offset: str, live: Live = "auto") -> None:
        self.url = url
        self.offset = offset
        self.closed = False
        self.caught_up = False
        """Whether the plain reads have reached the end, so that the next read is a live one."""
        self._live: Live = live
        self._cursor: str | None = None
        self._incarnation: str | None = None
        self._told_up_to_date = False
        self.content_type = ""

    @property
    def mode(self) -> Literal["sse", "long-poll"]:
        """How to stay live.

        SSE ends lines where a text has a carriage return, so it can't carry every text exactly:
        left the choice, text is polled for.
        """
        if self._live != "auto":
            return self._live
        media = media_type(self.content_type) or ""
        return "long-poll" if is_text(media) and not is_json(media) else "sse"

    @property
    def streams(self) -> bool:
        """Whether the next answer is an event stream."""
        return self.caught_up and self.mode == "sse"

    def call(self) -> Call[Chunk | None]:
        """Make the next read that is answered as a whole: catch-up, or long-poll."""
        if not self.caught_up:
            return Call(calls.read(self.url, self.offset).request, self._take)
        return Call(
            calls.live_request(self.url, self.offset, "long-poll", self._cursor), self._take
        )

    def events_request(self) -> Request:
        """Make the next SSE read."""
        return calls.live_request(self.url, self.offset, "sse", self._cursor)

    def open_events(self, answer: Answer) -> "EventReader":
        """Begin to read an event stream, given its status and headers."""
        if answer.status != 200:
            raise failure(answer)
        if media_type(calls.content_type_of(answer)) != "text/event-stream":
            raise unexpected(answer, f"{calls.content_type_of(answer)}, not text/event-stream")
        self._check_incarnation(answer)
        return EventReader(self, answer)

    def advance(self, chunk: Chunk, cursor: str | None) -> Chunk | None:
        """Move behind a chunk; None where it tells nothing new."""
        self.offset = chunk.next_offset
        self.closed = chunk.closed
        self._cursor = cursor or self._cursor
        news = not chunk.empty or chunk.closed or (chunk.up_to_date and not self._told_up_to_date)
        self._told_up_to_date = chunk.up_to_date
        return chunk if news else None

    def _take(self, answer: Answer) -> Chunk | None:
        self._check_incarnation(answer)
        cursor = answer.headers.get(names.STREAM_CURSOR.lower())
        if answer.status == 204 and self.caught_up:
            # Time was up (PROTOCOL 5.7); there is no content type where there is no content.
            closed = calls.is_set(answer, names.STREAM_CLOSED)
            end = Chunk(b"", calls.next_offset(answer), True, closed, self.content_type)
            return self.advance(end, cursor)
        chunk = calls.read_chunk(answer, self.offset)
        self.content_type = chunk.content_type
        self.caught_up = chunk.up_to_date or self.caught_up
        return self.advance(chunk, cursor)

    def _check_incarnation(self, answer: Answer) -> None:
        """Notice that the stream was deleted and created again while we were away."""
        incarnation = answer.headers.get(names.STREAM_INCARNATION.lower())
        if answer.status >= 400 or incarnation is None:
            return
        if self._incarnation not in {None, incarnation}:
            raise OffsetGone(
                f"The stream at {self.url} was deleted and created again: start again from -1.",
                url=self.url,
                status=answer.status,
                code="stream-replaced",
            )
        self._incarnation = incarnation


class EventReader:
    """Turns the body of one SSE answer into chunks."""

    def __init__(self, reader: Reader, answer: Answer) -> None:
        self._reader = reader
        self._answer = answer
        self._parser = EventParser()
        self._base64 = answer.headers.get(names.STREAM_SSE_DATA_ENCODING.lower()) == "base64"
        self._pending: list[bytes] = []
        self.told = False
        """Whether at least one control event has come: a connection without any has failed."""

    def feed(self, piece: bytes) -> list[Chunk]:
        """Take a piece of the body; give the chunks that it completes."""
        chunks = []
        for event in self._parser.feed(piece):
            if event.name == "data":
                self._pending.append(self._decode(event))
            elif event.name == "control":
                chunk = self._control(event)
                if chunk is not None:
                    chunks.append(chunk)
        return chunks

    def _control(self, event: Event) -> Chunk | None:
        try:
            control = _CONTROL.decode(event.data)
        except msgspec.DecodeError as error:
            raise unexpected(
                self._answer, f"a control event that can't be read ({error})"
            ) from None
        self.told = True
        content_type = self._reader.content_type
        chunk = Chunk(
            join_payloads(self._pending, content_type),
            control.stream_next_offset,
            # PROTOCOL 5.8: closed implies up to date.
            control.up_to_date or control.stream_closed,
            control.stream_closed,
            content_type,
        )
        self._pending = []
        return self._reader.advance(chunk, control.stream_cursor)

    def _decode(self, event: Event) -> bytes:
        if not self._base64:
            return event.data
        try:
            return b64decode(event.data.translate(None, _LINE_BREAKS), validate=True)
        except BadBase64 as error:
            raise unexpected(self._answer, f"data that is not base64 ({error})") from None


def join_payloads(payloads: list[bytes], content_type: str) -> bytes:
    """Join the data events before one control event: some servers send one for each message."""
    if len(payloads) == 1:
        return payloads[0]
    if not is_json(media_type(content_type) or ""):
        return b"".join(payloads)
    inner = (payload.strip()[1:-1] for payload in payloads)
    return b"[" + b",".join(part for part in inner if part.strip()) + b"]"
