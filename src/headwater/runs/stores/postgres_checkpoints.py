"""Checkpoints in PostgreSQL: a head for each run and its steps in pages.

A head has a version, anew with each write. Whoever finds the version that they wrote last writes
only the pages that changed since; where another projector came between, they write all of them.
"""

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from psycopg import AsyncConnection

from headwater.runs.checkpoint_pages import join, split
from headwater.runs.store import Checkpoint
from headwater.runs.stores.postgres_connections import Connections, columns
from headwater.runs.values import RunSnapshot

_MAX_REMEMBERED: Final = 10_000
_HOLD_RUNS: Final = """
    SELECT run_id, number FROM runs WHERE run_id = ANY(%b) AND NOT deleted
    ORDER BY number FOR KEY SHARE
"""
# In the order of the runs, so that projectors wait for each other and never in a circle.
_HOLD: Final = """
    SELECT run, version FROM checkpoints
    WHERE run = ANY(ARRAY(SELECT number FROM runs WHERE run_id = ANY(%b)))
    ORDER BY run FOR NO KEY UPDATE
"""
# The pages go with the heads that were taken: an older one that lost writes none.
_SAVE: Final = """
    WITH heads AS (
        INSERT INTO checkpoints (run, last_event_seq, document, steps, version)
        SELECT run, last_event_seq, document::json, steps, %s
        FROM unnest(%b::bigint[], %b::bigint[], %b::text[], %b::int[])
            AS c (run, last_event_seq, document, steps)
        ORDER BY run
        ON CONFLICT (run) DO UPDATE SET last_event_seq = excluded.last_event_seq,
            document = excluded.document, steps = excluded.steps, version = excluded.version
        WHERE excluded.last_event_seq >= checkpoints.last_event_seq RETURNING run
    ), pages AS (
        INSERT INTO checkpoint_steps (run, page, steps)
        SELECT run, page, p.steps::json
        FROM unnest(%b::bigint[], %b::int[], %b::text[]) AS p (run, page, steps)
        JOIN heads USING (run) ORDER BY run, page
        ON CONFLICT (run, page) DO UPDATE SET steps = excluded.steps
    )
    SELECT run FROM heads
"""
_LOAD: Final = """
    SELECT document::text, steps, ARRAY(
        SELECT p.steps::text FROM checkpoint_steps p WHERE p.run = c.run ORDER BY page)
    FROM checkpoints c WHERE run = (SELECT number FROM runs WHERE run_id = %s)
"""


class Checkpoints:
    """Saves and loads them."""

    def __init__(
        self,
        db: Connections,
        and_then: Callable[[AsyncConnection, list[Checkpoint]], Awaitable[None]],
    ) -> None:
        self._db = db
        self._and_then = and_then
        self._written: OrderedDict[str, tuple[int, RunSnapshot]] = OrderedDict()
        """What was written last of a run, and as which version."""

    async def save(self, checkpoints: Sequence[Checkpoint]) -> None:
        newest: dict[str, Checkpoint] = {}
        for each in checkpoints:
            kept = newest.get(each.run_id)
            if kept is None or kept.last_event_seq <= each.last_event_seq:
                newest[each.run_id] = each
        if not newest:
            return
        version = random.getrandbits(62)

        async def save(db: AsyncConnection) -> list[str]:
            async with db.pipeline(), db.transaction():
                return await self._save(db, newest, version)

        for run_id in await self._db.write(save):
            self._written[run_id] = (version, newest[run_id].snapshot)
            self._written.move_to_end(run_id)
        while len(self._written) > _MAX_REMEMBERED:
            self._written.popitem(last=False)

    async def _save(
        self, db: AsyncConnection, newest: dict[str, Checkpoint], version: int
    ) -> list[str]:
        """Write within a transaction; says of which runs the checkpoint was taken."""
        held = await db.execute(_HOLD_RUNS, (list(newest),))
        found = await db.execute(_HOLD, (list(newest),))
        numbers: dict[str, int] = dict(await held.fetchall())
        versions: dict[int, int] = dict(await found.fetchall())
        if not numbers:
            return []
        heads: list[tuple[int, int, str, int]] = []
        pages: list[tuple[int, int, str]] = []
        for run_id, number in numbers.items():
            checkpoint = newest[run_id]
            known, before = self._written.get(run_id, (None, None))
            pieces = split(checkpoint, before if versions.get(number) == known else None)
            head = pieces.head.decode()
            heads.append((number, checkpoint.last_event_seq, head, pieces.steps))
            pages += [(number, page, steps.decode()) for page, steps in pieces.pages.items()]
        taken = await db.execute(_SAVE, (version, *columns(heads, 4), *columns(pages, 3)))
        await self._and_then(db, list(newest.values()))
        names = {number: run_id for run_id, number in numbers.items()}
        return [names[run] for (run,) in await taken.fetchall()]

    async def load(self, run_id: str) -> Checkpoint | None:
        rows = await self._db.read(_LOAD, run_id)
        return join(run_id, *rows[0]) if rows else None
