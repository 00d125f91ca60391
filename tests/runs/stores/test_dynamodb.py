"""The DynamoDB store keeps the promises of any run store, and those of its items."""

import random
from collections.abc import Iterator

import pytest

from headwater.runs import RunStore, run_store
from tests.suites.run_store_fire import FireSuite, SharedFireSuite
from tests.suites.run_store_suite import RunStoreSuite
from tests.support.engines.dynamodb import Dynamo
from tests.support.proxy import Proxy


class TestDynamoRunStore(RunStoreSuite, FireSuite):
    """Every promise."""

    @pytest.fixture
    def store(self, dynamodb: Dynamo) -> RunStore:
        return run_store(dynamodb.run_store_url())


class TestDynamoRunStoreOfManyProcesses(SharedFireSuite):
    """The invariants, with sixteen processes whose connections are cut now and then."""

    @pytest.fixture
    def run_store_url(self, dynamodb: Dynamo) -> Iterator[str]:
        self.chance = random.Random(5)
        with Proxy(dynamodb.url) as self.proxy:
            yield dynamodb.run_store_url(self.proxy.url)

    def disturb(self) -> None:
        if self.chance.random() < 0.1:
            self.proxy.cut()
        elif self.chance.random() < 0.1:
            self.proxy.lose_answers(1)
