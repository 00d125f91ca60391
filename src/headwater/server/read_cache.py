"""Answers to catch-up reads, kept while their stream has not changed.

Many clients read the same stream from the same place: the second one gets the bytes of the first,
compressed as they were. An answer is known to be current by identity: a store describes a stream
that has not changed with the very same `StreamInfo`. Streams with a sliding TTL are left out, since
reading them is a change.
"""

from collections import OrderedDict
from typing import Final

from headwater.server.messages import Request, Response
from headwater.storage.store import StreamInfo

MAX_ANSWER_BYTES: Final = 64 * 1024
_MAX_KEY_BYTES: Final = 4096
_ANSWER_OVERHEAD: Final = 1024

Key = tuple[str, str, bytes | None]


class ReadCache:
    """A bounded number of bytes of answers, the least recently used dropped first."""

    __slots__ = ("_answers", "_bytes", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._answers: OrderedDict[Key, tuple[StreamInfo, Response]] = OrderedDict()

    @staticmethod
    def key(request: Request) -> Key | None:
        """Name what a request asks for; None where the answer depends on more than that."""
        head = request.head
        if b"if-none-match" in head.headers:
            return None
        return (head.url_path, head.query, head.headers.get(b"accept-encoding"))

    def find(self, key: Key) -> tuple[StreamInfo, Response] | None:
        """Give the last answer; it holds if the stream is still described by that `StreamInfo`."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def keep(self, key: Key, info: StreamInfo, response: Response) -> None:
        """Remember an answer for the next one who asks the same."""
        if response.length > MAX_ANSWER_BYTES or info.config.expiry.ttl is not None:
            return
        if _length(key) > _MAX_KEY_BYTES:  # a key is chosen by a client, and may be mostly junk
            return
        self.drop(key)
        self._answers[key] = (info, response)
        self._bytes += _cost(key, response)
        while self._bytes > self._limit:
            self.drop(next(iter(self._answers)))

    def drop(self, key: Key) -> None:
        """Forget an answer that no longer holds."""
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._bytes -= _cost(key, answer[1])


def _length(key: Key) -> int:
    url_path, query, accept_encoding = key
    return len(url_path) + len(query) + len(accept_encoding or b"")


def _cost(key: Key, response: Response) -> int:
    return _ANSWER_OVERHEAD + _length(key) + response.length
