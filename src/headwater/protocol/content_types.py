"""Content types: what makes two of them the same, and what they mean for framing (PROTOCOL 9)."""

import re
from functools import lru_cache
from typing import Final

DEFAULT: Final = "application/octet-stream"
JSON: Final = "application/json"

_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FORM: Final = re.compile(rf"{_WORD}/{_WORD}", re.ASCII)
_MAX_KEPT: Final = 256
"""Longer values are not remembered: they come from clients, who choose them freely."""


def media_type(content_type: str) -> str | None:
    """Reduce a header value to its media type in lower case, or None where it has no such form."""
    return _known(content_type) if len(content_type) <= _MAX_KEPT else _reduce(content_type)


def _reduce(content_type: str) -> str | None:
    essence = content_type.partition(";")[0].strip().lower()
    return essence if _FORM.fullmatch(essence) else None


_known: Final = lru_cache(maxsize=1024)(_reduce)


def is_json(media: str) -> bool:
    """Tell whether a stream of this media type is in JSON mode."""
    return media == JSON


def is_text(media: str) -> bool:
    """Tell whether SSE carries this media type as text rather than base64 (PROTOCOL 5.8)."""
    return media == JSON or media.startswith("text/")
