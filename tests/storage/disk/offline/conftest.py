"""Directories that many tests damage, made once and copied for each."""

import shutil
from pathlib import Path

import pytest

from headwater.storage.disk.store import DiskStore
from tests.storage.disk.offline.stores import Filler, filled
from tests.storage.disk.offline.stores import killed as kill


class Sample:
    """A directory of the test's own, and what was written to it."""

    def __init__(self, folder: Path, filler: Filler) -> None:
        self.folder = folder
        self.filler = filler
        self.written = filler.written


@pytest.fixture(scope="session")
def _killed(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("killed") / "data"
    return Sample(folder, filled(folder, seed=1))


@pytest.fixture(scope="session")
def _closed(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("closed") / "data"
    return Sample(folder, filled(folder, seed=2, journal=False))


@pytest.fixture
def killed(_killed: Sample, tmp_path: Path) -> Sample:
    """Several segments, and a journal that no checkpoint has saved yet."""
    shutil.copytree(_killed.folder, tmp_path / "killed")
    return Sample(tmp_path / "killed", _killed.filler)


@pytest.fixture(scope="session")
def _twice_killed(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("twice-killed") / "data"
    filler = filled(folder, seed=3)

    async def more(store: DiskStore) -> None:
        await filler.fill(store, 20)

    kill(folder, more)
    return Sample(folder, filler)


@pytest.fixture
def twice_killed(_twice_killed: Sample, tmp_path: Path) -> Sample:
    """Likewise, with a journal of two files."""
    shutil.copytree(_twice_killed.folder, tmp_path / "twice-killed")
    return Sample(tmp_path / "twice-killed", _twice_killed.filler)


@pytest.fixture
def closed(_closed: Sample, tmp_path: Path) -> Sample:
    """Several segments, and nothing in the journal."""
    shutil.copytree(_closed.folder, tmp_path / "closed")
    return Sample(tmp_path / "closed", _closed.filler)
