"""The store on a stream server keeps the promises of any run store."""

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from headwater.client import Client
from headwater.errors import RunStoreUnavailable, SettingsError
from headwater.runs import RunStore, run_store
from headwater.runs.stores.streams import StreamRunStore
from tests.suites.run_steps import started
from tests.suites.run_store_fire import FireSuite, SharedFireSuite
from tests.suites.run_store_suite import RunStoreSuite
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process


class TestStreamRunStore(RunStoreSuite, FireSuite):
    """Every promise."""

    @pytest.fixture
    def store(self, server: ServerProcess) -> RunStore:
        return StreamRunStore(server.url, f"runs-{uuid.uuid4()}")


class TestStreamRunStoreOfManyProcesses(SharedFireSuite):
    """The invariants, with many processes whose connections are cut all the while."""

    @pytest.fixture
    def run_store_url(self, server: ServerProcess) -> Iterator[str]:
        with Proxy(server.url) as self.proxy:
            self.ticks = 0
            yield f"streams+{self.proxy.url}/runs-{uuid.uuid4()}"

    def disturb(self) -> None:
        self.ticks += 1
        if self.ticks % 10 == 0:
            self.proxy.cut()


def test_the_log_of_a_run_can_be_read_by_any_client(server: ServerProcess) -> None:
    async def write() -> None:
        async with StreamRunStore(server.url, "plain") as store:
            await store.append_event(started("a/b"))

    asyncio.run(write())
    with Client(server.url) as client:
        (message,) = client.stream("plain/log/a%2Fb").read().items()
    assert (message["runId"], message["runSeq"]) == ("a/b", 1)


def test_a_server_that_is_not_there_is_told() -> None:
    async def use() -> None:
        async with StreamRunStore("http://127.0.0.1:9"):
            pass

    with pytest.raises(RunStoreUnavailable, match="Can't reach"):
        asyncio.run(use())


@pytest.mark.parametrize("url", ["streams+http:", "streams+http://", "streams+http:///x"])
def test_a_url_without_a_server_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        run_store(url)
