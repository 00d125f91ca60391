"""The Snowflake store keeps the promises of any run store, without leaning on keys."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from headwater.errors import SettingsError
from headwater.runs import RunStore, run_store
from tests.suites.run_steps import all_events, append, numbered
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
    """The invariants, with processes whose connections are cut now and then."""

    kills = 4
    events = 24

    @pytest.fixture
    def run_store_url(self, snowflake_server: Snowflake) -> Iterator[str]:
        self.chance = random.Random(5)
        with Proxy(snowflake_server.url) as self.proxy:
            yield snowflake_server.run_store_url(self.proxy.url)

    def disturb(self) -> None:
        # The connector waits for seconds after a cut: more of them would leave nothing to test.
        if self.chance.random() < 0.003:
            self.proxy.cut()


def test_the_table_would_take_a_number_twice_so_only_the_lock_keeps_it_out(
    snowflake_server: Snowflake,
) -> None:
    async def scenario() -> None:
        url = snowflake_server.run_store_url()
        schema = url.partition("?")[0].rpartition("/")[2]
        async with run_store(url) as one, run_store(url) as other:
            await append(one, *numbered(3))
            again = await other.append_events(numbered(3))
            assert [result.run_seq for result in again] == [1, 2, 3]
            assert len(await all_events(one)) == 3
            events = f"headwater.{schema}.events"
            snowflake_server.execute(f"INSERT INTO {events} SELECT * FROM {events}")
            assert len(await all_events(one)) == 6

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "snowflake://account/database/schema",
        "snowflake://user@account/database",
        "snowflake://user@account/database/sch;ema",
    ],
)
def test_a_url_that_can_not_be_used_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        run_store(url)
