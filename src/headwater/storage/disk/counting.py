"""How many streams there are: those of the catalog, and what the journal behind it says."""

import sqlite3

from headwater.storage.disk.records import CREATE, DELETE, stream_of


class Living:
    """Counts the streams that are not deleted as the journal goes on."""

    def __init__(self, db: sqlite3.Connection | None) -> None:
        self._db = db
        self._made: set[int] = set()
        self._gone: set[int] = set()

    def follow(self, body: bytes) -> None:
        """Go on by one record; what the catalog has already changes nothing."""
        number = stream_of(body)
        if body[0] == CREATE and self._living(number) is None:
            self._made.add(number)
        elif body[0] == DELETE:
            self._made.discard(number)
            if self._living(number):
                self._gone.add(number)

    def _living(self, number: int) -> bool | None:
        if self._db is None:
            return None
        query = "SELECT NOT deleted FROM streams WHERE id = ?"
        row = self._db.execute(query, (number,)).fetchone()
        return None if row is None else bool(row[0])

    @property
    def count(self) -> int:
        known = 0
        if self._db is not None:
            query = "SELECT count(*) FROM streams WHERE NOT deleted"
            known = int(self._db.execute(query).fetchone()[0])
        return known + len(self._made) - len(self._gone)
