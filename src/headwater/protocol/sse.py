"""Server-Sent Events: data and control events as bytes (PROTOCOL 5.8).

A client removes one leading space from the value of a line. Only a line that begins with a space is
therefore written with another one: the public conformance suite expects no space after `data:`.
"""

from binascii import b2a_base64
from typing import Final

from headwater.protocol.content_types import is_json, is_text
from headwater.protocol.framing import SEPARATOR
from headwater.protocol.offsets import Offset

_LINE: Final = b"\ndata:"


def data_event(stored: bytes, media: str) -> bytes:
    """Encode stored bytes as one data event: a JSON array, lines of text, or base64."""
    if is_json(media):
        data = _LINE + b"[" + stored[: -len(SEPARATOR)].replace(b"\n", _LINE) + b"]"
    elif is_text(media):
        data = _text(stored)
    else:
        data = _LINE + b2a_base64(stored, newline=False)
    return b"event: data" + data + b"\n\n"


def _text(stored: bytes) -> bytes:
    """Begin a data line after every line terminator, so that no payload can end its event."""
    if b"\r" in stored:
        stored = stored.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return (_LINE + stored.replace(b"\n", _LINE)).replace(_LINE + b" ", _LINE + b"  ")


def control_event(
    next_offset: Offset, cursor: int, *, up_to_date: bool, closed: bool = False
) -> bytes:
    """Encode the control event after data: the next offset and, at the end, the closure."""
    if closed:
        fields = '"upToDate":true,"streamClosed":true'
    elif up_to_date:
        fields = f'"streamCursor":"{cursor}","upToDate":true'
    else:
        fields = f'"streamCursor":"{cursor}"'
    return b'event: control\ndata:{"streamNextOffset":"%b",%b}\n\n' % (
        str(next_offset).encode(),
        fields.encode(),
    )
