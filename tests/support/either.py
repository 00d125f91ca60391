"""Either server of the protocol: ours, or the public one that npm has."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.peer import PeerProcess
from tests.support.server import ServerProcess

SERVERS = ["headwater", pytest.param("node", marks=pytest.mark.starts_engine)]


@contextmanager
def either_server(name: str, *options: str) -> Iterator[str]:
    """Run a server for a block and give its URL; the options are for ours."""
    with PeerProcess() if name == "node" else ServerProcess(*options) as server:
        yield server.url
