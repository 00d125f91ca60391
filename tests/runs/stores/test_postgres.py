"""The PostgreSQL store keeps the promises of any run store, and those of its row locks."""

import random
from urllib.parse import quote

import pytest
from redis import Redis as BlockingRedis

from headwater.runs import RunStore, run_store
from tests.suites.run_store_fire import FireSuite, SharedFireSuite
from tests.suites.run_store_suite import RunStoreSuite
from tests.support.engines.postgres import Postgres
from tests.support.engines.redis import Redis


class TestPostgresRunStore(RunStoreSuite, FireSuite):
    """Every promise."""

    @pytest.fixture
    def store(self, postgres: Postgres) -> RunStore:
        return run_store(postgres.run_store_url())


class CutsConnections(SharedFireSuite):
    """The invariants, with sixteen processes whose connections are cut now and then."""

    @pytest.fixture(autouse=True)
    def _server(self, postgres: Postgres) -> None:
        self.server = postgres
        self.chance = random.Random(3)
        self.cuts = 0

    def disturb(self) -> None:
        if self.chance.random() < 0.2:
            self.cuts += self.server.cut_connections(0.2)


class TestPostgresRunStoreOfManyProcesses(CutsConnections):
    """The invariants."""

    @pytest.fixture
    def run_store_url(self, postgres: Postgres) -> str:
        return postgres.run_store_url()


class TestPostgresSequenceRunStore(RunStoreSuite, FireSuite):
    """Every promise, with a sequence for each run."""

    @pytest.fixture
    def store(self, postgres: Postgres) -> RunStore:
        return run_store(postgres.run_store_url("postgresql+sequence"))


class TestPostgresSequenceRunStoreOfManyProcesses(CutsConnections):
    """The invariants, with a sequence for each run."""

    @pytest.fixture
    def run_store_url(self, postgres: Postgres) -> str:
        return postgres.run_store_url("postgresql+sequence")


class TestPostgresRedisRunStore(RunStoreSuite, FireSuite):
    """Every promise, with a counter in Redis."""

    @pytest.fixture
    def store(self, postgres: Postgres, redis_server: Redis) -> RunStore:
        redis = quote(redis_server.fresh_url())
        return run_store(postgres.run_store_url("postgresql+redis", redis=redis))


class TestPostgresRedisRunStoreOfManyProcesses(CutsConnections):
    """The invariants, with a counter in Redis that forgets everything now and then."""

    @pytest.fixture
    def run_store_url(self, postgres: Postgres, redis_server: Redis) -> str:
        self.redis = redis_server.fresh_url()
        return postgres.run_store_url("postgresql+redis", redis=quote(self.redis))

    def disturb(self) -> None:
        super().disturb()
        if self.chance.random() < 0.2:
            with BlockingRedis.from_url(self.redis) as redis:
                redis.flushdb()
