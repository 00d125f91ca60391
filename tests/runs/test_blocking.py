"""The store for code without an event loop."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.errors import EventRefused, StoreNotOpen
from headwater.runs import RunStatus
from headwater.runs.blocking import BlockingRunStore
from headwater.runs.stores.memory import MemoryRunStore
from headwater.runs.stores.sqlite import SqliteRunStore
from tests.suites.run_steps import event, numbered, started


def test_every_method_does_what_the_awaited_one_does(tmp_path: Path) -> None:
    for inner in (MemoryRunStore(), SqliteRunStore(tmp_path / "runs.db")):
        with BlockingRunStore(inner) as store:
            assert store.append_event(started()).run_seq == 1
            assert len(store.append_events(numbered(3))) == 3
            assert [each.run_seq for each in store.fetch_events("run-001", 2)] == [3, 4]
            assert [each.run_seq for each in store.events("run-001")] == [1, 2, 3, 4]
            assert store.project_snapshot("run-001") == store.get_snapshot("run-001")
            info = store.find_run("run-001")
            assert info is not None
            assert store.list_runs(status=RunStatus.RUNNING).runs == (info,)
            assert store.delete_run("run-001")
            with pytest.raises(EventRefused):
                store.append_event(event("StepStarted"))


def test_many_threads_may_use_it_at_once(tmp_path: Path) -> None:
    with BlockingRunStore(SqliteRunStore(tmp_path / "runs.db")) as store:
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(store.append_event, numbered(200)))
        assert sorted(each.run_seq for each in results) == list(range(1, 201))


def test_outside_its_block_it_says_so() -> None:
    store = BlockingRunStore(MemoryRunStore())
    with pytest.raises(StoreNotOpen):
        store.find_run("run-001")
    with store:
        pass
    store.close()
    with pytest.raises(StoreNotOpen):
        store.append_event(started())
