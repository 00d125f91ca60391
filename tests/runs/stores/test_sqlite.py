"""The SQLite store keeps the promises of any run store, and those of its file."""

from pathlib import Path

import pytest

from headwater.runs import RunStore
from headwater.runs.stores.sqlite import SqliteRunStore
from tests.suites.run_store_fire import FireSuite, SharedFireSuite
from tests.suites.run_store_suite import RunStoreSuite


class TestSqliteRunStore(RunStoreSuite, FireSuite):
    """Every promise."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> RunStore:
        return SqliteRunStore(tmp_path / "runs.db")


class TestSqliteRunStoreOfManyProcesses(SharedFireSuite):
    """The invariants, with one file and sixteen processes."""

    @pytest.fixture
    def run_store_url(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path / 'runs.db'}"
