"""The Snowflake store keeps the promises of any run store, without leaning on keys."""

import random
from collections.abc import Iterator

import pytest

from headwater.runs import RunStore, run_store
from tests.suites.run_store_fire import FireSuite, SharedFireSuite
from tests.suites.run_store_suite import RunStoreSuite
from tests.support.engines.snowflake import Snowflake
from tests.support.proxy import Proxy


class TestSnowflakeRunStore(RunStoreSuite, FireSuite):
    """Every promise."""

    @pytest.fixture
    def store(self, snowflake_server: Snowflake) -> RunStore:
        return run_store(snowflake_server.run_store_url())


class TestSnowflakeRunStoreOfManyProcesses(SharedFireSuite):
    """The invariants, with sixteen processes whose connections are cut now and then."""

    kills = 6

    @pytest.fixture
    def run_store_url(self, snowflake_server: Snowflake) -> Iterator[str]:
        self.chance = random.Random(5)
        with Proxy(snowflake_server.url) as self.proxy:
            yield snowflake_server.run_store_url(self.proxy.url)

    def disturb(self) -> None:
        if self.chance.random() < 0.02:
            self.proxy.cut()
