"""Repairs of damaged directories, and what must be left of the streams in them."""

from pathlib import Path

from headwater.storage.disk.offline.check import check
from headwater.storage.disk.offline.repair import Repair, prepare
from headwater.storage.disk.segments import BLOCK
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.stores import Contents, extents_of, flip, segment_of


def repaired(folder: Path) -> Repair:
    """Repair a directory, which must need it, and see that it is well afterwards."""
    with prepare(folder) as repair:
        assert repair.needed
        repair.install()
    assert check(folder).damages == []
    assert not (folder / "repairing").exists()
    return repair


def damaged_block(sample: Sample, path: str, index: int) -> int:
    """Flip a bit in a block of a large stream; gives where in the stream the block begins."""
    extent = extents_of(sample.folder, path)[0]
    flip(segment_of(sample.folder, extent), extent.position + index * BLOCK + 99)
    return extent.start + index * BLOCK


def assert_prefixes(found: Contents, written: Contents, affected: set[str]) -> None:
    """Each affected stream is a prefix of what it was; all others are as they were."""
    for path, data in written.items():
        if path in affected:
            assert data.startswith(found[path]), path
        else:
            assert found[path] == data, path
