"""Runs in Snowflake, numbered under the lock of one row.

Standard tables enforce no keys there, and `MAX + 1` races without an error. So a transaction begins
by updating the one row of `clock`: whoever else wants to append waits until it ends. Behind that
lock it reads where its runs stand and which keys they have, and writes. Assignment and commit are
serialised for the whole store: numbers have no gaps, and nothing appears below what was read.

A transaction takes many round trips, so calls are grouped: those that arrive while one is under way
share the next. Each call is still all or nothing: it is decided before anything of it is written.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from headwater.errors import RunDeleted, RunError, StoreNotOpen
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
from headwater.runs.stores.filters import conditions
from headwater.runs.stores.snowflake_session import Session, Sessions, settings_of
from headwater.runs.values import RunStatus

T = TypeVar("T")

_MAX_GROUP: Final = 64
_COLUMNS: Final = "run_id, status, last_seq, created_at, updated_at, changed, deleted"


class _Run(NamedTuple):
    """A row of `runs`."""

    run_id: str
    status: str = RunStatus.PENDING.value
    last_seq: int = 0
    created_at: str = ""
    updated_at: str = ""
    changed: int = 0
    deleted: bool = False

    def info(self) -> RunInfo:
        return RunInfo(
            self.run_id,
            RunStatus(self.status),
            int(self.last_seq),
            instant_of(self.created_at),
            instant_of(self.updated_at),
            bool(self.deleted),
        )


class _Call(NamedTuple):
    """An append that waits for its transaction."""

    run_id: str
    documents: Sequence[Document]
    done: asyncio.Future[list[AppendResult]]


class SnowflakeRunStore(RunStore):
    """Keeps runs in a schema of a Snowflake database."""

    authority: ClassVar[str] = "the run's row, read and written under the lock of the clock's row"
    gaps_are_final: ClassVar[bool] = True
    max_batch: ClassVar[int] = 2000
    poll_seconds: ClassVar[float] = 0.5

    def __init__(self, **settings: Any) -> None:
        """Take what the connector's `connect` takes, with `database` and `schema`."""
        self._sessions = Sessions(settings)
        self._waiting: list[_Call] = []
        self._groups: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @classmethod
    def from_url(cls, url: str) -> "SnowflakeRunStore":
        return cls(**settings_of(url))

    async def open(self) -> None:
        if not self._sessions.is_open:
            await self._sessions.open()

    async def close(self) -> None:
        while self._groups is not None:
            await asyncio.wait({self._groups})
        await self._sessions.close()

    # Appending

    async def _append(self, run_id: str, documents: Sequence[Document]) -> list[AppendResult]:
        if not self._sessions.is_open:
            raise StoreNotOpen
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[AppendResult]] = loop.create_future()
        self._waiting.append(_Call(run_id, documents, done))
        if self._groups is None:
            self._groups = loop.create_task(self._append_groups())
        return await done

    async def _append_groups(self) -> None:
        """Append what waits, group after group, until nothing waits any more."""
        try:
            while self._waiting:
                group = self._waiting[:_MAX_GROUP]
                del self._waiting[:_MAX_GROUP]
                try:
                    outcomes = await self._sessions.run(partial(_append_group, group))
                except RunError as error:
                    outcomes = [error] * len(group)
                self._tell()
                for call, outcome in zip(group, outcomes, strict=True):
                    if call.done.done():  # whoever asked has gone; it is done all the same
                        continue
                    if isinstance(outcome, RunError):
                        call.done.set_exception(outcome)
                    else:
                        call.done.set_result(outcome)
        finally:
            self._groups = None

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def delete_run(self, run_id: str) -> bool:
        deleted = await self._sessions.run(lambda session: _delete(session, run_id))
        self._tell()
        return deleted

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        newest: dict[str, Checkpoint] = {}
        for each in checkpoints:
            kept = newest.get(each.run_id)
            if kept is None or kept.last_event_seq <= each.last_event_seq:
                newest[each.run_id] = each
        if newest:
            await self._sessions.run(lambda session: _save_checkpoints(session, newest))

    # Reading

    async def fetch_events(
        self, run_id: str, after_seq: int = 0, limit: int = PAGE
    ) -> list[StoredEvent]:
        check_page(after_seq, limit)
        rows = await self._ask(
            "SELECT body, run_seq, persisted_at FROM events WHERE run_id = ? AND run_seq > ? "  # noqa: S608 - a number
            f"ORDER BY run_seq LIMIT {limit:d}",
            run_id,
            after_seq,
        )
        return [stored_event(run_id, body.encode(), int(seq), at) for body, seq, at in rows]

    async def find_run(self, run_id: str) -> RunInfo | None:
        rows = await self._ask(
            f"SELECT {_COLUMNS} FROM runs WHERE run_id = ? AND NOT deleted",  # noqa: S608 - ours
            run_id,
        )
        return _Run(*rows[0]).info() if rows else None

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
            status, created_from, created_before, mark="?", instant=instant_text
        )
        if after is not None:
            at, run_id = parse_cursor(after)
            where.append("(created_at < ? OR (created_at = ? AND run_id < ?))")
            values += [at, at, run_id]
        rows = await self._ask(
            f"SELECT {_COLUMNS} FROM runs WHERE {' AND '.join(where)} "  # noqa: S608 - ours
            f"ORDER BY created_at DESC, run_id DESC LIMIT {limit + 1:d}",
            *values,
        )
        runs = tuple(_Run(*row).info() for row in rows[:limit])
        more = len(rows) > limit
        return RunPage(runs, cursor_of(runs[-1], rows[limit - 1][3]) if more else None)

    async def changes(self, mark: str = "", limit: int = PAGE) -> Changes:
        check_limit(limit)
        # `changed` is the clock under the lock, so it rises in the order of commits. One
        # transaction gives it to several runs: they are named together, or again.
        rows = await self._ask(
            f"SELECT {_COLUMNS} FROM runs WHERE changed > ? "  # noqa: S608 - ours
            f"ORDER BY changed, run_id LIMIT {limit + _MAX_GROUP:d}",
            int(mark or 0),
        )
        runs = [_Run(*row) for row in rows]
        if len(runs) == limit + _MAX_GROUP:  # a transaction that may be cut off is left for later
            runs = [run for run in runs if run.changed < runs[-1].changed]
        last = str(runs[-1].changed) if runs else mark
        return Changes(tuple(run.info() for run in runs), last)

    async def wait(self, mark: str, seconds: float) -> None:
        del mark
        news = self._news
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), min(seconds, self.poll_seconds))

    async def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        rows = await self._ask("SELECT document FROM checkpoints WHERE run_id = ?", run_id)
        return checkpoint_from_json(run_id, rows[0][0]) if rows else None

    async def _ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._sessions.run(lambda session: session.ask(statement, *values))


