"""Stream paths: which URL paths are valid, and which streams they name.

A path is the part of the URL after the root (`/v1/stream/`), percent-decoded. A path is refused if
a proxy, a file system or a careless join could interpret it as another one (PROTOCOL 12.2).
"""

from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct

DEFAULT_PORT: Final = 4437
DEFAULT_ROOT: Final = "/v1/stream/"
DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
"""The URL of a server with the default settings."""

RESERVED: Final = "__ds"
"""The first segment of the paths of the control APIs (PROTOCOL 6); no stream can have it."""

DAMAGED_PATH: Final = f"{RESERVED}/damaged/{{}}"
"""The path, by number, of a damaged stream that a repair has replaced; no request can name it."""

_MAX_CACHED_LENGTH: Final = 256
"""Longer paths are not cached: clients choose them freely."""


class BadPath(Struct, frozen=True):
    """The path can't name a stream."""

    reason: str


class NotAStream(Struct, frozen=True):
    """The path is not below the root of the streams."""

    root: str


def parse_path(url_path: str, root: str, max_bytes: int) -> str | BadPath | NotAStream:
    """Return the stream that a URL path names; `root` begins and ends with a slash."""
    parse = _parse_cached if len(url_path) <= _MAX_CACHED_LENGTH else _parse
    return parse(url_path, root, max_bytes)


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


_parse_cached: Final = lru_cache(maxsize=16384)(_parse)


def url_path(path: str, root: str) -> str:
    """Return the URL path of a stream."""
    return root + quote(path, safe="/~!$&'()*+,;=:@")
