"""Runs in one SQLite file: the embedded default.

The run's row is its head: a transaction that begins by taking the write lock reads it, numbers the
events behind it and writes both. SQLite lets one writer in at a time, so assignment and commit are
serialised, also between processes: numbers have no gaps, and nothing appears below what was read.

Commits are grouped: while one transaction is being synced in the writer's thread, the calls that
arrive meanwhile wait and form the next one. Each call is still all or nothing, since it is decided
before anything of it is written, and what fails then fails the transaction for all of them.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from headwater.errors import RunDeleted, RunError, RunStoreUnavailable, SettingsError, StoreNotOpen
from headwater.runs.events import Document, StoredEvent, instant_of, instant_text, stored_event
from headwater.runs.reducer import status_after
from headwater.runs.store import (
    PAGE,
    AppendResult,
    Changes,
    Checkpoint,
    RunInfo,
    RunPage,
    RunStore,
    check_limit,
    check_page,
    cursor_of,
    parse_cursor,
)
from headwater.runs.stores.filters import conditions
from headwater.runs.stores.sqlite_checkpoints import Checkpoints, delete, load
from headwater.runs.stores.sqlite_schema import connect, prepare, unavailable
from headwater.runs.values import RunStatus

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]
"""Something to do within a transaction; raises only what concerns nobody else."""

_MAX_GROUP: Final = 512
"""Calls that share a transaction at most: each of them waits for the last."""
_COLUMNS: Final = "run_id, status, last_seq, created_at, updated_at, deleted"
_FETCH: Final = """
    SELECT body, run_seq, persisted_at FROM events
    WHERE run = (SELECT number FROM runs WHERE run_id = ?) AND run_seq > ?
    ORDER BY run_seq LIMIT ?
"""
_NEW_RUN: Final = """
    INSERT INTO runs (run_id, status, last_seq, created_at, updated_at, changed)
    VALUES (?, 'PENDING', 0, ?, ?, (SELECT coalesce(max(changed), 0) + 1 FROM runs))
"""
_NEW_HEAD: Final = """
    UPDATE runs SET status = ?, last_seq = ?, updated_at = ?,
        changed = (SELECT coalesce(max(changed), 0) + 1 FROM runs) WHERE number = ?
"""
_TOMBSTONE: Final = """
    UPDATE runs SET deleted = 1, updated_at = ?,
        changed = (SELECT coalesce(max(changed), 0) + 1 FROM runs) WHERE number = ?
