"""Framing: how messages are stored as bytes, and where the bytes of a stream may be split.

A JSON message is stored as `<json>,\\n`. Line breaks between tokens are replaced by spaces, and
JSON allows none inside a string, so a newline byte is always the end of a message. A response is
then `[` + bytes without the last two + `]`, and a chunk may end after any newline.

A stream of any other type has no framing: every byte is a boundary, except that text is not split
inside a UTF-8 sequence. An offset is valid if it names a boundary within the stream.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from headwater.protocol.byte_requests import Buffer, ByteRequests
from headwater.protocol.content_types import is_json, is_text
from headwater.protocol.offsets import (
    Lineage,
    Offset,
    OffsetBeyondTail,
    OffsetInsideMessage,
    PositionRefusal,
)

FilePart = TypeVar("FilePart")
"""A range of a stream's bytes that is in a file, not in memory."""

SEPARATOR: Final = b",\n"

_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
_BREAKS_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")
_WHITESPACE: Final = b" \t\r\n"
_UTF8_MAX_TAIL: Final = 3
_WINDOW: Final = 16 * 1024
_MAX_WINDOW: Final = 256 * 1024


class InvalidJson(Struct, frozen=True):
    """The body is not one JSON text in UTF-8."""

    reason: str


class EmptyArray(Struct, frozen=True):
    """The body is `[]`, which appends nothing (PROTOCOL 9.1.3)."""


def frame(body: bytes, media: str) -> bytes | InvalidJson | EmptyArray:
    """Convert a request body into the bytes to store."""
    return frame_json(body) if is_json(media) else body


def frame_json(body: bytes) -> bytes | InvalidJson | EmptyArray:
    """Check a JSON body, flatten one level of array and put each message on a line of its own."""
    body = body.strip(_WHITESPACE)
    try:
        if b"\n" in body or b"\r" in body:
            _VALUE.decode(body)  # before translating: no line break may be inside a string
            body = body.translate(_BREAKS_TO_SPACES)
        if not body.isascii():
            body.decode("utf-8")
        if not body.startswith(b"["):
            _VALUE.decode(body)
            return body + SEPARATOR
        messages = _ARRAY.decode(body)
        if not messages:
            return EmptyArray()
        return SEPARATOR.join(messages) + SEPARATOR
    except UnicodeDecodeError as error:
        return InvalidJson(f"byte {error.start} is not UTF-8")
    except RecursionError:
        return InvalidJson("it is nested too deeply")
    except msgspec.DecodeError as error:
        return InvalidJson(str(error))


def check_json(text: bytes) -> str | None:
    """Return what is wrong with a JSON text, or None if it is valid."""
    try:
        text.decode("utf-8")
        _VALUE.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return str(error)
    except RecursionError:
        return "it is nested too deeply"
    return None


def render(parts: Sequence[Buffer | FilePart], media: str) -> list[Buffer | FilePart]:
    """Turn stored bytes into the parts of a response body without copying them.

    Parts in files are passed on unread. The end of the last message has to be in memory.
    """
    if not is_json(media):
        return list(parts)
    if not parts:
        return [b"[]"]
    last = _in_memory(parts[-1])
    if len(last) < len(SEPARATOR):
        last = memoryview(b"".join((_in_memory(parts[-2]), last)))
        parts = parts[:-1]
    return [b"[", *parts[:-1], last[: -len(SEPARATOR)], b"]"]


def _in_memory(part: object) -> memoryview:
    assert isinstance(part, bytes | bytearray | memoryview)  # noqa: S101 - a promise of `render`
    return memoryview(part)


def is_boundary(before: int | None, media: str) -> bool:
    """Return whether a position is a message boundary, given the byte before it."""
    return before is None or not is_json(media) or before == SEPARATOR[-1]


def complete_prefix(window: Buffer, media: str) -> int | None:
    """Return the length of the longest prefix that ends at a message boundary, or None.

    The window is followed by more bytes. None means that it ends inside its first message, so that
    a larger window is needed.
    """
    if is_json(media):
        return bytes(window).rfind(b"\n") + 1 or None
    if not is_text(media):
        return len(window)
    end = len(window)
    for back in range(1, min(_UTF8_MAX_TAIL, end) + 1):
        byte = window[end - back]
        if not _is_continuation(byte):
            return (end - back or None) if _utf8_length(byte) > back else end
    return end


def find_split(begin: int, limit: int, end: int, media: str) -> ByteRequests[int]:
    """Find where to split the bytes from `begin` to `end` so that about `limit` of them come first.

    The split is the last boundary within the limit. If the first message is longer than the limit,
    it is the end of that message. Only bytes near the split are requested.
    """
    if begin + limit >= end:
        return end
    if is_json(media):
        return (yield from _split_lines(begin, begin + limit, end))
    if is_text(media):
        return (yield from _split_text(begin, begin + limit, end))
    return begin + limit


def _split_lines(begin: int, limit: int, end: int) -> ByteRequests[int]:
    step = _WINDOW
    upto = limit
    while upto > begin:
        start = max(begin, upto - step)
        newline = bytes((yield start, upto)).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        upto = start
        step = min(2 * step, _MAX_WINDOW)
    start = limit
    step = _WINDOW
    while start < end:
        upto = min(end, start + step)
        newline = bytes((yield start, upto)).find(b"\n")
        if newline >= 0:
            return start + newline + 1
        start = upto
        step = min(2 * step, _MAX_WINDOW)
    return end


def _split_text(begin: int, limit: int, end: int) -> ByteRequests[int]:
    first = max(begin, limit - _UTF8_MAX_TAIL)
    window = yield first, min(end, limit + _UTF8_MAX_TAIL)
    at = limit - first
    lead = at
    while lead > 0 and _is_continuation(window[lead]):
        lead -= 1
    complete = lead + _utf8_length(window[lead])
    if complete <= at:
        return limit  # stray continuation bytes: no character is split here
    if first + lead > begin:
        return first + lead
    # The very first character is longer than the limit: return as much of it as there is.
    while at < min(complete, len(window)) and _is_continuation(window[at]):
        at += 1
    return first + at


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _utf8_length(lead: int) -> int:
    """Return the length of the UTF-8 sequence that begins with this byte."""
    if lead < 0xC0:
        return 1
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def skip_messages(begin: int, end: int, count: int) -> ByteRequests[tuple[int, int]]:
    """Skip up to `count` JSON messages; return the byte after them and how many were skipped."""
    left = count
    while begin < end:
        upto = min(end, begin + _MAX_WINDOW)
        window = bytes((yield begin, upto))
        within = window.count(b"\n")
        if within >= left:
            at = 0
            for _ in range(left):
                at = window.find(b"\n", at) + 1
            return begin + at, count
        left -= within
        begin = upto
    return end, count - left


def find_position(
    offset: Offset, lineage: Lineage, tail: int, media: str
) -> ByteRequests[int | PositionRefusal]:
    """Find the byte that an offset names in a stream that ends at `tail`."""
    at = lineage.locate(offset)
    if not isinstance(at, int):
        return at
    if at > tail:
        return OffsetBeyondTail(offset, lineage.name(tail))
    if 0 < at < tail and is_json(media):
        before = yield at - 1, at
        if not is_boundary(before[0], media):
            return OffsetInsideMessage(offset)
    return at
