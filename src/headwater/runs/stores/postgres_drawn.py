"""Runs in PostgreSQL whose numbers are drawn from outside of the transaction.

Writers of a run do not wait for each other to be numbered. So a number may be drawn early and
committed late, below what others have read, and one that was drawn by a transaction that failed is
a gap for ever: gaps are not final, and a projector waits for them.

Keys are asked for before numbers are drawn: a retry takes none. Where two writers bring a new key
at the same moment, the index lets one in, and the number of the other is lost.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from psycopg import AsyncConnection, errors

from headwater.runs.events import Document
from headwater.runs.store import AppendResult, Checkpoint
from headwater.runs.stores.postgres import (
    KNOWN_KEYS,
    NEW_RUN,
    Head,
    PostgresRunStore,
    head_of,
)

# KEY SHARE keeps the run from being deleted, and nobody from appending.
_HOLD_HEAD: Final = """
    SELECT number, status, last_seq, deleted, clock_timestamp() FROM runs
    WHERE run_id = %s FOR KEY SHARE
"""
# In the order of the keys: writers who bring the same ones wait for each other, never in a circle.
_INSERT: Final = """
    INSERT INTO events (run, run_seq, idempotency_key, persisted_at, body)
    SELECT %s, run_seq, idempotency_key, %s, body::json
    FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS new (run_seq, idempotency_key, body)
    ORDER BY idempotency_key
    ON CONFLICT ON CONSTRAINT events_by_key DO NOTHING RETURNING idempotency_key
"""
_NEW_HEAD: Final = """
    UPDATE runs SET last_seq = greatest(last_seq, %s), updated_at = greatest(updated_at, %s),
        changed = pg_current_xact_id() WHERE number = %s
"""
_SAVE_STATUS: Final = """
    UPDATE runs SET status = c.status
    FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS c (run_id, status, last_event_seq)
    WHERE runs.run_id = c.run_id AND NOT deleted AND runs.status <> c.status AND EXISTS (
        SELECT FROM checkpoints k
        WHERE k.run = runs.number AND k.last_event_seq = c.last_event_seq)
"""


class DrawnRunStore(PostgresRunStore):
    """Appends with numbers that `_draw` gives."""

    gaps_are_final: ClassVar[bool] = False
    # A status follows from the events in their order, and here they do not arrive in it.
    status_is_live: ClassVar[bool] = False

    @abstractmethod
    async def _draw(self, db: AsyncConnection, run_id: str, head: Head, count: int) -> list[int]:
        """Draw numbers above all that were committed so far, each given once, in rising order."""

    async def _prepare_numbers(self, db: AsyncConnection, run_id: str, number: int) -> None:
        """Make what numbers of a new run are drawn from."""

    async def _append_in(
        self, db: AsyncConnection, run_id: str, documents: Sequence[Document], keys: list[str]
    ) -> list[AppendResult]:
        held = await db.execute(_HOLD_HEAD, (run_id,))
        asked = await db.execute(KNOWN_KEYS, (run_id, keys))
        head = await head_of(held, run_id)
        if head is None:
            head = await head_of(await db.execute(NEW_RUN, (run_id,)), run_id)
            if head is not None:
                await self._prepare_numbers(db, run_id, head.number)
            else:
                head = await head_of(await db.execute(_HOLD_HEAD, (run_id,)), run_id)
                asked = await db.execute(KNOWN_KEYS, (run_id, keys))
            if head is None:
                raise errors.SerializationFailure(f"the row of run '{run_id}' came and went")
        known: dict[str, int] = dict(await asked.fetchall())
        new = {
            each.idempotency_key: each for each in documents if each.idempotency_key not in known
        }
        if not new:
            return [AppendResult.duplicate(known[key]) for key in keys]
        drawn = await self._draw(db, run_id, head, len(new))
        numbers = dict(zip(new, drawn, strict=True))
        bodies = [each.body.decode() for each in new.values()]
        rows = await db.execute(_INSERT, (head.number, head.at, drawn, list(new), bodies))
        written = {key for (key,) in await rows.fetchall()}
        if len(written) < len(new):  # others had the same keys at the same moment
            lost = await db.execute(
                KNOWN_KEYS, (run_id, [key for key in new if key not in written])
            )
            known |= dict(await lost.fetchall())
        if written:
            last_seq = max(numbers[key] for key in written)
            await db.execute(_NEW_HEAD, (last_seq, head.at, head.number))
        results = []
        for key in keys:
            if key in written:
                written.remove(key)  # the first of a batch is stored, its twins are duplicates
                known[key] = numbers[key]
                results.append(AppendResult.stored(numbers[key]))
            else:
                results.append(AppendResult.duplicate(known[key]))
        return results

    async def _save_status(self, db: AsyncConnection, checkpoints: list[Checkpoint]) -> None:
        values: tuple[list[Any], ...] = (
            [each.run_id for each in checkpoints],
            [each.snapshot.status.value for each in checkpoints],
            [each.last_event_seq for each in checkpoints],
        )
        await db.execute(_SAVE_STATUS, values)
