"""Which runs have changed, exactly: by what transactions a reader has seen.

A mark is the snapshot of the reader's last question: the transactions that it saw. A run whose last
transaction is not among them has changed, however late it was committed. Where one answer can't
hold all, the mark also says how far that one went and what it saw: rows behind its last one are
still to be named, and so is whatever it could not see.
"""

import re
from typing import Final, NamedTuple, Self

from headwater.errors import RunQueryRefused

_EVERYTHING: Final = "1:1:"
_SNAPSHOT: Final = re.compile(r"\d{1,19}:\d{1,19}:[\d,]*")

# The text has a name of its own: ORDER BY would take it for the number, and '10' is below '9'.
CHANGES: Final = """
    SELECT now.snapshot, found.* FROM (SELECT pg_current_snapshot()::text AS snapshot) AS now
    LEFT JOIN LATERAL (
        SELECT changed::text AS changed_text, number, run_id, status, last_seq, created_at,
            updated_at, deleted
        FROM runs
        WHERE changed >= pg_snapshot_xmin(%s::pg_snapshot)
        AND NOT pg_visible_in_snapshot(changed, %s::pg_snapshot)
        AND ((changed, number) > (%s::text::xid8, %s)
            OR NOT pg_visible_in_snapshot(changed, %s::pg_snapshot))
        ORDER BY changed, number LIMIT %s
    ) AS found ON true
    ORDER BY found.changed_text::xid8, found.number
"""


class ChangeMark(NamedTuple):
    """What a reader has seen."""

    seen: str
    """The snapshot before which all is known."""
    page: str = _EVERYTHING
    """The snapshot of the answer that was cut off, where there is one."""
    changed: str = "0"
    """The transaction of the last run that it named."""
    number: int = 0

    @classmethod
    def parse(cls, mark: str) -> Self:
        """Read a mark; "" is before everything."""
        if not mark:
            return cls(_EVERYTHING)
        seen, *rest = mark.split("/")
        try:
            made = cls(seen, rest[0], rest[1], int(rest[2])) if rest else cls(seen)
            int(made.changed)
        except (IndexError, ValueError):
            made = cls("")
        if not _SNAPSHOT.fullmatch(made.seen) or not _SNAPSHOT.fullmatch(made.page):
            raise RunQueryRefused("mark", mark, "the mark of an earlier answer of this store")
        return made

    def __str__(self) -> str:
        if self.page == _EVERYTHING:
            return self.seen
        return f"{self.seen}/{self.page}/{self.changed}/{self.number}"

    def values(self) -> tuple[object, ...]:
        """Give what `CHANGES` is asked with, without the limit."""
        return (self.seen, self.seen, self.changed, self.number, self.page)

    def behind(self, snapshot: str, last: tuple[str, int] | None) -> "ChangeMark":
        """Say where to go on: behind an answer that was cut off, or at its snapshot."""
        if last is None:
            return ChangeMark(snapshot)
        return ChangeMark(self.seen, snapshot, *last)
