"""Runs in PostgreSQL, numbered by the run's row: the default authority there.

An append locks the row of its run, numbers the events behind the row's last number, and writes
both. The lock is held until the commit, so assignment and commit are serialised for each run: its
numbers have no gaps, and nothing appears below what was read. Other runs are not in the way.

Every call is one transaction on a connection of a pool. Statements are pipelined: an append waits
for the server two times, once to learn where the run stands and once for the commit.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from psycopg import AsyncConnection, AsyncCursor, errors

from headwater.errors import (
    RunDeleted,
    RunQueryRefused,
    SettingsError,
)
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
    checkpoint_from_json,
    checkpoint_to_json,
    cursor_of,
    parse_cursor,
)
from headwater.runs.stores.postgres_changes import CHANGES, ChangeMark
from headwater.runs.stores.postgres_connections import Connections
from headwater.runs.values import RunStatus

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_COLUMNS: Final = "run_id, status, last_seq, created_at, updated_at, deleted"
# NO KEY UPDATE keeps other appends out, and lets checkpoints through.
_LOCK_HEAD: Final = """
    SELECT number, status, last_seq, deleted, clock_timestamp() FROM runs
    WHERE run_id = %s FOR NO KEY UPDATE
"""
NEW_RUN: Final = """
    INSERT INTO runs (run_id, status, last_seq, created_at, updated_at, changed)
    SELECT %s, 'PENDING', 0, at, at, pg_current_xact_id() FROM (SELECT clock_timestamp() AS at)
    ON CONFLICT (run_id) DO NOTHING RETURNING number, status, last_seq, deleted, created_at
"""
KNOWN_KEYS: Final = """
    SELECT e.idempotency_key, e.run_seq FROM events e JOIN runs r ON r.number = e.run
    WHERE r.run_id = %s AND e.idempotency_key = ANY(%s)
"""
_INSERT: Final = """
    INSERT INTO events (run, run_seq, idempotency_key, persisted_at, body)
    SELECT %s, run_seq, idempotency_key, %s, body::json
    FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS new (run_seq, idempotency_key, body)
"""
_NEW_HEAD: Final = """
    UPDATE runs SET status = %s, last_seq = %s, updated_at = greatest(updated_at, %s),
        changed = pg_current_xact_id() WHERE number = %s
"""
_FETCH: Final = """
    SELECT body::text, run_seq, persisted_at FROM events
    WHERE run = (SELECT number FROM runs WHERE run_id = %s) AND run_seq > %s
    ORDER BY run_seq LIMIT %s
"""
_TOMBSTONE: Final = """
    UPDATE runs SET deleted = true, updated_at = greatest(updated_at, clock_timestamp()),
        changed = pg_current_xact_id() WHERE number = %s
"""
_SAVE: Final = """
    INSERT INTO checkpoints (run, last_event_seq, document)
    SELECT r.number, c.last_event_seq, c.document::json
    FROM unnest(%s::text[], %s::bigint[], %s::text[]) AS c (run_id, last_event_seq, document)
    JOIN runs r USING (run_id) WHERE NOT r.deleted ORDER BY r.number FOR KEY SHARE OF r
    ON CONFLICT (run) DO UPDATE SET last_event_seq = excluded.last_event_seq,
        document = excluded.document
    WHERE excluded.last_event_seq >= checkpoints.last_event_seq
"""


class Head(NamedTuple):
    """The row of a run."""

    number: int
    status: RunStatus
    last_seq: int
    deleted: bool
    at: datetime
    """The server's clock: one for all writers."""


