"""Framing: how the messages of a JSON stream lie in its bytes, and where bytes may be cut.

A JSON message is stored as `<json>,\\n`. Line breaks between tokens become spaces on the way in and
JSON allows none inside a string, so a newline byte is always the end of a message. A response is
then `[` + bytes without the last two + `]`, and a chunk may be cut behind any newline.

A stream of any other type has no framing: every byte is a boundary, except that text is not cut
inside a UTF-8 sequence.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from headwater.protocol.content_types import is_json, is_text
from headwater.protocol.offsets import (
    Lineage,
    Offset,
    OffsetBeyondTail,
    OffsetInsideMessage,
    PositionRefusal,
)

Buffer = bytes | bytearray | memoryview
Elsewhere = TypeVar("Elsewhere")
"""A part of a stream's bytes that is not in memory."""

SEPARATOR: Final = b",\n"

_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
_BREAKS_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")
_WHITESPACE: Final = b" \t\r\n"
_UTF8_MAX_TAIL: Final = 3
_CUT_STEP: Final = 16 * 1024
_CUT_MAX_STEP: Final = 256 * 1024


class InvalidJson(Struct, frozen=True):
    """The body is not one JSON text in UTF-8."""

    reason: str


class EmptyArray(Struct, frozen=True):
    """The body is `[]`, which appends nothing (PROTOCOL 9.1.3)."""


def frame(body: bytes, media: str) -> bytes | InvalidJson | EmptyArray:
    """Turn a request body into the bytes that the stream stores."""
    return frame_json(body) if is_json(media) else body


def frame_json(body: bytes) -> bytes | InvalidJson | EmptyArray:
    """Check a JSON body, flatten one level of array and store each message on its own line."""
    body = body.strip(_WHITESPACE)
    try:
        if b"\n" in body or b"\r" in body:
            _VALUE.decode(body)  # while it can be seen that no break lies inside a string
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


def render(parts: Sequence[Buffer | Elsewhere], media: str) -> list[Buffer | Elsewhere]:
    """Turn stored bytes into a response body, copying nothing but the brackets.

    Parts that are not in memory stay as they are; the end of the last message is in memory.
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
    assert isinstance(part, bytes | bytearray | memoryview)  # noqa: S101 - as promised above
    return memoryview(part)


def is_boundary(before: int | None, media: str) -> bool:
    """Tell whether a position is the end of a message, given the byte before it."""
    return before is None or not is_json(media) or before == SEPARATOR[-1]


def cut(window: Buffer, media: str) -> int | None:
    """Say how much of a window that goes on past its end may be returned on its own.

    None where the window ends inside its first message: a larger window is needed.
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


def find_cut(
    read: Callable[[int, int], Buffer], begin: int, limit: int, end: int, media: str
) -> int:
    """Find where to cut what lies from `begin` to `end`, of which about `limit` bytes are wanted.

    That is the last boundary within the limit or, where the first message is longer than that, the
    first one behind it. `read(start, end)` gives stored bytes: few of them, near the cut.
    """
    if begin + limit >= end:
        return end
    if is_json(media):
        return _cut_lines(read, begin, begin + limit, end)
    if is_text(media):
        return _cut_text(read, begin, begin + limit, end)
    return begin + limit


def _cut_lines(read: Callable[[int, int], Buffer], begin: int, limit: int, end: int) -> int:
    step = _CUT_STEP
    upto = limit
    while upto > begin:
        start = max(begin, upto - step)
        newline = bytes(read(start, upto)).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        upto = start
        step = min(2 * step, _CUT_MAX_STEP)
    start = limit
    step = _CUT_STEP
    while start < end:
        upto = min(end, start + step)
        newline = bytes(read(start, upto)).find(b"\n")
        if newline >= 0:
            return start + newline + 1
        start = upto
        step = min(2 * step, _CUT_MAX_STEP)
    return end


def _cut_text(read: Callable[[int, int], Buffer], begin: int, limit: int, end: int) -> int:
    first = max(begin, limit - _UTF8_MAX_TAIL)
    window = read(first, min(end, limit + _UTF8_MAX_TAIL))
    at = limit - first
    lead = at
    while lead > 0 and _is_continuation(window[lead]):
        lead -= 1
    complete = lead + _utf8_length(window[lead])
    if complete <= at:
        return limit  # stray continuation bytes: nothing is torn apart here
    if first + lead > begin:
        return first + lead
    # The very first character is longer than the limit: it comes whole, as far as it is there.
    while at < min(complete, len(window)) and _is_continuation(window[at]):
        at += 1
    return first + at


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _utf8_length(lead: int) -> int:
    """Say how many bytes a UTF-8 sequence has that begins with this one."""
    if lead < 0xC0:
        return 1
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def skip_messages(
    read: Callable[[int, int], Buffer], begin: int, end: int, count: int
) -> tuple[int, int]:
    """Go past `count` JSON messages, or as many as there are: to which byte, past how many.

    `read(start, end)` gives stored bytes, a window at a time.
    """
    left = count
    while begin < end:
        upto = min(end, begin + _CUT_MAX_STEP)
        window = bytes(read(begin, upto))
        within = window.count(b"\n")
        if within >= left:
            at = 0
            for _ in range(left):
                at = window.find(b"\n", at) + 1
            return begin + at, count
        left -= within
        begin = upto
    return end, count - left


# Which byte of a stream an offset means: one that is there, and between two messages.

Read = Callable[[int, int], Buffer]
"""Gives the stored bytes of a range, in one piece: few of them."""


def find_position(
    offset: Offset, lineage: Lineage, tail: int, media: str, read: Read
) -> int | PositionRefusal:
    """Find the byte that an offset names in a stream that ends at `tail`."""
    at = lineage.locate(offset)
    if not isinstance(at, int):
        return at
    if at > tail:
        return OffsetBeyondTail(offset, lineage.name(tail))
    if 0 < at < tail and not is_boundary(read(at - 1, at)[0], media):
        return OffsetInsideMessage(offset)
    return at
