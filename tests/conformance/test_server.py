"""The public conformance suite, over our own wire and over ASGI."""

from pathlib import Path

import pytest

from tests.conformance.suite import LONG_POLL_SECONDS, run_suite
from tests.support.asgi import AsgiProcess
from tests.support.compiled import RUNS_COMPILED
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_engine

ALL = 338
LOCAL = "--allow-local-webhooks"
"""The suite receives webhooks on this machine."""


def test_the_memory_store_conforms(tmp_path: Path) -> None:
    with ServerProcess(LOCAL, "--long-poll-timeout", str(LONG_POLL_SECONDS)) as server:
        verdict = run_suite(server.url, tmp_path / "report.json", subscriptions=True)
    assert verdict.failures == ()
    assert (verdict.passed, verdict.skipped) == (ALL, 0)


@pytest.fixture
def build(request: pytest.FixtureRequest) -> None:
    """Run the compiled server, as users do, where there is a compiler."""
    if RUNS_COMPILED:
        request.getfixturevalue("serves_compiled")


@pytest.mark.usefixtures("build")
def test_the_disk_store_conforms(tmp_path: Path) -> None:
    with ServerProcess(
        LOCAL,
        *("--long-poll-timeout", str(LONG_POLL_SECONDS)),
        *("--store", str(tmp_path / "data")),
    ) as server:
        verdict = run_suite(server.url, tmp_path / "report.json", subscriptions=True)
    assert verdict.failures == ()
    assert (verdict.passed, verdict.skipped) == (ALL, 0)


@pytest.mark.usefixtures("build")
def test_the_disk_store_conforms_with_hardly_any_memory(tmp_path: Path) -> None:
    with ServerProcess(
        LOCAL,
        *("--long-poll-timeout", str(LONG_POLL_SECONDS)),
        *("--store", str(tmp_path / "data")),
        *("--memory-budget-bytes", "256"),
        *("--journal-bytes", "4096"),
        *("--max-loaded-streams", "1"),
        *("--max-open-segments", "2"),
        *("--checkpoint-interval", "0.02"),
    ) as server:
        verdict = run_suite(server.url, tmp_path / "report.json", subscriptions=True)
    assert verdict.failures == ()
    assert (verdict.passed, verdict.skipped) == (ALL, 0)


def test_the_asgi_adapter_conforms_under_uvicorn(tmp_path: Path) -> None:
    with AsgiProcess("tests.support.asgi_apps:plain") as server:
        verdict = run_suite(server.url, tmp_path / "report.json", subscriptions=True)
    assert verdict.failures == ()
    assert (verdict.passed, verdict.skipped) == (ALL, 0)
