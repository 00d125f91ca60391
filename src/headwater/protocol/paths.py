"""Stream paths: which URL paths are valid, and which streams they name.

A path is the part of the URL after the root (`/v1/stream/`), percent-decoded. A path that a proxy,
a file system or a careless join could interpret as another path is refused (PROTOCOL 12.2).
"""

from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct

RESERVED: Final = "__ds"
"""The first segment that belongs to the control APIs (PROTOCOL 6)."""

DAMAGED_PATH: Final = f"{RESERVED}/damaged/{{}}"
"""The path, by number, of a stream that a repair has set apart: no request can name it."""

_MAX_KEPT: Final = 256
"""Longer paths are not cached: clients choose them freely."""


class BadPath(Struct, frozen=True):
    """The path can't name a stream."""

    reason: str


class NotAStream(Struct, frozen=True):
    """The path is not below the root of the streams."""

    root: str


def parse_path(url_path: str, root: str, max_bytes: int) -> str | BadPath | NotAStream:
    """Return the stream that a URL path names; `root` begins and ends with a slash."""
    return (_known if len(url_path) <= _MAX_KEPT else _parse)(url_path, root, max_bytes)


def _parse(url_path: str, root: str, max_bytes: int) -> str | BadPath | NotAStream:
    if not url_path.startswith(root):
        return NotAStream(root)
    encoded = url_path[len(root) :]
    if len(encoded) > 3 * max_bytes:
        return BadPath(f"it is longer than {max_bytes} bytes")
    segments = []
    for part in encoded.split("/"):
        try:
            segment = unquote_to_bytes(part).decode("utf-8") if "%" in part else part
        except UnicodeDecodeError:
            return BadPath("it is not UTF-8")
        if segment in {"", ".", ".."}:
            return BadPath("it has an empty, '.' or '..' segment")
        if "/" in segment or "\\" in segment or not segment.isprintable():
            return BadPath("a segment holds a slash, a backslash or a control character")
        segments.append(segment)
    path = "/".join(segments)
    if len(path.encode()) > max_bytes:
        return BadPath(f"it is longer than {max_bytes} bytes")
    if segments[0] == RESERVED:
        return BadPath(f"'{RESERVED}' is reserved")
    return path


_known: Final = lru_cache(maxsize=16384)(_parse)


def url_path(path: str, root: str) -> str:
    """Return the URL path of a stream."""
    return root + quote(path, safe="/~!$&'()*+,;=:@")
