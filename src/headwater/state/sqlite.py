"""The state in an SQLite file: rows and offset commit together, and a restart goes on from there.

There are two tables of rows. One holds the state, the other what a snapshot has staged; when the
snapshot ends they change roles. That costs the same whatever they hold, and the rows that are
dropped go in one step.
"""

import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.errors import StateFileError
from headwater.state.backend import Changes, Quarantined, Row, Saved, Work

FORMAT: Final = 1
_APPLICATION: Final = 0x48575354  # "HWST"

_SCHEMA: Final = """
CREATE TABLE rows_0 (type TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
                     PRIMARY KEY (type, key)) WITHOUT ROWID;
CREATE TABLE rows_1 (type TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
                     PRIMARY KEY (type, key)) WITHOUT ROWID;
CREATE TABLE quarantined (number INTEGER PRIMARY KEY, position TEXT NOT NULL, reason TEXT NOT NULL,
                          type TEXT NOT NULL, key TEXT NOT NULL, message BLOB NOT NULL);
CREATE TABLE saved (active INTEGER NOT NULL, saved TEXT NOT NULL);
"""

_LARGEST_INTEGER: Final = 2**63 - 1


class SqliteBackend:
    """Keeps rows in a file; see `Backend` for what the methods promise."""

    def __init__(self, file: str | Path) -> None:
        """Open the file, or make it; one that belongs to something else raises."""
        self._file = str(file)
        self._lock = threading.RLock()
        try:
            # Statements outside an explicit transaction commit themselves.
            self._db = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StateFileError(self._file, f"{error}. Check the path.") from None
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._db.close()
            raise StateFileError(
                self._file, f"{error}. Choose another file, or stop what uses this one."
            ) from None
        except StateFileError:
            self._db.close()
            raise

    def _prepare(self) -> None:
        # Only one process may apply a stream here: a second one is told at once.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA busy_timeout = 0")
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application not in {0, _APPLICATION} or (application == 0 and tables):
            raise StateFileError(self._file, "it holds something else. Choose another file.")
        if version > FORMAT:
            raise StateFileError(
                self._file,
                f"it has format {version}, and this Headwater knows {FORMAT}: use a newer one.",
            )
        # A write-ahead log, synced at each commit: what is committed outlives a power cut.
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            if not tables:
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
                self._db.execute(f"PRAGMA user_version = {FORMAT}")
                self._db.execute("INSERT INTO saved VALUES (0, ?)", (_written(Saved()),))
        self._active, _ = self._read_saved()

    def _read_saved(self) -> tuple[int, Saved]:
        active, saved = self._db.execute("SELECT active, saved FROM saved").fetchone()
        return active, msgspec.json.decode(saved, type=Saved)

    def load(self) -> Saved:
        with self._lock:
            return self._read_saved()[1]

    def commit(self, work: Work) -> None:
        with self._lock:
            active = self._active
            with self._transaction():
                if work.base != "keep":
                    self._db.execute(f"DELETE FROM rows_{active}")  # noqa: S608 - a number of ours
                if work.base == "staged":
                    active = 1 - active
                elif work.base == "empty":
                    self._db.execute(f"DELETE FROM rows_{1 - active}")  # noqa: S608 - a number of ours
                self._apply(active, work.changes)
                if work.staged_base == "empty":
                    self._db.execute(f"DELETE FROM rows_{1 - active}")  # noqa: S608 - a number of ours
                self._apply(1 - active, work.staged)
                if work.forget_quarantined:
                    self._db.execute("DELETE FROM quarantined")
                self._db.executemany(
                    "INSERT INTO quarantined (position, reason, type, key, message)"
                    " VALUES (?, ?, ?, ?, ?)",
                    [
                        (each.position, each.reason, each.type, each.key, each.message)
                        for each in work.quarantined
                    ],
                )
                self._db.execute(
                    "UPDATE saved SET active = ?, saved = ?", (active, _written(work.saved))
                )
            self._active = active

    def _apply(self, table: int, changes: Changes) -> None:
        for type_, entities in changes.items():
            self._db.executemany(
                f"INSERT INTO rows_{table} VALUES (?, ?, ?)"  # noqa: S608 - a number of ours
                " ON CONFLICT DO UPDATE SET value = excluded.value",
                (
                    (type_, key, str(data, "utf-8"))
                    for key, data in entities.items()
                    if data is not None
                ),
            )
            self._db.executemany(
                f"DELETE FROM rows_{table} WHERE type = ? AND key = ?",  # noqa: S608 - likewise
                ((type_, key) for key, data in entities.items() if data is None),
            )

    def get(self, type: str, key: str) -> bytes | None:
        found = self._all("SELECT value FROM ACTIVE WHERE type = ? AND key = ?", type, key)
        return found[0][0].encode() if found else None

    def rows(self, type: str) -> list[Row]:
        return _rows(self._all("SELECT key, value FROM ACTIVE WHERE type = ? ORDER BY key", type))

    def staged_rows(self, type: str) -> list[Row]:
        with self._lock:
            found = self._db.execute(
                f"SELECT key, value FROM rows_{1 - self._active} WHERE type = ? ORDER BY key",  # noqa: S608 - 0 or 1
                (type,),
            ).fetchall()
        return _rows(found)

    def lookup(self, type: str, path: str, value: Any) -> Iterable[Row] | None:
        with self._lock:
            known = self._db.execute(
                "SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = ?",
                (_index_name(self._active, type, path),),
            ).fetchone()
        if known is None or not _can_look_up(value):
            return None
        return _rows(
            self._all(
                f"SELECT key, value FROM ACTIVE WHERE type = {_quoted(type)}"  # noqa: S608 - quoted
                f" AND {_extract(path)} IS ? ORDER BY key",
                value,
            )
        )

    def create_index(self, type: str, path: str) -> None:
        with self._lock, self._transaction():
            for table in (0, 1):
                self._db.execute(
                    f'CREATE INDEX IF NOT EXISTS "{_index_name(table, type, path)}" ON rows_{table}'
                    f" ({_extract(path)}) WHERE type = {_quoted(type)}"
                )

    def count(self, type: str) -> int:
        ((count,),) = self._all("SELECT count(*) FROM ACTIVE WHERE type = ?", type)
        return int(count)

    def types(self) -> list[str]:
        found: list[str] = []
        # Each step is one look into the primary key, however many rows a type has.
        while row := self._all(
            "SELECT min(type) FROM ACTIVE WHERE type > ?", found[-1] if found else ""
        ):
            if row[0][0] is None:
                break
            found.append(row[0][0])
        return found

    def quarantined(self) -> Iterator[Quarantined]:
        with self._lock:
            found = self._db.execute(
                "SELECT position, reason, type, key, message FROM quarantined ORDER BY number"
            ).fetchall()
        return (Quarantined(*row) for row in found)

    def clear(self) -> None:
        with self._lock, self._transaction():
            for table in ("rows_0", "rows_1", "quarantined"):
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - a name of ours
            self._db.execute("UPDATE saved SET saved = ?", (_written(Saved()),))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _all(self, query: str, *values: Any) -> list[Any]:
        with self._lock:
            # Only the first: a type may be called anything.
            named = query.replace("ACTIVE", f"rows_{self._active}", 1)
            return self._db.execute(named, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _written(saved: Saved) -> str:
    return msgspec.json.encode(saved).decode()


def _rows(found: list[Any]) -> list[Row]:
    return [Row(key, value.encode()) for key, value in found]


def _index_name(table: int, type_: str, path: str) -> str:
    return re.sub(r'["\0]', "_", f"index_{table}:{type_}:{path}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _extract(path: str) -> str:
    names = "".join(f'."{name}"' for name in path.split("."))
    return f"json_extract(value, {_quoted('$' + names)})"


def _can_look_up(value: Any) -> bool:
    """Tell whether SQLite sees this value in JSON as Python does."""
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, int):
        return abs(value) <= _LARGEST_INTEGER
    # SQLite may read the last digit of a fraction otherwise than Python does.
    return value is None or (isinstance(value, float) and value.is_integer() and abs(value) < 2**53)
