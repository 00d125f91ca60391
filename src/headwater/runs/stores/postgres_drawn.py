"""Runs in PostgreSQL whose numbers are drawn from outside of the transaction.

Writers of a run do not wait for each other to be numbered. So a number may be drawn early and
committed late, below what others have read, and one that was drawn by a transaction that failed is
a gap for ever: gaps are not final, and a projector waits for them.

Keys are asked for before numbers are drawn: a retry takes none. Where two writers bring a new key
at the same moment, the index lets one in, and the number of the other is lost.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from psycopg import AsyncConnection

from headwater.errors import RunDeleted
from headwater.runs.events import Document
from headwater.runs.store import AppendResult, Checkpoint
from headwater.runs.stores.postgres import KNOWN_KEYS, Head, Numbers, PostgresRunStore
from headwater.runs.stores.postgres_connections import columns
from headwater.runs.stores.postgres_groups import Call, Outcome

# KEY SHARE keeps runs from being deleted, and nobody from appending.
_HOLD_HEADS: Final = """
    SELECT run_id, number, status, last_seq, deleted, clock_timestamp() FROM runs
    WHERE run_id = ANY(%s) ORDER BY run_id FOR KEY SHARE
"""
# In the order of the keys: writers who bring the same ones wait for each other, never in a circle.
_INSERT: Final = """
    INSERT INTO events (run, run_seq, idempotency_key, persisted_at, body)
    SELECT run, run_seq, idempotency_key, %s, body::json
    FROM unnest(%b::bigint[], %b::bigint[], %b::text[], %b::text[])
        AS new (run, run_seq, idempotency_key, body)
    ORDER BY run, idempotency_key COLLATE "C"
    ON CONFLICT ON CONSTRAINT events_by_key DO NOTHING RETURNING run, idempotency_key
"""
_LOCK: Final = "SELECT FROM runs WHERE number = ANY(%s) ORDER BY number FOR NO KEY UPDATE"
_NEW_HEADS: Final = """
    UPDATE runs SET last_seq = greatest(runs.last_seq, moved.last_seq),
        updated_at = greatest(updated_at, %s), changed = pg_current_xact_id()
    FROM unnest(%b::bigint[], %b::bigint[]) AS moved (number, last_seq)
    WHERE runs.number = moved.number
"""
_SAVE_STATUS: Final = """
    UPDATE runs SET status = c.status
    FROM unnest(%b::text[], %b::text[], %b::bigint[]) AS c (run_id, status, last_event_seq)
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
    async def _draw(
        self, db: AsyncConnection, heads: Mapping[str, Head], counts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        """Draw numbers for runs: above all that were committed, each given once, rising."""

    async def _append_in(self, db: AsyncConnection, group: Sequence[Call]) -> list[Outcome]:
        heads, known = await self._look(db, group, _HOLD_HEADS)
        new = _new_events(group, heads, known)
        written: set[tuple[str, str]] = set()
        if new:
            counts: dict[str, int] = {}
            for run_id, _ in new:
                counts[run_id] = counts.get(run_id, 0) + 1
            drawn = await self._draw(db, heads, counts)
            numbers = {key: drawn[key[0]].pop(0) for key in new}
            written = await self._insert(db, heads, new, numbers)
            lost = [key for key in new if key not in written]
            if lost:  # others had the same keys at the same moment
                rows = await db.execute(KNOWN_KEYS, columns(lost, 2))
                known |= {(run_id, key): seq for run_id, key, seq in await rows.fetchall()}
            known |= {key: numbers[key] for key in written}
        return [_outcome(call, heads, known, written) for call in group]

    async def _insert(
        self,
        db: AsyncConnection,
        heads: Mapping[str, Head],
        new: Mapping[tuple[str, str], Document],
        numbers: Numbers,
    ) -> set[tuple[str, str]]:
        """Write events, and say which of them were not there; moves the heads of their runs."""
        at = max(head.at for head in heads.values())
        rows = [
            (heads[key[0]].number, numbers[key], key[1], document.body.decode())
            for key, document in new.items()
        ]
        done = await db.execute(_INSERT, (at, *columns(rows, 4)))
        names = {head.number: run_id for run_id, head in heads.items()}
        written = {(names[run], key) for run, key in await done.fetchall()}
        highest: dict[int, int] = {}
        for key in written:
            number = heads[key[0]].number
            highest[number] = max(highest.get(number, 0), numbers[key])
        if highest:
            await db.execute(_LOCK, (list(highest),))
            await db.execute(_NEW_HEADS, (at, *columns(list(highest.items()), 2)))
        return written

    async def _save_status(self, db: AsyncConnection, checkpoints: list[Checkpoint]) -> None:
        values: tuple[list[Any], ...] = (
            [each.run_id for each in checkpoints],
            [each.snapshot.status.value for each in checkpoints],
            [each.last_event_seq for each in checkpoints],
        )
        await db.execute(_SAVE_STATUS, values)


def _new_events(
    group: Sequence[Call], heads: Mapping[str, Head], known: Numbers
) -> dict[tuple[str, str], Document]:
    """Collect what is not known yet, each key once, in the order of the calls."""
    new: dict[tuple[str, str], Document] = {}
    for call in group:
        if not heads[call.run_id].deleted:
            for document in call.documents:
                key = (call.run_id, document.idempotency_key)
                if key not in known:
                    new.setdefault(key, document)
    return new


def _outcome(
    call: Call, heads: Mapping[str, Head], known: Numbers, written: set[tuple[str, str]]
) -> Outcome:
    """Answer a call; the first who brought a key has stored it, and takes it from `written`."""
    if heads[call.run_id].deleted:
        return RunDeleted(call.run_id)
    results = []
    for document in call.documents:
        key = (call.run_id, document.idempotency_key)
        if key in written:
            written.remove(key)
            results.append(AppendResult.stored(known[key]))
        else:
            results.append(AppendResult.duplicate(known[key]))
    return results
