"""Checkpoints in SQLite: a head for each run and its steps in pages.

A head has a version, anew with each write. Whoever finds the version that they wrote last writes
only the pages that changed since; where another process came between, they write all of them.
"""

import random
import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from headwater.runs.checkpoint_pages import join, split
from headwater.runs.store import Checkpoint
from headwater.runs.values import RunSnapshot

_MAX_REMEMBERED: Final = 10_000
_FIND: Final = """
    SELECT r.number, c.last_event_seq, c.version FROM runs r
    LEFT JOIN checkpoints c ON c.run = r.number WHERE r.run_id = ? AND NOT r.deleted
"""
_HEAD: Final = """
    INSERT OR REPLACE INTO checkpoints (run, last_event_seq, document, steps, version)
    VALUES (?, ?, ?, ?, ?)
"""
_PAGES: Final = "INSERT OR REPLACE INTO checkpoint_steps (run, page, steps) VALUES (?, ?, ?)"
# One statement, so that head and pages are of one moment.
_LOAD: Final = """
    SELECT c.document, c.steps, p.steps FROM checkpoints c
    LEFT JOIN checkpoint_steps p ON p.run = c.run
    WHERE c.run = (SELECT number FROM runs WHERE run_id = ?) ORDER BY p.page
"""


class Checkpoints:
    """Saves and loads them; `save` belongs to the thread that writes."""

    def __init__(self) -> None:
        self._written: OrderedDict[str, tuple[int, RunSnapshot]] = OrderedDict()
        """What was written last of a run, and as which version."""

    def save(self, db: sqlite3.Connection, checkpoints: Sequence[Checkpoint]) -> None:
        """Write within a transaction.

        If that is undone, the versions remembered here are not found any more, and all is written.
        """
        for checkpoint in checkpoints:
            found = db.execute(_FIND, (checkpoint.run_id,)).fetchone()
            if found is None:
                continue
            number, last_event_seq, version = found
            if last_event_seq is None or last_event_seq <= checkpoint.last_event_seq:
                self._save(db, number, version, checkpoint)

    def _save(
        self, db: sqlite3.Connection, number: int, version: int | None, checkpoint: Checkpoint
    ) -> None:
        known, before = self._written.get(checkpoint.run_id, (None, None))
        pieces = split(checkpoint, before if version == known else None)
        version = random.getrandbits(62)
        head = (number, checkpoint.last_event_seq, pieces.head, pieces.steps, version)
        db.execute(_HEAD, head)
        db.executemany(_PAGES, [(number, page, steps) for page, steps in pieces.pages.items()])
        self._written[checkpoint.run_id] = (version, checkpoint.snapshot)
        self._written.move_to_end(checkpoint.run_id)
        if len(self._written) > _MAX_REMEMBERED:
            self._written.popitem(last=False)


def load(db: sqlite3.Connection, run_id: str) -> Checkpoint | None:
    """Read the checkpoint of a run."""
    rows = db.execute(_LOAD, (run_id,)).fetchall()
    if not rows:
        return None
    document, steps, _ = rows[0]
    return join(run_id, document, steps, [page for _, _, page in rows if page is not None])


def delete(db: sqlite3.Connection, number: int) -> None:
    """Drop the checkpoint of a run, within a transaction."""
    db.execute("DELETE FROM checkpoints WHERE run = ?", (number,))
    db.execute("DELETE FROM checkpoint_steps WHERE run = ?", (number,))