class PostgresRunStore(RunStore):
    """Keeps runs in a schema of a PostgreSQL database (13 or later)."""

    authority: ClassVar[str] = "the run's row, locked from the numbering to the commit"
    kind: ClassVar[str] = "head"
    """The authority's name in the database: one schema has one."""
    gaps_are_final: ClassVar[bool] = True
    poll_seconds: ClassVar[float] = 0.05

    def __init__(self, url: str, *, schema: str = "headwater_runs", connections: int = 8) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise SettingsError("schema", schema, "small letters, digits and _")
        if connections < 1:
            raise SettingsError("connections", connections, "1 or more")
        self._db = Connections(url, schema, connections)
        self._news = asyncio.Event()
        self.installation = ""
        """An id of this schema, known once it is open."""

    @classmethod
    def from_url(cls, url: str) -> "PostgresRunStore":
        scheme, separator, rest = url.partition("://")
        if not separator:
            raise SettingsError("run store", url, "a URL such as postgresql://user@host/database")
        scheme = scheme.partition("+")[0]
        parts = urlsplit(f"{scheme}://{rest}")
        ours: dict[str, str] = {}
        theirs: list[tuple[str, str]] = []
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in {"schema", "connections", "redis"}:
                ours[name] = value
            else:
                theirs.append((name, value))
        return cls._made(urlunsplit(parts._replace(query=urlencode(theirs))), ours)

    @classmethod
    def _made(cls, url: str, options: dict[str, str]) -> "PostgresRunStore":
        return cls(url, **cls._arguments(options))

    @staticmethod
    def _arguments(options: dict[str, str]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if "schema" in options:
            given["schema"] = options["schema"]
        if "connections" in options:
            text = options["connections"]
            if not text.isdecimal():
                raise SettingsError("connections", text, "a number")
            given["connections"] = int(text)
        return given

    async def open(self) -> None:
        if not self._db.is_open:
            self.installation = await self._db.open(self.kind)

    async def close(self) -> None:
        await self._db.close()

    # Appending

    async def _append(self, run_id: str, documents: Sequence[Document]) -> list[AppendResult]:
        keys = [document.idempotency_key for document in documents]

        async def append(db: AsyncConnection) -> list[AppendResult]:
            async with db.pipeline(), db.transaction():
                return await self._append_in(db, run_id, documents, keys)

        results = await self._db.write(append)
        self._tell()
        return results

    async def _append_in(
        self, db: AsyncConnection, run_id: str, documents: Sequence[Document], keys: list[str]
    ) -> list[AppendResult]:
        """Append within a transaction; what it raises undoes everything."""
        locked = await db.execute(_LOCK_HEAD, (run_id,))
        asked = await db.execute(KNOWN_KEYS, (run_id, keys))
        head = await head_of(locked, run_id)
        if head is None:
            # Whoever creates the same run meanwhile is waited for, and then their row is found.
            head = await head_of(await db.execute(NEW_RUN, (run_id,)), run_id)
            if head is None:
                head = await head_of(await db.execute(_LOCK_HEAD, (run_id,)), run_id)
                asked = await db.execute(KNOWN_KEYS, (run_id, keys))
            if head is None:
                raise errors.SerializationFailure(f"the row of run '{run_id}' came and went")
        # Both statements ran behind the lock: what they say holds until we commit.
        numbers: dict[str, int] = dict(await asked.fetchall())
        last_seq, status = head.last_seq, head.status
        new: list[tuple[int, str, str]] = []
        results = []
        for document in documents:
            known = numbers.get(document.idempotency_key)
            if known is not None:
                results.append(AppendResult.duplicate(known))
                continue
            last_seq += 1
            numbers[document.idempotency_key] = last_seq
            new.append((last_seq, document.idempotency_key, document.body.decode()))
            status = status_after(status, document.event_type)
            results.append(AppendResult.stored(last_seq))
        if new:
            columns = [list(column) for column in zip(*new, strict=True)]
            await db.execute(_INSERT, (head.number, head.at, *columns))
            await db.execute(_NEW_HEAD, (status, last_seq, head.at, head.number))
        return results

    async def delete_run(self, run_id: str) -> bool:
        async def delete(db: AsyncConnection) -> bool:
            async with db.transaction():
                # A full lock: it also waits for appends that have drawn a number.
                found = await db.execute(
                    "SELECT number FROM runs WHERE run_id = %s AND NOT deleted FOR UPDATE",
                    (run_id,),
                )
                row = await found.fetchone()
                if row is None:
                    return False
                await db.execute("DELETE FROM events WHERE run = %s", row)
                await db.execute("DELETE FROM checkpoints WHERE run = %s", row)
                await db.execute(_TOMBSTONE, row)
                await self._forget_numbers(db, run_id, row[0])
                return True

        deleted = await self._db.write(delete)
        self._tell()
        return deleted

    async def _forget_numbers(self, db: AsyncConnection, run_id: str, number: int) -> None:
        """Drop what the authority keeps for a run besides its row."""

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        newest: dict[str, Checkpoint] = {}
        for each in checkpoints:
            kept = newest.get(each.run_id)
            if kept is None or kept.last_event_seq <= each.last_event_seq:
                newest[each.run_id] = each
        if not newest:
            return
        rows = list(newest.values())

        async def save(db: AsyncConnection) -> None:
            async with db.transaction():
                await db.execute(
                    _SAVE,
                    (
                        [each.run_id for each in rows],
                        [each.last_event_seq for each in rows],
                        [checkpoint_to_json(each).decode() for each in rows],
                    ),
                )
                await self._save_status(db, rows)

        await self._db.write(save)

    async def _save_status(self, db: AsyncConnection, checkpoints: list[Checkpoint]) -> None:
        """Take over the status of checkpoints, where appends can't tell it."""

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # Reading

    async def fetch_events(
        self, run_id: str, after_seq: int = 0, limit: int = PAGE
    ) -> list[StoredEvent]:
        check_page(after_seq, limit)
        rows = await self._db.read(_FETCH, run_id, after_seq, limit)
        return [
            stored_event(run_id, body.encode(), run_seq, instant_text(at))
            for body, run_seq, at in rows
        ]

    async def find_run(self, run_id: str) -> RunInfo | None:
        rows = await self._db.read(
            f"SELECT {_COLUMNS} FROM runs WHERE run_id = %s AND NOT deleted",  # noqa: S608 - ours
            run_id,
        )
        return info_of(*rows[0]) if rows else None

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
        where = ["NOT deleted"]
        values: list[object] = []
        if status is not None:
            where.append("status = %s")
            values.append(status.value)
        if created_from is not None:
            where.append("created_at >= %s")
            values.append(created_from)
        if created_before is not None:
            where.append("created_at < %s")
            values.append(created_before)
        if after is not None:
            where.append("(created_at, run_id) < (%s, %s)")
            at, run_id = parse_cursor(after)
            values += [_moment(at, after), run_id]
        rows = await self._db.read(
            f"SELECT {_COLUMNS} FROM runs WHERE {' AND '.join(where)} "  # noqa: S608 - ours
            "ORDER BY created_at DESC, run_id DESC LIMIT %s",
            *values,
            limit + 1,
        )
        runs = tuple(info_of(*row) for row in rows[:limit])
        last = runs[-1] if len(rows) > limit else None
        return RunPage(runs, cursor_of(last, instant_text(last.created_at)) if last else None)

    async def changes(self, mark: str = "", limit: int = PAGE) -> Changes:
        check_limit(limit)
        before = ChangeMark.parse(mark)
        rows = await self._db.read(CHANGES, *before.values(), limit)
        found = [row for row in rows if row[3] is not None]
        cut_at = (found[-1][1], found[-1][2]) if len(found) == limit else None
        after = before.behind(rows[0][0], cut_at)
        return Changes(tuple(info_of(*row[3:]) for row in found), str(after))

    async def wait(self, mark: str, seconds: float) -> None:
        del mark
        # Our own commits are told at once; those of other processes are found by asking.
        news = self._news
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), min(seconds, self.poll_seconds))

    async def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        rows = await self._db.read(
            "SELECT document::text FROM checkpoints "
            "WHERE run = (SELECT number FROM runs WHERE run_id = %s)",
            run_id,
        )
        return checkpoint_from_json(run_id, rows[0][0]) if rows else None


async def head_of(cursor: AsyncCursor[Any], run_id: str) -> Head | None:
    """Read the row of a run that takes events; raises `RunDeleted`, None where there is none."""
    row = await cursor.fetchone()
    if row is None:
        return None
    number, status, last_seq, deleted, at = row
    if deleted:
        raise RunDeleted(run_id)
    return Head(number, RunStatus(status), last_seq, deleted, at)


def info_of(
    run_id: str,
    status: str,
    last_seq: int,
    created_at: datetime,
    updated_at: datetime,
    deleted: bool,
) -> RunInfo:
    """Make the info of a row."""
    return RunInfo(
        run_id,
        RunStatus(status),
        last_seq,
        created_at.astimezone(UTC),
        updated_at.astimezone(UTC),
        deleted,
    )


def _moment(text: str, cursor: str) -> datetime:
    try:
        return instant_of(text)
    except ValueError:
        raise RunQueryRefused("after", cursor, "the 'next' of the page before") from None