"""


class SqliteRunStore(RunStore):
    """Keeps runs in a file, in WAL mode, synced at each commit unless `durable` is False."""

    authority: ClassVar[str] = "the run's row, read and written under SQLite's write lock"
    gaps_are_final: ClassVar[bool] = True
    poll_seconds: ClassVar[float] = 0.05

    def __init__(self, path: Path | str, *, durable: bool = True) -> None:
        self.path = Path(path)
        self._durable = durable
        self._writing: ThreadPoolExecutor | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._writer: sqlite3.Connection
        self._reader: sqlite3.Connection
        self._waiting: list[tuple[Job, asyncio.Future[Any]]] = []
        self._checkpoints = Checkpoints()
        self._idle = asyncio.Event()
        """Whether nothing is being committed."""
        self._idle.set()
        self._news = asyncio.Event()

    @classmethod
    def from_url(cls, url: str) -> "SqliteRunStore":
        path = url.partition(":")[2].removeprefix("//")
        if not path or path == ":memory:":
            raise SettingsError("run store", url, "a file, such as sqlite:runs.db, or memory:")
        return cls(path)

    async def open(self) -> None:
        if self._writing is not None:
            return
        writing = ThreadPoolExecutor(1, "runs-write")
        reading = ThreadPoolExecutor(1, "runs-read")
        loop = asyncio.get_running_loop()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            await loop.run_in_executor(writing, self._connect)
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
        except OSError as error:
            raise RunStoreUnavailable(f"'{self.path}'", error.strerror or str(error)) from error
        else:
            self._writing, self._reading = writing, reading
        finally:
            if self._writing is None:
                writing.shutdown()
                reading.shutdown()

    def _connect(self) -> None:
        self._writer = connect(self.path, durable=self._durable)
        try:
            prepare(self._writer, self.path)
            self._reader = connect(self.path, durable=self._durable)
        except BaseException:
            self._writer.close()
            raise

    async def close(self) -> None:
        writing, reading = self._writing, self._reading
        if writing is None or reading is None:
            return
        self._writing = self._reading = None
        await self._idle.wait()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(reading, self._reader.close)
        await loop.run_in_executor(writing, self._writer.close)
        writing.shutdown()
        reading.shutdown()

    def limit_pages(self, pages: int) -> None:
        """Let the file grow to so many pages at most; more is refused as a full disk is."""
        self._writer.execute(f"PRAGMA max_page_count = {int(pages)}")

    # Appending

    async def _append(self, run_id: str, documents: Sequence[Document]) -> list[AppendResult]:
        return await self._write(lambda db: _append(db, run_id, documents))

    async def delete_run(self, run_id: str) -> bool:
        return await self._write(lambda db: _delete(db, run_id))

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        await self._write(lambda db: self._checkpoints.save(db, checkpoints))

    async def _write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Have something done in the next transaction, and return once that is committed."""
        if self._writing is None:
            raise StoreNotOpen
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._waiting.append((job, done))
        if self._idle.is_set():
            self._commit_next(loop, self._writing)
        return await done

    def _commit_next(self, loop: asyncio.AbstractEventLoop, writing: ThreadPoolExecutor) -> None:
        """Have what waits committed as one group; when it is done, the next one begins."""
        group = self._waiting[:_MAX_GROUP]
        del self._waiting[:_MAX_GROUP]
        self._idle.clear()
        jobs = [job for job, _ in group]

        def commit() -> None:
            outcomes = self._transact(jobs)
            loop.call_soon_threadsafe(self._committed, loop, writing, group, outcomes)

        # Without a task and a future of the executor between: each would cost a turn of the loop.
        writing.submit(commit)

    def _committed(
        self,
        loop: asyncio.AbstractEventLoop,
        writing: ThreadPoolExecutor,
        group: list[tuple[Job, asyncio.Future[Any]]],
        outcomes: list[Any],
    ) -> None:
        if self._waiting:
            self._commit_next(loop, writing)
        else:
            self._idle.set()
        self._news.set()
        self._news = asyncio.Event()
        for (_, done), outcome in zip(group, outcomes, strict=True):
            if done.done():  # whoever asked has gone; it is done all the same
                continue
            if isinstance(outcome, Exception):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)

    def _transact(self, jobs: list[Job]) -> list[Any]:
        """Run jobs in one transaction, in the writer's thread; gives results, or why there is none.

        A job raises a `RunError` before it writes anything. Whatever else is raised undoes all.
        """
        db = self._writer
        outcomes: list[Any] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            for job in jobs:
                try:
                    outcomes.append(job(db))
                except RunError as error:
                    outcomes.append(error)
            db.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - given to each of those who wait
            with suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            cause = unavailable(self.path, error) if isinstance(error, sqlite3.Error) else error
            return [cause] * len(jobs)
        return outcomes

    # Reading

    async def fetch_events(
        self, run_id: str, after_seq: int = 0, limit: int = PAGE
    ) -> list[StoredEvent]:
        check_page(after_seq, limit)
        rows = await self._read(_FETCH, run_id, after_seq, limit)
        return [stored_event(run_id, *row) for row in rows]

    async def fetch_each(
        self, wanted: Sequence[tuple[str, int]], limit: int = PAGE
    ) -> list[list[StoredEvent]]:
        # One way to the reader's thread and back for all of them.
        pages = await self._ask(
            lambda db: [db.execute(_FETCH, (*each, limit)).fetchall() for each in wanted]
        )
        return [
            [stored_event(run_id, *row) for row in rows]
            for (run_id, _), rows in zip(wanted, pages, strict=True)
        ]

    async def find_run(self, run_id: str) -> RunInfo | None:
        rows = await self._read(
            f"SELECT {_COLUMNS} FROM runs WHERE run_id = ? AND NOT deleted",  # noqa: S608 - ours
            run_id,
        )
        return _info(*rows[0]) if rows else None

    async def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> RunPage:
        check_limit(limit)
        where, values = conditions(
            status,
            created_from,
            created_before,
            mark="?",
            instant=instant_text,
            living="deleted = 0",  # an equality, which its indexes begin with
        )
        if after is not None:
            where.append("(created_at, run_id) < (?, ?)")
            values += parse_cursor(after)
        rows = await self._read(
            f"SELECT {_COLUMNS} FROM runs WHERE {' AND '.join(where)} "  # noqa: S608 - ours
            "ORDER BY created_at DESC, run_id DESC LIMIT ?",
            *values,
            limit + 1,
        )
        runs = tuple(_info(*row) for row in rows[:limit])
        more = len(rows) > limit
        return RunPage(runs, cursor_of(runs[-1], rows[limit - 1][3]) if more else None)

    async def changes(self, mark: str = "", limit: int = PAGE) -> Changes:
        check_limit(limit)
        rows = await self._read(
            f"SELECT {_COLUMNS}, changed FROM runs WHERE changed > ? "  # noqa: S608 - ours
            "ORDER BY changed LIMIT ?",
            int(mark or 0),
            limit,
        )
        return Changes(tuple(_info(*row[:-1]) for row in rows), str(rows[-1][-1]) if rows else mark)

    async def wait(self, mark: str, seconds: float) -> None:
        del mark
        # Our own commits are told at once; those of other processes are found by asking.
        news = self._news
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), min(seconds, self.poll_seconds))

    async def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        return await self._ask(lambda db: load(db, run_id))

    async def save_position(self, position: str) -> None:
        statement = "INSERT OR REPLACE INTO position VALUES (1, ?)"
        await self._write(lambda db: db.execute(statement, (position,)))

    async def load_position(self) -> str:
        rows = await self._read("SELECT text FROM position")
        return rows[0][0] if rows else ""

    async def _read(self, statement: str, *values: object) -> list[Any]:
        return await self._ask(lambda db: db.execute(statement, values).fetchall())

    async def _ask(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        if self._reading is None:
            raise StoreNotOpen
        reader = self._reader

        def read() -> T:
            try:
                return ask(reader)
            except sqlite3.Error as error:
                raise unavailable(self.path, error) from error

        return await asyncio.get_running_loop().run_in_executor(self._reading, read)


# What happens within a transaction


def _append(
    db: sqlite3.Connection, run_id: str, documents: Sequence[Document]
) -> list[AppendResult]:
    found = db.execute(
        "SELECT number, status, last_seq, deleted FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    at = instant_text(datetime.now(UTC))
    if found is None:
        number = db.execute(_NEW_RUN, (run_id, at, at)).lastrowid
        status, first = RunStatus.PENDING, 0
    elif found[3]:
        raise RunDeleted(run_id)
    else:
        number, status, first = found[0], RunStatus(found[1]), found[2]
    last_seq = first
    results = []
    for document in documents:
        key = document.idempotency_key
        written = db.execute(
            "INSERT INTO events (run, run_seq, idempotency_key, persisted_at, body) "
            "VALUES (?, ?, ?, ?, ?) ON CONFLICT (run, idempotency_key) DO NOTHING",
            (number, last_seq + 1, key, at, document.body),
        ).rowcount
        if written:
            last_seq += 1
            status = status_after(status, document.event_type)
            results.append(AppendResult.stored(last_seq))
        else:
            (known,) = db.execute(
                "SELECT run_seq FROM events WHERE run = ? AND idempotency_key = ?", (number, key)
            ).fetchone()
            results.append(AppendResult.duplicate(known))
    if last_seq > first:
        db.execute(_NEW_HEAD, (status.value, last_seq, at, number))
    return results


def _delete(db: sqlite3.Connection, run_id: str) -> bool:
    found = db.execute(
        "SELECT number FROM runs WHERE run_id = ? AND NOT deleted", (run_id,)
    ).fetchone()
    if found is None:
        return False
    db.execute("DELETE FROM events WHERE run = ?", found)
    delete(db, *found)
    db.execute(_TOMBSTONE, (instant_text(datetime.now(UTC)), *found))
    return True


def _info(
    run_id: str, status: str, last_seq: int, created_at: str, updated_at: str, deleted: int
) -> RunInfo:
    return RunInfo(
        run_id,
        RunStatus(status),
        last_seq,
        instant_of(created_at),
        instant_of(updated_at),
        bool(deleted),
    )
