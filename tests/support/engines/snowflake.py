"""Snowflake, as fakesnow: its connector is ours, its database is DuckDB."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.engines.process import answers_tcp, free_port, running

ROOT = Path(__file__).parents[3]
_schemas = count(1)


class Snowflake:
    """A server with one database."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def run_store_url(self, endpoint: str = "") -> str:
        """Name a run store in a schema that is not there yet."""
        port = urlsplit(endpoint or self.url).port
        return (
            f"snowflake://fake:snow@fakesnow/headwater/runs_{next(_schemas)}"
            f"?host=127.0.0.1&port={port}&protocol=http"
        )

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement from outside of any store."""
        import snowflake.connector  # noqa: PLC0415 - it takes a second, and few tests need it

        with snowflake.connector.connect(
            user="fake",
            password="snow",
            account="fakesnow",
            host="127.0.0.1",
            port=urlsplit(self.url).port,
            protocol="http",
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            rows: list[tuple[object, ...]] = cursor.fetchall()
            return rows


@contextmanager
def start_snowflake(folder: Path) -> Iterator[Snowflake]:
    """Start the emulator with an empty database."""
    try:
        import fakesnow.server  # noqa: F401, PLC0415 - only to say at once that it is missing
    except ImportError as error:
        pytest.fail(f"fakesnow is missing ({error}): run 'make test', which installs it.")
    port = free_port()
    command = [sys.executable, "-m", "tests.support.engines.snowflake_server", str(port)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    log = folder / "snowflake.log"
    with running("fakesnow", command, log, lambda: answers_tcp(port), env):
        server = Snowflake(port)
        server.execute("CREATE DATABASE IF NOT EXISTS headwater")
        yield server
