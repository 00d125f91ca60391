"""Answers to catch-up reads, kept while they hold.

Many clients read the same stream from the same place: the second one gets the bytes of the first,
compressed as they were. What lies before the tail never changes, so such an answer holds as long as
the stream does; one that reaches the tail holds while the stream has not changed, which is known by
identity: a store describes an unchanged stream with the very same `StreamInfo`. Streams with a
sliding TTL are left out, since reading them is a change.

A small answer is kept at once, a long one when it is asked for again: a reader who goes once
through a long stream would only push out what others come back for. Where a store has files, a long
answer is better sent from there, and is kept only if it was compressed.
"""

from collections import OrderedDict
from typing import Final

from headwater.server.messages import Request, Response
from headwater.storage.store import Chunk, StreamInfo

SMALL_ANSWER_BYTES: Final = 64 * 1024
_MAX_KEY_BYTES: Final = 4096
_ANSWER_OVERHEAD: Final = 1024
_MAX_SHARE: Final = 4
"""No answer takes more than this part of the cache."""
_MAX_SEEN: Final = 4096

Key = tuple[str, str, bytes | None]


class CachedResponse:
    """A response, and what it holds for."""

    __slots__ = ("_before_tail", "_info", "response")

    def __init__(self, chunk: Chunk, response: Response) -> None:
        self._info = chunk.info
        self._before_tail = not chunk.up_to_date
        self.response = response

    def is_fresh(self, now: object) -> bool:
        """Tell whether it is still right, given how the store describes the stream now."""
        if now is self._info:
            return True
        return (
            self._before_tail
            and isinstance(now, StreamInfo)
            and now.incarnation == self._info.incarnation
        )


class ResponseCache:
    """A bounded number of bytes of answers, the least recently used dropped first."""

    __slots__ = ("_answers", "_bytes", "_has_files", "_limit", "_seen")

    def __init__(self, limit: int, *, has_files: bool = False) -> None:
        self._has_files = has_files
        self._limit = limit
        self._bytes = 0
        self._answers: OrderedDict[Key, CachedResponse] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()
        """Hashes of what was asked for: two that agree by chance only keep one too early."""

    @staticmethod
    def key(request: Request) -> Key | None:
        """Name what a request asks for; None where the answer depends on more than that."""
        head = request.head
        if b"if-none-match" in head.headers:
            return None
        return (head.url_path, head.query, head.headers.get(b"accept-encoding"))

    def find(self, key: Key) -> CachedResponse | None:
        """Give the last answer; whoever uses it asks first whether it holds."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def add(self, key: Key, chunk: Chunk, response: Response) -> None:
        """Remember an answer for the next one who asks the same."""
        length = response.length
        if length * _MAX_SHARE > self._limit or chunk.info.config.expiry.ttl is not None:
            return
        if _length(key) > _MAX_KEY_BYTES:  # a key is chosen by a client, and may be mostly junk
            return
        if length > SMALL_ANSWER_BYTES:
            compressed = any(name == b"content-encoding" for name, _ in response.headers)
            if not compressed and self._has_files:
                return
            if not self._was_seen(key):
                return
        if response.body:
            # In one piece it is sent with the least effort, and keeps no more than itself alive.
            response.body = (response.joined(),)
        self.drop(key)
        self._answers[key] = CachedResponse(chunk, response)
        self._bytes += _cost(key, response)
        while self._bytes > self._limit:
            self.drop(next(iter(self._answers)))

    def drop(self, key: Key) -> None:
        """Forget an answer that no longer holds."""
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._bytes -= _cost(key, answer.response)

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
    return _ANSWER_OVERHEAD + _length(key) + response.length
