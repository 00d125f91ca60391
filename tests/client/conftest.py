"""One server for the tests of the client, and a separate stream for each test."""

import uuid
from collections.abc import Iterator

import pytest

from headwater.client import Client, Stream
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess


def live_reads(proxy: Proxy) -> int:
    """Count how often clients have begun to wait for more."""
    return sum(b"live=" in head for head in proxy.requests)


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    brief = ("--sse-duration", "0.3", "--long-poll-timeout", "0.3")
    with ServerProcess(*brief, "--chunk-bytes", "1000000") as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


@pytest.fixture
def path() -> str:
    return f"test/{uuid.uuid4()}"


@pytest.fixture
def stream(client: Client, path: str) -> Stream:
    opened = client.stream(path)
    opened.create()
    return opened


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(server.url) as between:
        yield between
