"""A cache of responses to catch-up reads.

Many clients read the same stream from the same offset: all but the first get the cached bytes,
which may be compressed. Data before the tail never changes, so a response that ends before the tail
is fresh as long as the stream exists. A response that reaches the tail is fresh until the stream
changes. This is tested by identity: a store returns the same `StreamInfo` object for an unchanged
stream. Streams with a sliding TTL are not cached, because reading them changes them.

A small response is cached at once, a large one when it is requested again: otherwise a single
reader of a long stream would evict what others request repeatedly. If the store has files, a large
response is sent from the file, and is cached only if it is compressed.
"""

from collections import OrderedDict
from typing import Final

from headwater.server.messages import Request, Response
from headwater.storage.store import Chunk, StreamInfo

SMALL_RESPONSE_BYTES: Final = 64 * 1024
_MAX_KEY_BYTES: Final = 4096
_OVERHEAD: Final = 1024
_MAX_SHARE: Final = 4
"""The largest response takes one part in this many of the cache: a quarter."""
_MAX_SEEN: Final = 4096

Key = tuple[str, str, bytes | None]


class CachedResponse:
    """A response, and the state of the stream that it was read from."""

    __slots__ = ("_before_tail", "_info", "response")

    def __init__(self, chunk: Chunk, response: Response) -> None:
        self._info = chunk.info
        self._before_tail = not chunk.up_to_date
        self.response = response

    def is_fresh(self, now: object) -> bool:
        """Return whether the response is still correct, given what the store returns now."""
        if now is self._info:
            return True
        return (
            self._before_tail
            and isinstance(now, StreamInfo)
            and now.incarnation == self._info.incarnation
        )


class ResponseCache:
    """Responses up to a number of bytes; the least recently used are evicted first."""

    __slots__ = ("_bytes", "_limit", "_responses", "_seen", "_sends_files")

    def __init__(self, limit: int, *, sends_files: bool = False) -> None:
        self._sends_files = sends_files
        self._limit = limit
        self._bytes = 0
        self._responses: OrderedDict[Key, CachedResponse] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()
        """Hashes of requested keys; a collision only caches a response too early."""

    @staticmethod
    def key(request: Request) -> Key | None:
        """Return the key of a request, or None if its response depends on more than the key."""
        head = request.head
        if b"if-none-match" in head.headers:
            return None
        return (head.url_path, head.query, head.headers.get(b"accept-encoding"))

    def find(self, key: Key) -> CachedResponse | None:
        """Return the cached response; the caller checks whether it is fresh."""
        cached = self._responses.get(key)
        if cached is not None:
            self._responses.move_to_end(key)
        return cached

    def add(self, key: Key, chunk: Chunk, response: Response) -> None:
        """Cache a response, if it qualifies."""
        length = response.length
        if length * _MAX_SHARE > self._limit or chunk.info.config.expiry.ttl is not None:
            return
        if _length(key) > _MAX_KEY_BYTES:  # clients choose the key, which may have any length
            return
        if length > SMALL_RESPONSE_BYTES:
            compressed = any(name == b"content-encoding" for name, _ in response.headers)
            if not compressed and self._sends_files:
                return
            if not self._was_seen(key):
                return
        if response.body:
            # One piece is the cheapest to send, and keeps no larger buffer alive.
            response.body = (response.joined(),)
        self.drop(key)
        self._responses[key] = CachedResponse(chunk, response)
        self._bytes += _cost(key, response)
        while self._bytes > self._limit:
            self.drop(next(iter(self._responses)))

    def drop(self, key: Key) -> None:
        """Remove a response."""
        cached = self._responses.pop(key, None)
        if cached is not None:
            self._bytes -= _cost(key, cached.response)

    def _was_seen(self, key: Key) -> bool:
        mark = hash(key)
        if mark in self._seen:
            del self._seen[mark]
            return True
        self._seen[mark] = None
        if len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)
        return False


def _length(key: Key) -> int:
    url_path, query, accept_encoding = key
    return len(url_path) + len(query) + len(accept_encoding or b"")


def _cost(key: Key, response: Response) -> int:
    return _OVERHEAD + _length(key) + response.length
