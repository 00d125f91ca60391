"""Server-Sent Events: data and control events as bytes (PROTOCOL 5.8).

No space follows `data:`. A client strips one leading space of each line, so adding none keeps a
payload that starts with a space as it is.
"""

import re
from binascii import b2a_base64
from typing import Final

from headwater.protocol.content_types import is_json, is_text
from headwater.protocol.framing import SEPARATOR
from headwater.protocol.offsets import Offset

_LINE_BREAK: Final = re.compile(rb"\r\n|\r|\n")


def data_event(stored: bytes, media: str) -> bytes:
    """Make one data event of stored bytes: a JSON array, lines of text, or base64."""
    if is_json(media):
        lines = b"[" + stored[: -len(SEPARATOR)].replace(b"\n", b"\ndata:") + b"]"
    elif is_text(media):
        # Every line terminator that a client honours starts a new data line, so that no payload
        # can break out of its event.
        lines = _LINE_BREAK.sub(b"\ndata:", stored)
    else:
        lines = b2a_base64(stored, newline=False)
    return b"event: data\ndata:" + lines + b"\n\n"


def control_event(
    next_offset: Offset, cursor: int, *, up_to_date: bool, closed: bool = False
) -> bytes:
    """Make the control event that follows data, tells the position and, at last, closure."""
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
