"""The context of all handlers: the store, the settings, the clock and a source of jitter."""

import random
import time
from collections.abc import Callable
from typing import Final

from headwater.protocol.offsets import Offset
from headwater.protocol.paths import BadPath, NotAStream, parse_path
from headwater.server.memory_budget import divide
from headwater.server.messages import Headers
from headwater.server.response_cache import ResponseCache
from headwater.server.settings import Settings
from headwater.storage.store import Store, StreamInfo

CACHE_CONTROL: Final = {
    "public": b"public, max-age=60, stale-while-revalidate=300",
    "private": b"private, max-age=60, stale-while-revalidate=300",
    "no-store": b"no-store",
}

_COPIED_BYTES: Final = 1024 * 1024


class Context:
    """Shared by all requests of one application."""

    __slots__ = (
        "cache_control",
        "clock",
        "copied_bytes",
        "drain_callbacks",
        "draining",
        "jitter",
        "responses",
        "settings",
        "store",
    )

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.jitter = jitter
        self.cache_control = CACHE_CONTROL[settings.cache]
        self.copied_bytes = min(settings.chunk_bytes, _COPIED_BYTES)
        """Largest chunk that is copied in memory, rather than sent from files."""
        cache_bytes = (
            settings.read_cache_bytes if settings.in_memory else divide(settings).response_bytes
        )
        self.responses = ResponseCache(cache_bytes, sends_files=store.sends_files)
        self.draining = False
        self.drain_callbacks: set[Callable[[], None]] = set()
        """Callbacks that end live readers when the server stops."""

    def stream_at(self, url_path: str) -> str | BadPath | NotAStream:
        """Return the stream path that a URL path names, or why it names none."""
        return parse_path(url_path, self.settings.root, self.settings.max_path_bytes)

    def drain(self) -> None:
        """End live readers, including those that begin later."""
        self.draining = True
        for end in tuple(self.drain_callbacks):
            end()


def encode_offset(offset: Offset) -> bytes:
    """Return an offset as a header value."""
    return b"%016d_%016d" % offset


def position_headers(info: StreamInfo, next_offset: Offset) -> Headers:
    """Return the headers that identify the stream and the next offset."""
    return [
        (b"content-type", info.config.content_type.encode("latin-1")),
        (b"stream-next-offset", encode_offset(next_offset)),
        (b"stream-incarnation", b"%d" % info.incarnation),
    ]
