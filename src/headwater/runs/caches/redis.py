"""A cache of snapshots in Redis: entries expire there by themselves."""

from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headwater.errors import CacheUnavailable, SettingsError
from headwater.runs.caching import SnapshotCache

_SECONDS: Final = 1.0
"""How long an answer may take: a cache that is slower than the store is none."""


class RedisCache(SnapshotCache):
    """Keeps snapshots in Redis, in front of one store (`prefix` tells several apart)."""

    def __init__(self, url: str, *, prefix: str = "headwater:snapshots:") -> None:
        self._url = url
        self._prefix = prefix
        self._redis: Redis | None = None

    async def open(self) -> None:
        if self._redis is None:
            try:
                self._redis = Redis.from_url(
                    self._url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS
                )
            except ValueError as error:
                raise SettingsError("cache", self._url, f"redis://host:port/0 ({error})") from None

    async def close(self) -> None:
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose()

    def _server(self) -> Redis:
        if self._redis is None:
            raise CacheUnavailable("Redis", "it is not open")
        return self._redis

    async def get(self, run_id: str) -> bytes | None:
        try:
            found = await self._server().get(self._prefix + run_id)
        except (RedisError, OSError) as error:
            raise CacheUnavailable("Redis", str(error)) from error
        return found.encode() if isinstance(found, str) else found

    async def set(self, run_id: str, document: bytes, seconds: float) -> None:
        try:
            await self._server().set(
                self._prefix + run_id, document, px=max(1, int(seconds * 1000))
            )
        except (RedisError, OSError) as error:
            raise CacheUnavailable("Redis", str(error)) from error

    async def drop(self, run_id: str) -> None:
        try:
            await self._server().delete(self._prefix + run_id)
        except (RedisError, OSError) as error:
            raise CacheUnavailable("Redis", str(error)) from error
