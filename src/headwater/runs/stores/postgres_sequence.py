"""Runs in PostgreSQL, numbered by a sequence for each run: the contract's own strategy.

Drawing takes no lock, so writers of one run are numbered at once. The price is an object of the
database for each run: it is made with the run and dropped with it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from psycopg import AsyncConnection, sql

from headwater.runs.stores.postgres import Head
from headwater.runs.stores.postgres_connections import columns
from headwater.runs.stores.postgres_drawn import DrawnRunStore

_DRAW: Final = """
    SELECT wanted.run_id, nextval(wanted.name::regclass)
    FROM unnest(%b::text[], %b::text[], %b::int[]) AS wanted (run_id, name, count),
        generate_series(1, wanted.count)
"""


def sequence_of(number: int) -> sql.Identifier:
    """Name the sequence of a run by the number of its row: any run id must do."""
    return sql.Identifier(f"run_{number}_seq")


class PostgresSequenceRunStore(DrawnRunStore):
    """Draws from a sequence of the database."""

    authority: ClassVar[str] = "a sequence of the database for each run"
    kind: ClassVar[str] = "sequence"

    async def _prepare_numbers(self, db: AsyncConnection, numbers: Sequence[int]) -> None:
        for number in numbers:
            # A cache would give each connection numbers in advance: rising no more.
            await db.execute(sql.SQL("CREATE SEQUENCE {} CACHE 1").format(sequence_of(number)))

    async def _forget_numbers(self, db: AsyncConnection, run_id: str, number: int) -> None:
        del run_id
        await db.execute(sql.SQL("DROP SEQUENCE IF EXISTS {}").format(sequence_of(number)))

    async def _draw(
        self, db: AsyncConnection, heads: Mapping[str, Head], counts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        wanted = [
            (run_id, sequence_of(heads[run_id].number).as_string(None), count)
            for run_id, count in counts.items()
        ]
        rows = await db.execute(_DRAW, columns(wanted, 3))
        drawn: dict[str, list[int]] = {run_id: [] for run_id in counts}
        for run_id, number in await rows.fetchall():
            drawn[run_id].append(number)
        return {run_id: sorted(numbers) for run_id, numbers in drawn.items()}
