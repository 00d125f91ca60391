"""The memory store keeps the promises of any run store."""

import pytest

from headwater.runs import RunStore
from headwater.runs.stores.memory import MemoryRunStore
from tests.suites.run_store_fire import FireSuite
from tests.suites.run_store_suite import RunStoreSuite


class TestMemoryRunStore(RunStoreSuite, FireSuite):
    """Every promise."""

    @pytest.fixture
    def store(self) -> RunStore:
        return MemoryRunStore()
