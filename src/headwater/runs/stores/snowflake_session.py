"""Sessions with Snowflake: in threads, a few at most, thrown away when they fail."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import snowflake.connector
from snowflake.connector.errors import Error

from headwater.errors import RunError, RunStoreUnavailable, SettingsError, StoreNotOpen

T = TypeVar("T")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,200}")
_MOST: Final = 4
# No keys: standard tables don't enforce them, and nothing here may lean on them.
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS clock (value NUMBER(38, 0) NOT NULL)",
    """CREATE TABLE IF NOT EXISTS runs (
        run_id VARCHAR NOT NULL, status VARCHAR NOT NULL, last_seq NUMBER(38, 0) NOT NULL,
        created_at VARCHAR NOT NULL, updated_at VARCHAR NOT NULL,
        changed NUMBER(38, 0) NOT NULL, deleted BOOLEAN NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS events (
        run_id VARCHAR NOT NULL, run_seq NUMBER(38, 0) NOT NULL,
        idempotency_key VARCHAR NOT NULL, persisted_at VARCHAR NOT NULL, body VARCHAR NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS checkpoints (
        run_id VARCHAR NOT NULL, last_event_seq NUMBER(38, 0) NOT NULL,
        document VARCHAR NOT NULL)""",
)
_IS_THERE: Final = "SELECT max(value) FROM clock"
# Two who make it at once may make two rows: they are updated together, and the greatest counts.
_FIRST: Final = "INSERT INTO clock SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM clock)"


def settings_of(url: str) -> dict[str, Any]:
    """Read what to connect with from `snowflake://user:password@account/database/schema?…`."""
    parts = urlsplit(url)
    names = [name for name in parts.path.split("/") if name]
    if not parts.hostname or not parts.username or len(names) != 2:
        raise SettingsError(
            "run store", "snowflake:", "snowflake://user:password@account/database/schema"
        )
    settings: dict[str, Any] = {
        "account": parts.hostname,
        "user": unquote(parts.username),
        "database": names[0],
        "schema": names[1],
        **dict(parse_qsl(parts.query)),
    }
    if parts.password:
        settings["password"] = unquote(parts.password)
    if "port" in settings:
        settings["port"] = int(settings["port"])
    return settings


class Session:
    """One session; it is used by one thread at a time."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._connection: Any = snowflake.connector.connect(
            **{"login_timeout": 30, "network_timeout": 60, **settings, "paramstyle": "qmark"}
        )

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a query."""
        with self._connection.cursor() as cursor:
            rows: list[tuple[Any, ...]] = cursor.execute(statement, values or None).fetchall()
            return rows

    def do(self, statement: str, *values: object) -> None:
        """Run a statement that gives nothing back."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)

    def do_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement over rows, as one."""
        with self._connection.cursor() as cursor:
            cursor.executemany(statement, [tuple(row) for row in rows])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do what follows as a whole or not at all."""
        self.do("BEGIN")
        try:
            yield
        except BaseException:
            # Without it the transaction would keep its lock until Snowflake gives it up.
            with suppress(Error):
                self.do("ROLLBACK")
            raise
        self.do("COMMIT")

    def close(self) -> None:
        """Say goodbye, if anybody is there."""
        with suppress(Error):
            self._connection.close(retry=False)


class Sessions:
    """A few sessions, each made when it is first needed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        for name in ("database", "schema"):
            if not _NAME.fullmatch(str(settings.get(name, ""))):
                raise SettingsError(name, settings.get(name), "letters, digits, _ and $")
        self._settings = settings
        self._name = f"Snowflake {settings['database']}.{settings['schema']}"
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[Session] = []

    @property
    def is_open(self) -> bool:
        return self._threads is not None

    async def open(self) -> None:
        """Connect, and make the tables where they are missing."""
        self._threads = ThreadPoolExecutor(_MOST, "runs-snowflake")
        try:
            await self.run(self._prepare)
        except BaseException:
            await self.close()
            raise

    def _prepare(self, session: Session) -> None:
        with suppress(Error):
            if session.ask(_IS_THERE)[0][0] is not None:
                return
        place = f"{self._settings['database']}.{self._settings['schema']}"
        session.do(f"CREATE SCHEMA IF NOT EXISTS {place}")
        session.do(f"USE SCHEMA {place}")
        for statement in (*_TABLES, _FIRST):
            session.do(statement)

    async def close(self) -> None:
        """Finish what is under way and let go of everything."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown)
            idle, self._idle = self._idle, []
            await asyncio.gather(*(asyncio.to_thread(session.close) for session in idle))

    async def run(self, work: Callable[[Session], T]) -> T:
        """Do something with a session; it goes on when whoever asked has gone."""
        if self._threads is None:
            raise StoreNotOpen
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._with_session, work)

    def _take(self) -> Session:
        try:
            return self._idle.pop()  # asking first whether there is one would race
        except IndexError:
            return Session(self._settings)

    def _with_session(self, work: Callable[[Session], T]) -> T:
        session: Session | None = None
        try:
            session = self._take()
            result = work(session)
        except RunError:
            if session is not None:
                self._idle.append(session)
            raise
        except (Error, OSError) as error:
            if session is not None:
                session.close()
            reason = " ".join(str(error).split()).rstrip(".")
            raise RunStoreUnavailable(self._name, reason) from error
        self._idle.append(session)
        return result
