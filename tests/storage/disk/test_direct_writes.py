"""Direct writing: the file holds what was written, whatever the sizes and the file system."""

from pathlib import Path
from random import Random

import pytest

from headwater.storage.disk.segments import DirectFile

MIB = 1024 * 1024


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [1],
        [4095],
        [4096],
        [4097],
        [MIB],
        [MIB - 1, 2],
        [MIB + 4096, 5],
        [3 * MIB + 17],
        [100] * 30_000,
    ],
    ids=lambda sizes: f"{len(sizes)}x{sizes[0] if sizes else 0}",
)
def test_the_file_holds_what_was_written_and_no_padding(tmp_path: Path, sizes: list[int]) -> None:
    random = Random(7)
    parts = [random.randbytes(size) for size in sizes]
    file = DirectFile(tmp_path / "file")
    for part in parts:
        file.write(part)
    file.finish()
    assert (tmp_path / "file").read_bytes() == b"".join(parts)


def test_an_existing_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"long ago" * 10_000)
    file = DirectFile(tmp_path / "file")
    file.write(memoryview(b"now"))
    file.finish()
    assert (tmp_path / "file").read_bytes() == b"now"


def test_it_may_be_given_up_at_any_point(tmp_path: Path) -> None:
    file = DirectFile(tmp_path / "file")
    file.write(bytes(MIB + 1))
    file.close()
    file.close()
    assert (tmp_path / "file").stat().st_size == MIB
