"""Runs in PostgreSQL, numbered by the run's row: the default authority there.

An append locks the row of its run, numbers the events behind the row's last number, and writes
both. The lock is held until the commit, so assignment and commit are serialised for each run: its
numbers have no gaps, and nothing appears below what was read. Other runs are not in the way.

Appends that arrive while a transaction is under way share the next one; each of them is still all
or nothing. Statements are pipelined: a transaction waits for the server two times, once to learn
where its runs stand and once for the commit.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import ClassVar, Final, LiteralString, NamedTuple

from psycopg import AsyncConnection, errors

from headwater.errors import (
    RunDeleted,
    RunQueryRefused,
    SettingsError,
    StoreNotOpen,
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
    cursor_of,
    parse_cursor,
)
from headwater.runs.stores.filters import conditions
from headwater.runs.stores.postgres_changes import CHANGES, ChangeMark
from headwater.runs.stores.postgres_checkpoints import Checkpoints
from headwater.runs.stores.postgres_connections import Connections, columns
from headwater.runs.stores.postgres_groups import Call, Groups, Outcome
from headwater.runs.stores.postgres_schema import SAVE_POSITION
from headwater.runs.stores.postgres_url import arguments, split_url
from headwater.runs.values import RunStatus

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,50}")
Numbers = dict[tuple[str, str], int]
"""By run id and key."""

_LOOKS: Final = 10
_COLUMNS: Final = "run_id, status, last_seq, created_at, updated_at, deleted"
# NO KEY UPDATE keeps other appends out, and lets checkpoints through. In the order of the runs:
# groups that want the same rows wait for each other, never in a circle.
_LOCK_HEADS: Final = """
    SELECT run_id, number, status, last_seq, deleted, clock_timestamp() FROM runs
    WHERE run_id = ANY(%s) ORDER BY run_id FOR NO KEY UPDATE
"""
NEW_RUNS: Final = """
    INSERT INTO runs (run_id, status, last_seq, created_at, updated_at, changed)
    SELECT run_id, 'PENDING', 0, at, at, pg_current_xact_id()
    FROM unnest(%s::text[]) AS new (run_id), (SELECT clock_timestamp() AS at)
    ORDER BY run_id COLLATE "C" ON CONFLICT (run_id) DO NOTHING RETURNING number
"""
# Key by key, through the index: a join would read the whole log where statistics are old.
KNOWN_KEYS: Final = """
    SELECT k.run_id, k.idempotency_key, e.run_seq
    FROM unnest(%b::text[], %b::text[]) AS k (run_id, idempotency_key)
    CROSS JOIN LATERAL (
        SELECT run_seq FROM events
        WHERE run = (SELECT number FROM runs WHERE run_id = k.run_id)
        AND idempotency_key = k.idempotency_key LIMIT 1
    ) AS e
"""
_INSERT: Final = """
    INSERT INTO events (run, run_seq, idempotency_key, persisted_at, body)
    SELECT run, run_seq, idempotency_key, %s, body::json
    FROM unnest(%b::bigint[], %b::bigint[], %b::text[], %b::text[])
        AS new (run, run_seq, idempotency_key, body)
"""
_NEW_HEADS: Final = """
    UPDATE runs SET status = moved.status, last_seq = moved.last_seq,
        updated_at = greatest(updated_at, %s), changed = pg_current_xact_id()
    FROM unnest(%b::bigint[], %b::text[], %b::bigint[]) AS moved (number, status, last_seq)
    WHERE runs.number = moved.number
"""
_FETCH: Final = """
    SELECT body::text, run_seq, persisted_at FROM events
    WHERE run = (SELECT number FROM runs WHERE run_id = %s) AND run_seq > %s
    ORDER BY run_seq LIMIT %s
"""
_FETCH_EACH: Final = """
    SELECT w.place, e.body::text, e.run_seq, e.persisted_at
    FROM unnest(%b::text[], %b::bigint[]) WITH ORDINALITY AS w (run_id, after_seq, place)
    CROSS JOIN LATERAL (
        SELECT body, run_seq, persisted_at FROM events
        WHERE run = (SELECT number FROM runs WHERE run_id = w.run_id) AND run_seq > w.after_seq
        ORDER BY run_seq LIMIT %s
    ) AS e ORDER BY w.place, e.run_seq