# What happens within a transaction, in a thread


def _locked(session: Session, work: Callable[[int], T]) -> T:
    """Do something behind the lock, with the new time of the clock; what it raises undoes it."""
    with session.transaction():
        session.do("UPDATE clock SET value = value + 1")
        ((clock,),) = session.ask("SELECT max(value) FROM clock")
        return work(int(clock))


def _runs(session: Session, run_ids: Iterable[str]) -> dict[str, _Run]:
    names = list(run_ids)
    marks = ", ".join("?" * len(names))
    rows = session.ask(
        f"SELECT {_COLUMNS} FROM runs WHERE run_id IN ({marks})",  # noqa: S608 - ours
        *names,
    )
    return {row[0]: _Run(*row) for row in rows}


def _append_group(group: Sequence[_Call], session: Session) -> list[list[AppendResult] | RunError]:
    # Retries are answered without the lock: what is known stays so, or its run is deleted.
    known = _known(session, group)
    answers = [_duplicates(call, known) for call in group]
    left = [call for call, answer in zip(group, answers, strict=True) if answer is None]
    written = iter(_locked(session, partial(_append_locked, session, left)) if left else ())
    return [next(written) if answer is None else answer for answer in answers]


def _duplicates(call: _Call, known: dict[tuple[str, str], int]) -> list[AppendResult] | None:
    """Answer a call all of whose keys are there; None where one is not."""
    numbers = [known.get((call.run_id, each.idempotency_key)) for each in call.documents]
    found = [number for number in numbers if number is not None]
    return list(map(AppendResult.duplicate, found)) if len(found) == len(numbers) else None


