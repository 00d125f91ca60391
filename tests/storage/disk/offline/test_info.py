"""The statistics of a directory agree with what was written to it."""

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import StoreDamaged
from headwater.storage.disk import checkpoint
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.offline.info import read_info
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.store import DiskStore
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.repairs import damaged_block, repaired
from tests.storage.disk.offline.stores import query, segments, with_store
from tests.suites.steps import T0, create
from tests.support.patience import until


def test_the_statistics_count_what_is_there(closed: Sample) -> None:
    found = read_info(closed.folder)
    fork = len(closed.written["fork"])
    inherited = query(closed.folder, "SELECT start FROM streams WHERE path = 'fork'")
    own = fork - int(str(inherited[0][0]))
    others = sum(len(data) for path, data in closed.written.items() if path != "fork")
    assert found.streams == len(closed.written)
    assert (found.closed_streams, found.forks, found.deleted_streams) == (1, 1, 0)
    assert found.stream_bytes == found.segment_live_bytes == others + own
    assert found.segments == len(segments(closed.folder))
    assert found.extents_per_stream_max == 2
    assert 1 < found.extents_per_stream_mean <= 2
    assert found.producers == len(closed.written)
    assert found.metrics["checkpoints"] == 1
    assert found.formats == {"catalog": 2, "journal": 1, "segments": 1}
    assert not found.running
    assert found.process is None


def has_saved(store: DiskStore, checkpoints: int) -> bool:
    """Return whether a store has made that many checkpoints."""
    return store.metrics.checkpoints >= checkpoints


def test_a_checkpoint_counts_itself(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def scenario(store: DiskStore) -> None:
        began = time.perf_counter()
        for count in (1, 2):
            await create(store, f"s/{count}")
            await until(partial(has_saved, store, count), "a checkpoint")
            found = read_info(folder).metrics
            assert found["checkpoints"] == found["checkpoint_seconds"]["count"] == count
            longest = found["checkpoint_seconds"]["max"]
            # A part cannot take longer than the whole, however slow the machine is.
            assert 0 < longest < time.perf_counter() - began

    with_store(folder, scenario, DiskOptions(durability="os", checkpoint_seconds=0.02))


def test_a_checkpoint_that_failed_is_not_counted(tmp_path: Path) -> None:
    metrics = EngineMetrics()
    catalog = Catalog(tmp_path)
    snapshot = checkpoint.take(Registry(catalog, 1), 1)
    catalog.close()
    with pytest.raises(sqlite3.ProgrammingError):
        checkpoint.write(snapshot, tmp_path, 1, catalog, metrics)
    assert (metrics.checkpoints, metrics.checkpoint_seconds.count) == (0, 0)


def test_a_recovery_is_shown_before_any_checkpoint(killed: Sample) -> None:
    async def scenario(_store: DiskStore) -> dict[str, Any]:
        return read_info(killed.folder).metrics

    found = with_store(killed.folder, scenario)
    assert (found["recovered_records"], found["checkpoints"]) == (60, 0)
    assert found["recovery_seconds"] > 0


def test_a_deleted_source_is_kept_for_its_fork(closed: Sample) -> None:
    async def scenario(store: DiskStore) -> None:
        await store.delete("large/json", T0)

    with_store(closed.folder, scenario)
    found = read_info(closed.folder)
    assert found.deleted_streams == 1
    assert found.streams == len(closed.written) - 1


def test_a_stream_that_a_repair_has_cut_is_no_fork(closed: Sample) -> None:
    before = read_info(closed.folder)
    damaged_block(closed, "large/json", 0)  # its fork, which is closed, loses all of it as well
    repaired(closed.folder)
    found = read_info(closed.folder)
    assert (found.streams, found.cut_streams, found.deleted_streams) == (before.streams, 2, 0)
    assert (found.forks, found.closed_streams) == (before.forks, before.closed_streams) == (1, 1)


def test_a_running_server_is_shown_with_its_process(closed: Sample) -> None:
    async def scenario(_store: DiskStore) -> tuple[bool, int | None]:
        found = read_info(closed.folder)
        return found.running, found.process

    running, process = with_store(closed.folder, scenario)
    assert running
    assert process is not None


def test_a_damaged_catalog_is_reported(closed: Sample) -> None:
    Path(closed.folder / "catalog.db").write_bytes(b"x" * 4096)
    with pytest.raises(StoreDamaged, match="headwater repair"):
        read_info(closed.folder)
