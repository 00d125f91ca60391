"""Runs in PostgreSQL, numbered by a sequence for each run: the contract's own strategy.

Drawing takes no lock, so writers of one run are numbered at once. The price is an object of the
database for each run: it is made with the run and dropped with it.
"""

from typing import ClassVar

from psycopg import AsyncConnection, sql

from headwater.runs.stores.postgres import Head
from headwater.runs.stores.postgres_drawn import DrawnRunStore


def sequence_of(number: int) -> sql.Identifier:
    """Name the sequence of a run by the number of its row: any run id must do."""
    return sql.Identifier(f"run_{number}_seq")


class PostgresSequenceRunStore(DrawnRunStore):
    """Draws from a sequence of the database."""

    authority: ClassVar[str] = "a sequence of the database for each run"
    kind: ClassVar[str] = "sequence"

    async def _prepare_numbers(self, db: AsyncConnection, run_id: str, number: int) -> None:
        del run_id
        # A cache would give each connection numbers in advance: rising no more.
        await db.execute(sql.SQL("CREATE SEQUENCE {} CACHE 1").format(sequence_of(number)))

    async def _forget_numbers(self, db: AsyncConnection, run_id: str, number: int) -> None:
        del run_id
        await db.execute(sql.SQL("DROP SEQUENCE IF EXISTS {}").format(sequence_of(number)))

    async def _draw(self, db: AsyncConnection, run_id: str, head: Head, count: int) -> list[int]:
        del run_id
        name = sequence_of(head.number).as_string(None)
        rows = await db.execute(
            "SELECT nextval(%s::regclass) FROM generate_series(1, %s)", (name, count)
        )
        return [number for (number,) in await rows.fetchall()]