def _append_locked(
    session: Session, group: Sequence[_Call], clock: int
) -> list[list[AppendResult] | RunError]:
    runs = _runs(session, {call.run_id for call in group})
    known = _known(session, group)
    now = instant_text(datetime.now(UTC))
    outcomes: list[list[AppendResult] | RunError] = []
    new: list[tuple[object, ...]] = []
    moved: dict[str, _Run] = {}
    for call in group:
        run = moved.get(call.run_id) or runs.get(call.run_id) or _Run(call.run_id)
        if run.deleted:
            outcomes.append(RunDeleted(call.run_id))
            continue
        at = max(now, run.updated_at)
        last_seq, status = int(run.last_seq), RunStatus(run.status)
        results = []
        for document in call.documents:
            key = (call.run_id, document.idempotency_key)
            if key in known:
                results.append(AppendResult.duplicate(known[key]))
                continue
            last_seq += 1
            known[key] = last_seq
            status = status_after(status, document.event_type)
            new.append((call.run_id, last_seq, key[1], at, document.body.decode()))
            results.append(AppendResult.stored(last_seq))
        if last_seq > run.last_seq:
            moved[call.run_id] = _Run(
                run.run_id, status.value, last_seq, run.created_at or at, at, clock
            )
        outcomes.append(results)
    if new:
        session.do_many("INSERT INTO events VALUES (?, ?, ?, ?, ?)", new)
        _replace(session, moved.values())
    return outcomes


def _known(session: Session, group: Sequence[_Call]) -> dict[tuple[str, str], int]:
    """Look up the keys of calls; some of another run may come along."""
    names = sorted({call.run_id for call in group})
    wanted = sorted({each.idempotency_key for call in group for each in call.documents})
    rows = session.ask(
        "SELECT run_id, idempotency_key, run_seq FROM events "  # noqa: S608 - only marks
        f"WHERE run_id IN ({', '.join('?' * len(names))}) "
        f"AND idempotency_key IN ({', '.join('?' * len(wanted))})",
        *names,
        *wanted,
    )
    return {(run_id, key): int(seq) for run_id, key, seq in rows}


def _replace(session: Session, runs: Iterable[_Run]) -> None:
    """Put rows of runs in the place of the old ones."""
    rows = list(runs)
    marks = ", ".join("?" * len(rows))
    session.do(
        f"DELETE FROM runs WHERE run_id IN ({marks})",  # noqa: S608 - only marks
        *(run.run_id for run in rows),
    )
    session.do_many("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _delete(session: Session, run_id: str) -> bool:
    def delete(clock: int) -> bool:
        run = _runs(session, [run_id]).get(run_id)
        if run is None or run.deleted:
            return False
        session.do("DELETE FROM events WHERE run_id = ?", run_id)
        session.do("DELETE FROM checkpoints WHERE run_id = ?", run_id)
        at = max(instant_text(datetime.now(UTC)), run.updated_at)
        _replace(session, [run._replace(updated_at=at, changed=clock, deleted=True)])
        return True

    return _locked(session, delete)


def _save_checkpoints(session: Session, checkpoints: dict[str, Checkpoint]) -> None:
    def save(_: int) -> None:
        runs = _runs(session, checkpoints)
        marks = ", ".join("?" * len(checkpoints))
        kept = session.ask(
            f"SELECT run_id, last_event_seq FROM checkpoints WHERE run_id IN ({marks})",  # noqa: S608 - only marks
            *checkpoints,
        )
        newer = dict(kept)
        wanted = {
            name: each
            for name, each in checkpoints.items()
            if name in runs and not runs[name].deleted and each.last_event_seq >= newer.get(name, 0)
        }
        if not wanted:
            return
        session.do(
            "DELETE FROM checkpoints "  # noqa: S608 - only marks
            f"WHERE run_id IN ({', '.join('?' * len(wanted))})",
            *wanted,
        )
        session.do_many(
            "INSERT INTO checkpoints VALUES (?, ?, ?)",
            [
                (name, each.last_event_seq, checkpoint_to_json(each).decode())
                for name, each in wanted.items()
            ],
        )

    _locked(session, save)
