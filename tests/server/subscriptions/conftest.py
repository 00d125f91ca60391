"""Servers that allow local webhooks, on both kinds of store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.subscriptions.steps import Api, Webhook
from tests.support.server import ServerProcess
from tests.support.stepped_server import SteppedServer


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory" if request.param == "memory" else str(tmp_path / "data")


@pytest.fixture
def api(store: str) -> Iterator[Api]:
    """A new server; it waits for a webhook's response as long as a test may take."""
    options = ("--allow-local-webhooks", "--webhook-timeout", "600")
    with ServerProcess(*options, "--store", store) as server:
        yield Api(server.url)
    assert "Traceback" not in server.log(), server.log()


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with Webhook() as webhook:
        yield webhook


@pytest.fixture
def stepped(store: str) -> Iterator[SteppedServer]:
    """A new server whose clock a test advances."""
    with SteppedServer(store=store, allow_local_webhooks=True) as server:
        yield server
