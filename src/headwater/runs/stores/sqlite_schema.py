"""The tables of the SQLite store, and the connections to them."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from headwater.errors import (
    NewerFormat,
    RunError,
    RunStoreDamaged,
    RunStoreUnavailable,
    SettingsError,
)

APPLICATION_ID: Final = 0x48575253  # "HWRS"
FORMAT: Final = 2
"""1 kept checkpoints whole, and no position."""
BUSY_SECONDS: Final = 30.0
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_TABLES: Final = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    last_seq INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    changed INTEGER NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX runs_by_change ON runs (changed);
CREATE INDEX runs_by_creation ON runs (deleted, created_at, run_id);
CREATE INDEX runs_by_status ON runs (deleted, status, created_at, run_id);
CREATE TABLE events (
    run INTEGER NOT NULL,
    run_seq INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    persisted_at TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run, run_seq)
);
CREATE UNIQUE INDEX events_by_key ON events (run, idempotency_key);
CREATE TABLE checkpoints (
    run INTEGER PRIMARY KEY,
    last_event_seq INTEGER NOT NULL,
    document BLOB NOT NULL
);
"""
_SINCE_2: Final = """
ALTER TABLE checkpoints ADD COLUMN steps INTEGER NOT NULL DEFAULT 0;
ALTER TABLE checkpoints ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
CREATE TABLE checkpoint_steps (
    run INTEGER NOT NULL,
    page INTEGER NOT NULL,
    steps BLOB NOT NULL,
    PRIMARY KEY (run, page)
) WITHOUT ROWID;
CREATE TABLE position (one INTEGER PRIMARY KEY, text TEXT NOT NULL);
"""


def connect(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Connect to the database; statements are in transactions only where we say so."""
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        # FULL syncs the log at each commit: what is acknowledged survives a power cut.
        db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        db.execute("PRAGMA cache_size = -65536")
    except BaseException:
        db.close()
        raise
    return db


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables where they are missing; several processes may try at once."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db, path)
        missing = (_TABLES, _SINCE_2)[version:]
        for statement in ";".join(missing).split(";"):
            db.execute(statement)
        if missing:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _version(db: sqlite3.Connection, path: Path) -> int:
    """Say which format a file has, 0 for a new one; refuses what is no file of runs."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION_ID:
        raise SettingsError("run store", str(path), "a file of runs; this is another database")
    if version > FORMAT:
        raise NewerFormat(str(path), version, FORMAT)
    return int(version)


def unavailable(path: Path, error: sqlite3.Error) -> RunError:
    """Say what a failure of SQLite means to whoever called."""
    # The low byte is the primary code; the rest only says which kind of it.
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
        return RunStoreDamaged(str(path), str(error))
    return RunStoreUnavailable(f"'{path}'", str(error))


def copy(source: Path, target: Path) -> int:
    """Copy a file of runs as it is at one moment, while it may be in use; gives its size."""
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as db:
            _version(db, source)
            with closing(sqlite3.connect(target)) as other:
                other.execute("PRAGMA synchronous = FULL")
                db.backup(other)
    except sqlite3.Error as error:
        raise unavailable(source, error) from error
    return target.stat().st_size
