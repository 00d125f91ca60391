"""Content codings: which of ours a client prefers (RFC 9110, 12.5.3)."""

from functools import lru_cache
from typing import Final

CODINGS: Final = ("zstd", "br", "gzip", "deflate")
"""In our order of preference: speed for size, as measured on JSON."""

_ALIASES: Final = {"x-gzip": "gzip"}
_MAX_KEPT: Final = 256
"""Longer values are not remembered: they come from clients, who choose them freely."""


def negotiate(accept_encoding: str) -> str | None:
    """Choose the coding for a response, or None for none."""
    return (
        _known(accept_encoding) if len(accept_encoding) <= _MAX_KEPT else _choose(accept_encoding)
    )


def _choose(accept_encoding: str) -> str | None:
    quality: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.strip().partition(";")
        quality[_ALIASES.get(name.strip(), name.strip())] = _quality(parameters)
    fallback = quality.get("*", 0.0)
    best = max(CODINGS, key=lambda coding: quality.get(coding, fallback))
    return best if quality.get(best, fallback) > 0 else None


_known: Final = lru_cache(maxsize=256)(_choose)


def _quality(parameters: str) -> float:
    key, _, value = parameters.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        return min(1.0, max(0.0, float(value)))
    except ValueError:
        return 0.0