"""
_TOMBSTONE: Final = """
    UPDATE runs SET deleted = true, updated_at = greatest(updated_at, clock_timestamp()),
        changed = pg_current_xact_id() WHERE number = %s
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
        # Half of the connections are left for readers.
        self._groups = Groups(self._append_group, max(1, connections // 2))
        self._checkpoints = Checkpoints(self._db, self._save_status)
        self._news = asyncio.Event()
        self.installation = ""
        """An id of this schema, known once it is open."""

    @classmethod
    def from_url(cls, url: str) -> "PostgresRunStore":
        return cls._made(*split_url(url))

    @classmethod
    def _made(cls, url: str, options: dict[str, str]) -> "PostgresRunStore":
        return cls(url, **arguments(options))

    async def open(self) -> None:
        if not self._db.is_open:
            self.installation = await self._db.open(self.kind)

    async def close(self) -> None:
        await self._groups.finish()
        await self._db.close()

    # Appending

    async def _append(self, run_id: str, documents: Sequence[Document]) -> list[AppendResult]:
        if not self._db.is_open:
            raise StoreNotOpen
        return await self._groups.append(run_id, documents)

    async def _append_group(self, group: Sequence[Call]) -> list[Outcome]:
        async def append(db: AsyncConnection) -> list[Outcome]:
            async with db.pipeline(), db.transaction():
                return await self._append_in(db, group)

        outcomes = await self._db.write(append)
        self._tell()
        return outcomes

    async def _append_in(self, db: AsyncConnection, group: Sequence[Call]) -> list[Outcome]:
        """Append within a transaction; what it raises undoes everything."""
        heads, numbers = await self._look(db, group, _LOCK_HEADS)
        # Both statements ran behind the locks: what they say holds until we commit.
        at = max(head.at for head in heads.values())
        outcomes: list[Outcome] = []
        new: list[tuple[int, int, str, str]] = []
        moved: dict[int, Head] = {}
        for call in group:
            head = heads[call.run_id]
            if head.deleted:
                outcomes.append(RunDeleted(call.run_id))
                continue
            last_seq, status = head.last_seq, head.status
            results = []
            for document in call.documents:
                key = (call.run_id, document.idempotency_key)
                if key in numbers:
                    results.append(AppendResult.duplicate(numbers[key]))
                    continue
                last_seq += 1
                numbers[key] = last_seq
                new.append((head.number, last_seq, key[1], document.body.decode()))
                status = status_after(status, document.event_type)
                results.append(AppendResult.stored(last_seq))
            if last_seq > head.last_seq:
                head = head._replace(last_seq=last_seq, status=status)
                heads[call.run_id] = moved[head.number] = head
            outcomes.append(results)
        if new:
            await db.execute(_INSERT, (at, *columns(new, 4)))
            rows = [(head.number, head.status.value, head.last_seq) for head in moved.values()]
            await db.execute(_NEW_HEADS, (at, *columns(rows, 3)))
        return outcomes

    async def _look(
        self, db: AsyncConnection, group: Sequence[Call], hold: LiteralString
    ) -> tuple[dict[str, Head], Numbers]:
        """Hold the rows of runs, make those that are missing, and see which keys are there."""
        names = sorted({call.run_id for call in group})
        wanted = [
            (call.run_id, document.idempotency_key) for call in group for document in call.documents
        ]
        for _ in range(_LOOKS):
            held = await db.execute(hold, (names,))
            asked = await db.execute(KNOWN_KEYS, columns(wanted, 2))
            heads = {row[0]: head_of(*row[1:]) for row in await held.fetchall()}
            missing = [name for name in names if name not in heads]
            if not missing:
                known = {(run_id, key): seq for run_id, key, seq in await asked.fetchall()}
                return heads, known
            # Whoever makes the same run meanwhile is waited for, and then their row is found.
            made = await db.execute(NEW_RUNS, (missing,))
            await self._prepare_numbers(db, [number for (number,) in await made.fetchall()])
        raise errors.SerializationFailure("rows of runs came and went")

    async def _prepare_numbers(self, db: AsyncConnection, numbers: Sequence[int]) -> None:
        """Make what the authority needs for new runs besides their rows."""

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
                await db.execute("DELETE FROM checkpoint_steps WHERE run = %s", row)
                await db.execute(_TOMBSTONE, row)
                await self._forget_numbers(db, run_id, row[0])
                return True

        deleted = await self._db.write(delete)
        self._tell()
        return deleted

    async def _forget_numbers(self, db: AsyncConnection, run_id: str, number: int) -> None:
        """Drop what the authority keeps for a run besides its row."""

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        await self._checkpoints.save(checkpoints)

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

    async def fetch_each(
        self, wanted: Sequence[tuple[str, int]], limit: int = PAGE
    ) -> list[list[StoredEvent]]:
        pages: list[list[StoredEvent]] = [[] for _ in wanted]
        if wanted:
            rows = await self._db.read(_FETCH_EACH, *columns(wanted, 2), limit)
            for place, body, run_seq, at in rows:
                run_id = wanted[place - 1][0]
                event = stored_event(run_id, body.encode(), run_seq, instant_text(at))
                pages[place - 1].append(event)
        return pages

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
        where, values = conditions(
            status, created_from, created_before, mark="%s", instant=lambda at: at
        )
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

    async def save_position(self, position: str) -> None:
        async def save(db: AsyncConnection) -> None:
            await db.execute(SAVE_POSITION, (position,))

        await self._db.write(save)

    async def load_position(self) -> str:
        rows = await self._db.read("SELECT value FROM settings WHERE name = 'position'")
        return rows[0][0] if rows else ""

    async def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        return await self._checkpoints.load(run_id)


def head_of(
    number: int,
    status: str,
    last_seq: int,
    deleted: bool,
    at: datetime,
) -> Head:
    """Read the row of a run."""
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
