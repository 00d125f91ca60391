"""The figures of a directory are those of what was written to it."""

from pathlib import Path

import pytest

from headwater.errors import StoreDamaged
from headwater.storage.disk.figures import figures
from headwater.storage.disk.store import DiskStore
from tests.storage.tools.conftest import Sample
from tests.storage.tools.stores import query, segments, with_store
from tests.suites.steps import T0


def test_the_figures_count_what_is_there(closed: Sample) -> None:
    found = figures(closed.folder)
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
    assert found.metrics["checkpoints"] >= 0
    assert found.formats == {"catalog": 1, "journal": 1, "segments": 1}
    assert not found.running
    assert found.process is None


def test_a_deleted_source_is_kept_for_its_fork(closed: Sample) -> None:
    async def scenario(store: DiskStore) -> None:
        await store.delete("large/json", T0)

    with_store(closed.folder, scenario)
    found = figures(closed.folder)
    assert found.deleted_streams == 1
    assert found.streams == len(closed.written) - 1


def test_a_running_server_is_told_with_its_process(closed: Sample) -> None:
    async def scenario(_store: DiskStore) -> tuple[bool, int | None]:
        found = figures(closed.folder)
        return found.running, found.process

    running, process = with_store(closed.folder, scenario)
    assert running
    assert process is not None


def test_a_damaged_catalog_is_told(closed: Sample) -> None:
    Path(closed.folder / "catalog.db").write_bytes(b"x" * 4096)
    with pytest.raises(StoreDamaged, match="headwater repair"):
        figures(closed.folder)
