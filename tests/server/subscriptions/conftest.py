"""A server that lets webhooks come back to this machine, on both kinds of store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.subscriptions.steps import Api
from tests.support.server import ServerProcess


@pytest.fixture(params=["memory", "disk"])
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
    """A fresh server."""
    store = "memory" if request.param == "memory" else str(tmp_path / "data")
    with ServerProcess("--allow-local-webhooks", "--store", store) as server:
        yield Api(server.url)
    assert "Traceback" not in server.log(), server.log()
