"""A server for each test session, others on request, and connections to them."""

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.support.server import ServerProcess
from tests.support.wire import Wire

Serve = Callable[..., ServerProcess]

_number: Final = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """The server that tests share when they need no options."""
    process = ServerProcess().start()
    yield process
    code = process.stop()
    assert code == 0, process.log()
    assert "Traceback" not in process.log()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers with options; they must end well."""
    started: list[ServerProcess] = []

    def start(*options: str) -> ServerProcess:
        started.append(ServerProcess(*options).start())
        return started[-1]

    yield start
    for process in started:
        try:
            if process.is_running:
                assert process.stop() == 0, process.log()
            assert "Traceback" not in process.log()
        finally:
            process.kill()


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """A connection to the shared server."""
    with Wire(server.port) as connection:
        yield connection


@pytest.fixture
def path() -> str:
    """The URL path of a stream that no other test uses."""
    return f"/v1/stream/test/{next(_number)}"
