"""Connections to PostgreSQL: a pool, transactions that are repeated, and what failures mean."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg import AsyncConnection, IsolationLevel, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool

from headwater.errors import RunStoreUnavailable, SettingsError, StoreNotOpen
from headwater.runs.stores.postgres_schema import prepare

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

_CONNECT_SECONDS: Final = 10
_BUSY_SECONDS: Final = 30.0
"""How long a call waits for a free connection."""
_OPEN_ATTEMPTS: Final = 5
_ATTEMPTS: Final = 50
_TO_REPEAT: Final = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
"""What says that another transaction was in the way and nothing of ours was written."""


def columns(rows: Sequence[tuple[Any, ...]], count: int) -> tuple[list[Any], ...]:
    """Turn rows into arrays, as `unnest` takes them.

    Texts are to be passed as `%b`: as `%s`, every quote in them is escaped, 10 ms for a large one.
    """
    return tuple([row[place] for row in rows] for place in range(count))


class Connections:
    """A pool of connections to one schema."""

    def __init__(self, url: str, schema: str, most: int) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.hostname or 'the local PostgreSQL'}{parts.path}, schema {schema}"
        self._url = url
        self._schema = schema
        self._most = most
        self._pool: AsyncConnectionPool | None = None
        self._calls: set[asyncio.Task[Any]] = set()

    async def open(self, kind: str) -> str:
        """Connect, make the tables where they are missing, and give the id of the installation."""
        conninfo = self._conninfo()
        installation = await self._prepare(conninfo, kind)
        pool = AsyncConnectionPool(
            conninfo,
            min_size=1,
            max_size=self._most,
            kwargs={"autocommit": True},
            configure=_configure,
            open=False,
        )
        await pool.open()
        self._pool = pool
        return installation

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    def _conninfo(self) -> str:
        try:
            conninfo = make_conninfo(self._url, connect_timeout=_CONNECT_SECONDS)
            options = conninfo_to_dict(conninfo).get("options") or ""
            return make_conninfo(
                conninfo, options=f"{options} -c search_path={self._schema}".strip()
            )
        except psycopg.Error as error:
            raise SettingsError("run store", self.name, f"a URL of PostgreSQL ({error})") from None

    async def _prepare(self, conninfo: str, kind: str) -> str:
        for attempt in range(_OPEN_ATTEMPTS):
            try:
                async with await AsyncConnection.connect(conninfo, autocommit=True) as db:
                    return await prepare(db, self._schema, kind)
            except psycopg.Error as error:
                if attempt == _OPEN_ATTEMPTS - 1 or not isinstance(error, errors.OperationalError):
                    raise self._unavailable(error) from error
            await asyncio.sleep(0.1 * (attempt + 1))
        raise AssertionError

    async def close(self) -> None:
        """Finish what is under way and let go of everything."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if self._calls:
            await asyncio.wait(self._calls)
        await pool.close()

    async def read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask one question."""
        async with self._connection(self._opened()) as db:
            return await (await db.execute(statement.encode(), values)).fetchall()

    async def write(self, work: Work[T]) -> T:
        """Do a transaction to its end, also when whoever asked has gone.

        It is done again where another one was in its way.
        """
        call = asyncio.ensure_future(self._repeat(self._opened(), work))
        self._calls.add(call)
        call.add_done_callback(self._done)
        return await asyncio.shield(call)

    def _done(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # it was told to whoever waits; if nobody does, that is no news

    async def _repeat(self, pool: AsyncConnectionPool, work: Work[T]) -> T:
        for attempt in range(_ATTEMPTS):
            try:
                async with self._connection(pool) as db:
                    return await work(db)
            except _TO_REPEAT as error:
                if attempt == _ATTEMPTS - 1:
                    raise self._unavailable(error) from error
            await asyncio.sleep(random.random() * 0.002 * (attempt + 1))
        raise AssertionError

    def _opened(self) -> AsyncConnectionPool:
        if self._pool is None:
            raise StoreNotOpen
        return self._pool

    @asynccontextmanager
    async def _connection(self, pool: AsyncConnectionPool) -> AsyncIterator[AsyncConnection]:
        try:
            async with pool.connection(_BUSY_SECONDS) as db:
                yield db
        except _TO_REPEAT:
            raise
        except psycopg.Error as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> RunStoreUnavailable:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        return RunStoreUnavailable(self.name, reason)


async def _configure(db: AsyncConnection) -> None:
    # The keys are asked for behind the lock: a snapshot from before it would not show them all.
    await db.set_isolation_level(IsolationLevel.READ_COMMITTED)
