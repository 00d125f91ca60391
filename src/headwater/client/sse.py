"""A parser of Server-Sent Events: bytes in, events out (WHATWG HTML, 9.2).

It stays with bytes. A stream's text may be cut anywhere, even inside a character, and is only put
together behind this parser.
"""

from typing import Final

from msgspec import Struct

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Event(Struct, frozen=True):
    """One event: its name, and its data lines joined with newlines."""

    name: str
    data: bytes


class EventParser:
    """Takes the body of one response in pieces of any size."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._name = ""
        self._data: list[bytes] = []
        self._after_return = False
        self._first = True

    def feed(self, piece: bytes) -> list[Event]:
        """Take a piece; give the events that it completes."""
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
        """Make every line end a newline; a return and its newline may come in two pieces."""
        if not piece:
            return piece
        ends_in_return = piece.endswith(b"\r")
        if self._after_return and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_return = ends_in_return
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return piece

    def _take(self, line: bytes) -> Event | None:
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

    def _dispatch(self) -> Event | None:
        name, data = self._name, self._data
        self._name, self._data = "", []
        return Event(name or "message", b"\n".join(data)) if data else None
