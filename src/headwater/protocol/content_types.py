"""Content types, which determine the framing (PROTOCOL 9), and content codings of responses."""

import re
from functools import lru_cache
from typing import Final

DEFAULT: Final = "application/octet-stream"
JSON: Final = "application/json"

_TCHARS: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE: Final = re.compile(rf"{_TCHARS}/{_TCHARS}", re.ASCII)
_MAX_CACHED_LENGTH: Final = 256
"""Longer header values are not cached: clients choose them freely."""


def media_type(content_type: str) -> str | None:
    """Return the media type of a header value in lower case, or None if it is malformed."""
    parse = _parse_cached if len(content_type) <= _MAX_CACHED_LENGTH else _parse
    return parse(content_type)


def _parse(content_type: str) -> str | None:
    essence = content_type.partition(";")[0].strip().lower()
    return essence if _MEDIA_TYPE.fullmatch(essence) else None


_parse_cached: Final = lru_cache(maxsize=1024)(_parse)


def is_json(media: str) -> bool:
    """Return whether a stream of this media type is in JSON mode."""
    return media == JSON


def holds_json(content_type: str) -> bool:
    """Return whether a stream of this content type is in JSON mode."""
    return media_type(content_type) == JSON


def is_text(media: str) -> bool:
    """Return whether SSE carries this media type as text rather than base64 (PROTOCOL 5.8)."""
    return media == JSON or media.startswith("text/")


# Content codings: which one a client prefers (RFC 9110, 12.5.3)

CODINGS: Final = ("zstd", "br", "gzip", "deflate")
"""In the server's order of preference: the best ratio of speed to size, as measured on JSON."""

_ALIASES: Final = {"x-gzip": "gzip"}


def negotiate(accept_encoding: str) -> str | None:
    """Return the coding for a response, or None if it is sent uncompressed."""
    choose = _choose_cached if len(accept_encoding) <= _MAX_CACHED_LENGTH else _choose
    return choose(accept_encoding)


def _choose(accept_encoding: str) -> str | None:
    quality: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.strip().partition(";")
        quality[_ALIASES.get(name.strip(), name.strip())] = _quality(parameters)
    fallback = quality.get("*", 0.0)
    best = max(CODINGS, key=lambda coding: quality.get(coding, fallback))
    return best if quality.get(best, fallback) > 0 else None


_choose_cached: Final = lru_cache(maxsize=256)(_choose)


def _quality(parameters: str) -> float:
    key, _, value = parameters.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        return min(1.0, max(0.0, float(value)))
    except ValueError:
        return 0.0
