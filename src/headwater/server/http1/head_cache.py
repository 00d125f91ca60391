"""A cache of parsed request heads, keyed by their bytes.

The same bytes parse to the same head, so a repeated head is looked up instead of parsed. A head is
cached only if its bytes alone determine how the request is received: a body of a known length, and
nothing else that the parser or the connection has to act on.
"""

from typing import Final

from headwater.server.messages import Head

_LIMIT: Final = 8 * 1024 * 1024
_MAX_HEAD_BYTES: Final = 2048
_MAX_BODY_BYTES: Final = 64 * 1024
_HEAD_OVERHEAD: Final = 1024
_ITEM_OVERHEAD: Final = 256
"""Estimated bytes of the objects: a head, and each of its headers and query parameters."""
_UNREPEATED: Final = frozenset(
    {
        # The request is received in another way than a plain body of a known length.
        b"transfer-encoding",
        b"expect",
        b"upgrade",
        # The value differs in every request: caching the head would only evict others.
        b"producer-seq",
        b"stream-seq",
    }
)


class HeadCache:
    """A cache of bounded size, which is cleared when it is full."""

    __slots__ = ("_bytes", "_heads")

    def __init__(self) -> None:
        self._bytes = 0
        self._heads: dict[bytes, tuple[Head, int]] = {}

    def find(self, data: bytes, body_bytes: int) -> Head | None:
        """Return the head parsed from these bytes, if its body has this length."""
        known = self._heads.get(data)
        if known is None or known[1] != body_bytes:
            return None
        return known[0]

    def add(self, data: bytes, body_bytes: int, head: Head) -> None:
        """Cache a head that was parsed from these bytes, with a body of this length."""
        headers = head.headers
        if (
            len(data) > _MAX_HEAD_BYTES
            or body_bytes > _MAX_BODY_BYTES
            or not _UNREPEATED.isdisjoint(headers)
            or headers.get(b"content-length", b"0") != b"%d" % body_bytes
        ):
            return
        # The bytes are stored three times: as the key, as headers, and as values parsed from them.
        items = len(headers) + head.query.count("&")
        cost = _HEAD_OVERHEAD + 3 * len(data) + _ITEM_OVERHEAD * items
        if self._bytes + cost > _LIMIT:
            self._heads.clear()
            self._bytes = 0
        self._bytes += cost
        self._heads[data] = (head, body_bytes)
