"""A cache of snapshots in Memcached.

It counts whole seconds, so an entry may stay there up to a second longer than it was asked to;
whoever takes it looks at its age. Keys have at most 250 bytes and no spaces, so run ids are hashed.
"""

import asyncio
import math
from collections.abc import Awaitable
from hashlib import sha256
from typing import Final, TypeVar
from urllib.parse import urlsplit

import aiomcache

from headwater.errors import CacheUnavailable, SettingsError
from headwater.runs.caching import SnapshotCache

T = TypeVar("T")

_SECONDS: Final = 1.0
"""How long an answer may take: a cache that is slower than the store is none."""
_MAX_BYTES: Final = 1_000_000
"""What a server takes unless it was started with -I."""


class MemcachedCache(SnapshotCache):
    """Keeps snapshots in Memcached, in front of one store (`prefix` tells several apart)."""

    def __init__(self, url: str, *, prefix: str = "headwater:snapshots:") -> None:
        parts = urlsplit(url)
        if parts.scheme != "memcached" or not parts.hostname:
            raise SettingsError("cache", url, "memcached://host:11211")
        self._host, self._port = parts.hostname, parts.port or 11211
        self._prefix = prefix
        self._client: aiomcache.Client | None = None

    async def open(self) -> None:
        if self._client is None:
            self._client = aiomcache.Client(self._host, self._port)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _server(self) -> aiomcache.Client:
        if self._client is None:
            raise CacheUnavailable("Memcached", "it is not open")
        return self._client

    def _key(self, run_id: str) -> bytes:
        return f"{self._prefix}{sha256(run_id.encode()).hexdigest()}".encode()

    async def _in_time(self, answer: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(answer, _SECONDS)
        except (aiomcache.ClientException, OSError, TimeoutError, EOFError) as error:
            reason = str(error) or type(error).__name__
            raise CacheUnavailable("Memcached", reason) from error

    async def get(self, run_id: str) -> bytes | None:
        return await self._in_time(self._server().get(self._key(run_id)))

    async def set(self, run_id: str, document: bytes, seconds: float) -> None:
        if len(document) > _MAX_BYTES:
            await self.drop(run_id)  # what is there is older still
            return
        call = self._server().set(self._key(run_id), document, math.ceil(seconds))
        await self._in_time(call)

    async def drop(self, run_id: str) -> None:
        await self._in_time(self._server().delete(self._key(run_id)))
