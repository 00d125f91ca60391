"""The public conformance suite, over our own wire and over ASGI.

A round mostly waits for timeouts that the protocol prescribes, so all rounds run at once.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.suite import LONG_POLL_SECONDS, Verdict, run_suite
from tests.support.asgi import AsgiProcess
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_engine

ALL: Final = 338
OPTIONS: Final = ("--allow-local-webhooks", "--long-poll-timeout", str(LONG_POLL_SECONDS))
"""The suite receives webhooks on this machine."""
HARDLY_ANY_MEMORY: Final = (
    *("--memory-budget-bytes", "256"),
    *("--journal-bytes", "4096"),
    *("--max-loaded-streams", "1"),
    *("--max-open-segments", "2"),
    *("--checkpoint-interval", "0.02"),
)
SERVERS: Final[dict[str, Callable[[Path], AbstractContextManager[ServerProcess | AsgiProcess]]]] = {
    "memory": lambda _: ServerProcess(*OPTIONS),
    "disk": lambda folder: ServerProcess(*OPTIONS, store=folder / "data"),
    "disk with hardly any memory": lambda folder: ServerProcess(
        *OPTIONS, *HARDLY_ANY_MEMORY, store=folder / "data"
    ),
    "ASGI under uvicorn": lambda _: AsgiProcess("tests.support.asgi_apps:plain"),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Verdict]]]:
    """The suite's verdicts on all servers, each there when its round has ended."""

    def run(name: str) -> Verdict:
        folder = tmp_path_factory.mktemp("round")
        with SERVERS[name](folder) as server:
            return run_suite(server.url, folder / "report.json", subscriptions=True)

    with ThreadPoolExecutor(len(SERVERS)) as rounds:
        yield {name: rounds.submit(run, name) for name in SERVERS}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_conforms(name: str, verdicts: dict[str, Future[Verdict]]) -> None:
    verdict = verdicts[name].result()
    assert verdict.failures == ()
    assert (verdict.passed, verdict.skipped) == (ALL, 0)
