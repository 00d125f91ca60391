"""Runs in PostgreSQL, numbered by a counter in Redis for each run.

Redis may forget: it restarts empty, or a replica that lags behind takes over, and a counter stands
lower than it did. So every draw also says the highest number that the log has, and the counter is
raised to it first. What is drawn and not committed yet can still be given twice then; the primary
key of the log lets one of them in, and the other draws again.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from psycopg import AsyncConnection
from redis.asyncio import Redis
from redis.exceptions import RedisError

from headwater.errors import RunStoreUnavailable, SettingsError, StoreNotOpen
from headwater.runs.stores.postgres import Head, PostgresRunStore
from headwater.runs.stores.postgres_drawn import DrawnRunStore
from headwater.runs.stores.postgres_url import arguments

_DRAW: Final = """
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if last < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return redis.call('INCRBY', KEYS[1], ARGV[2])
"""
_HIGHEST: Final = """
    SELECT number, (SELECT max(run_seq) FROM events WHERE run = number)
    FROM unnest(%s::bigint[]) AS runs (number)
"""
_SECONDS: Final = 5


class PostgresRedisRunStore(DrawnRunStore):
    """Draws from a counter in Redis."""

    authority: ClassVar[str] = "a counter in Redis for each run, never below the log"
    kind: ClassVar[str] = "redis"

    def __init__(self, url: str, *, redis: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._redis_url = redis
        self._redis: Redis | None = None

    @classmethod
    def _made(cls, url: str, options: dict[str, str]) -> PostgresRunStore:
        if "redis" not in options:
            raise SettingsError(
                "run store", url, "where Redis is, such as ...?redis=redis://localhost:6379/0"
            )
        return cls(url, redis=options["redis"], **arguments(options))

    async def open(self) -> None:
        if self._redis is None:
            try:
                self._redis = Redis.from_url(
                    self._redis_url,
                    socket_timeout=_SECONDS,
                    socket_connect_timeout=_SECONDS,
                )
            except ValueError as error:
                raise SettingsError("redis", self._redis_url, f"a URL ({error})") from None
        await super().open()
        try:
            await self._redis.ping()
        except (RedisError, OSError) as error:
            await self.close()
            raise self._redis_failed(error) from error

    async def close(self) -> None:
        await super().close()
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose()

    def _counters(self) -> Redis:
        if self._redis is None:
            raise StoreNotOpen
        return self._redis

    def _counter(self, run_id: str) -> str:
        return f"headwater:runs:{self.installation}:{run_id}"

    async def _draw(
        self, db: AsyncConnection, heads: Mapping[str, Head], counts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        # The rows say what was committed when the transaction began to look; the log says it now.
        names = {heads[run_id].number: run_id for run_id in counts}
        rows = await db.execute(_HIGHEST, (list(names),))
        highest = {names[number]: last or 0 for number, last in await rows.fetchall()}
        try:
            async with self._counters().pipeline(transaction=False) as script:
                for run_id, count in counts.items():
                    script.eval(_DRAW, 1, self._counter(run_id), highest[run_id], count)
                ends = await script.execute()
        except (RedisError, OSError) as error:
            raise self._redis_failed(error) from error
        return {
            run_id: list(range(last - count + 1, last + 1))
            for (run_id, count), last in zip(counts.items(), ends, strict=True)
        }

    async def _forget_numbers(self, db: AsyncConnection, run_id: str, number: int) -> None:
        del db, number
        try:
            await self._counters().delete(self._counter(run_id))
        except (RedisError, OSError) as error:
            raise self._redis_failed(error) from error

    def _redis_failed(self, error: Exception) -> RunStoreUnavailable:
        return RunStoreUnavailable(f"{self._db.name}, numbered by Redis", str(error) or repr(error))
