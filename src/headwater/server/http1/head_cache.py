"""Request heads that were parsed before, by their very bytes.

The same bytes parse to the same head, so a repeated one is looked up instead. Only heads whose
meaning lies in their bytes alone are kept: nothing that the parser or the connection acts on beyond
a plain body of a known length.
"""

from typing import Final

from headwater.server.messages import Head

_LIMIT: Final = 8 * 1024 * 1024
_MAX_HEAD_BYTES: Final = 2048
_MAX_BODY_BYTES: Final = 64 * 1024
_HEAD_OVERHEAD: Final = 1024
_ITEM_OVERHEAD: Final = 256
"""What objects cost beside their bytes: a head, and each of its headers and query parameters."""
_UNREPEATED: Final = frozenset(
    {
        # These make a head mean more than a plain request with a body.
        b"transfer-encoding",
        b"expect",
        b"upgrade",
        # These differ with every request: keeping them would only push others out.
        b"producer-seq",
        b"stream-seq",
    }
)


class HeadCache:
    """Up to a limit of bytes; all are forgotten when it is reached, and come back as they recur."""

    __slots__ = ("_bytes", "_heads")

    def __init__(self) -> None:
        self._bytes = 0
        self._heads: dict[bytes, tuple[Head, int]] = {}

    def find(self, data: bytes, body_bytes: int) -> Head | None:
        """Give the head of these bytes, if it announces a body of just this length."""
        known = self._heads.get(data)
        if known is None or known[1] != body_bytes:
            return None
        return known[0]

    def add(self, data: bytes, body_bytes: int, head: Head) -> None:
        """Remember a head that was parsed from these bytes, followed by a body of this length."""
        headers = head.headers
        if (
            len(data) > _MAX_HEAD_BYTES
            or body_bytes > _MAX_BODY_BYTES
            or not _UNREPEATED.isdisjoint(headers)
            or headers.get(b"content-length", b"0") != b"%d" % body_bytes
        ):
            return
        # The bytes are there as the key, as what was parsed, and as what was made of that.
        items = len(headers) + head.query.count("&")
        cost = _HEAD_OVERHEAD + 3 * len(data) + _ITEM_OVERHEAD * items
        if self._bytes + cost > _LIMIT:
            self._heads.clear()
            self._bytes = 0
        self._bytes += cost
        self._heads[data] = (head, body_bytes)
