"""The tables of the PostgreSQL stores.

`runs.changed` is the transaction that changed a run last. Together with the snapshot of a reader it
says exactly which changes that reader has not seen, also those that are committed late: no clock
and no counter could, since both are read before the commit.
"""

from typing import Final
from uuid import uuid4

from psycopg import AsyncConnection, errors

from headwater.errors import NewerFormat, SettingsError

FORMAT: Final = 2
"""1 kept checkpoints whole."""
_ATTEMPTS: Final = 20
_IN_THE_WAY: Final = (
    errors.UniqueViolation,
    errors.DuplicateObject,
    errors.DuplicateTable,
    errors.DuplicateColumn,
    errors.DeadlockDetected,
)
"""What says that another process prepared the schema at the same time."""

_SCHEMA: Final = "CREATE SCHEMA IF NOT EXISTS "
_TABLES: Final = (
    b"""
    CREATE TABLE settings (name text PRIMARY KEY, value text NOT NULL)
    """,
    b"""
    CREATE TABLE runs (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        run_id text COLLATE "C" NOT NULL UNIQUE,
        status text NOT NULL,
        last_seq bigint NOT NULL,
        created_at timestamptz NOT NULL,
        updated_at timestamptz NOT NULL,
        changed xid8 NOT NULL,
        deleted boolean NOT NULL DEFAULT false
    )
    """,
    b"CREATE INDEX runs_by_change ON runs (changed, number)",
    b"""
    CREATE INDEX runs_by_creation ON runs (created_at, run_id) WHERE NOT deleted
    """,
    b"""
    CREATE INDEX runs_by_status ON runs (status, created_at, run_id)
    WHERE NOT deleted
    """,
    # `json` and not `jsonb`: it keeps an event as it was written, with \u0000 and all.
    b"""
    CREATE TABLE events (
        run bigint NOT NULL,
        run_seq bigint NOT NULL,
        idempotency_key text COLLATE "C" NOT NULL,
        persisted_at timestamptz NOT NULL,
        body json NOT NULL,
        CONSTRAINT events_by_seq PRIMARY KEY (run, run_seq),
        CONSTRAINT events_by_key UNIQUE (run, idempotency_key)
    )
    """,
    b"""
    CREATE TABLE checkpoints (
        run bigint PRIMARY KEY,
        last_event_seq bigint NOT NULL,
        document json NOT NULL
    )
    """,
)
_SINCE_2: Final = (
    b"""
    ALTER TABLE checkpoints ADD COLUMN steps int NOT NULL DEFAULT 0,
        ADD COLUMN version bigint NOT NULL DEFAULT 0
    """,
    b"""
    CREATE TABLE checkpoint_steps (
        run bigint NOT NULL,
        page int NOT NULL,
        steps json NOT NULL,
        PRIMARY KEY (run, page)
    )
    """,
)
# The settings are made with the tables, in one transaction: where one is, so are the others.
_IS_MADE: Final = b"SELECT to_regclass(%s || '.settings') IS NOT NULL"
_SETTING: Final = b"INSERT INTO settings VALUES (%s, %s)"
# Transactions are numbered by the cluster: after a restore into another one, those of the old one
# may lie in the future, where every reader would take them for new again and again.
_REPAIR: Final = b"""
    UPDATE runs SET changed = pg_current_xact_id() WHERE changed > pg_current_xact_id()
"""
SAVE_POSITION: Final = """
    INSERT INTO settings VALUES ('position', %s)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
# For the same reason: a position of the old cluster would take new transactions for known ones.
_FORGET_POSITION: Final = b"""
    DELETE FROM settings WHERE CASE WHEN name = 'position' THEN (
        SELECT max(number::numeric) > pg_snapshot_xmax(pg_current_snapshot())::text::numeric
        FROM regexp_split_to_table(value::json->>'mark', '[:,/]') AS number WHERE number <> ''
    ) END
"""


async def prepare(db: AsyncConnection, schema: str, kind: str) -> str:
    """Make the tables where they are missing, and give the id of this installation.

    Several processes may try at once: whoever comes second waits for the first, fails, and finds
    everything there. Tables that are there are left alone, since even `CREATE INDEX IF NOT EXISTS`
    locks out those who write, and two who hold that lock and want to write wait for each other.
    """
    for attempt in range(_ATTEMPTS):
        try:
            async with db.transaction():
                return await _prepare(db, schema, kind)
        except _IN_THE_WAY:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


async def _prepare(db: AsyncConnection, schema: str, kind: str) -> str:
    encoding = db.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SettingsError("run store", f"{encoding} database", "one whose encoding is UTF8")
    made = await (await db.execute(_IS_MADE, (schema,))).fetchone()
    if made != (True,):
        await _make(db, schema, kind)
    rows = await (await db.execute(b"SELECT name, value FROM settings")).fetchall()
    settings: dict[str, str] = dict(rows)
    if int(settings["format"]) == 1:
        for statement in _SINCE_2:
            await db.execute(statement)
        await db.execute(b"UPDATE settings SET value = '2' WHERE name = 'format'")
    elif int(settings["format"]) > FORMAT:
        raise NewerFormat(f"schema {schema}", int(settings["format"]), FORMAT)
    if settings["authority"] != kind:
        raise SettingsError(
            "run store",
            f"schema {schema} with the authority '{kind}'",
            f"'{settings['authority']}', which numbers the runs there: "
            "use it, or another schema (?schema=...)",
        )
    await db.execute(_REPAIR)
    await db.execute(_FORGET_POSITION)
    return settings["installation"]


async def _make(db: AsyncConnection, schema: str, kind: str) -> None:
    await db.execute(f'{_SCHEMA}"{schema}"'.encode())
    for statement in (*_TABLES, *_SINCE_2):
        await db.execute(statement)
    for name, value in (
        ("format", str(FORMAT)),
        ("authority", kind),
        ("installation", uuid4().hex),
    ):
        await db.execute(_SETTING, (name, value))
