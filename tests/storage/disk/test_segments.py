"""Segments: what was written is read back, and checked."""

import gc
import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from zlib import crc32

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from headwater.errors import NewerFormat, StreamDamaged
from headwater.storage.disk.segments import (
    BLOCK,
    START,
    Extent,
    SegmentFile,
    SegmentFiles,
    SegmentWriter,
    segment_numbers,
)
from tests.storage.disk.steps import flip
from tests.support.effort import examples

LENGTHS = st.lists(
    st.one_of(st.integers(1, 100), st.integers(BLOCK - 2, BLOCK + 2), st.just(3 * BLOCK + 7)),
    min_size=1,
    max_size=4,
)


def content(stream: int, length: int) -> bytes:
    return (b"%08d" % stream * (length // 8 + 1))[:length]


def segment(folder: Path, *lengths: int, number: int = 1) -> tuple[Path, list[Extent]]:
    """Write a segment with an extent of so many bytes for each stream."""
    writer = SegmentWriter(folder, number)
    for stream, length in enumerate(lengths, 1):
        data = content(stream, length)
        third = length // 3
        writer.add(stream, stream * 10, [data[:third], memoryview(data)[third:]])
    writer.finish()
    return writer.path, writer.extents


@settings(max_examples=examples(15, 150), deadline=None)
@given(LENGTHS, st.data())
def test_any_range_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    path, extents = segment(tmp_path_factory.mktemp("s"), *lengths)
    file = SegmentFile(path)
    for extent in extents:
        begin = data.draw(st.integers(extent.start, extent.end - 1))
        end = data.draw(st.integers(begin + 1, extent.end))
        expected = content(extent.stream, extent.length)
        first = extent.start
        assert b"".join([file.read(extent, begin, end)]) == expected[begin - first : end - first]
        file.verify_header(extent)


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_flipped_bit_is_found_when_its_block_is_read_and_not_before(
    tmp_path: Path, block: int
) -> None:
    path, (extent,) = segment(tmp_path, 2 * BLOCK + 100)
    flip(path, extent.position + block * BLOCK + 50)
    file = SegmentFile(path)
    for index in range(3):
        begin = extent.start + index * BLOCK
        if index == block:
            with pytest.raises(StreamDamaged) as damage:
                file.read(extent, begin, begin + 10)
            assert damage.value.position == extent.position + block * BLOCK
            assert damage.value.stream == extent.stream
        else:
            file.read(extent, begin, begin + 10)
    with pytest.raises(StreamDamaged):
        file.read(extent, extent.start, extent.end)


def test_a_segment_that_was_cut_off_is_found_to_be_damaged(tmp_path: Path) -> None:
    path, (extent,) = segment(tmp_path, 1000)
    os.truncate(path, extent.position + 500)
    with pytest.raises(StreamDamaged):
        SegmentFile(path).read(extent, extent.start, extent.start + 10)


def test_a_segment_that_is_cut_off_after_it_was_checked_is_found_too(tmp_path: Path) -> None:
    path, (extent,) = segment(tmp_path, 1000)
    file = SegmentFile(path)
    assert len(file.read(extent, extent.start, extent.end)) == 1000
    os.truncate(path, extent.position + 500)
    with pytest.raises(StreamDamaged) as caught:
        file.read(extent, extent.start + 100, extent.end)
    assert (caught.value.file, caught.value.position) == (str(path), extent.position + 100)


def test_a_segment_that_is_lent_counts_until_it_is_given_back(tmp_path: Path) -> None:
    for number in (1, 2):
        segment(tmp_path, 10, number=number)
    files = SegmentFiles(tmp_path, 2)
    lent = files.get(1)
    files.forget([1])
    files.get(2)
    assert not files.can_send_files
    del lent
    assert files.can_send_files


@pytest.mark.parametrize("position", [3, 13, 20, 25])
def test_extents_are_readable_despite_a_damaged_header_of_the_file(
    tmp_path: Path, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    path, extents = segment(tmp_path, 10, 300_000)
    flip(path, position)
    file = SegmentFile(path)
    for extent in extents:
        assert file.read(extent, extent.start, extent.end) == content(extent.stream, extent.length)
    assert {str(record.__dict__["file"]) for record in caplog.records} == {str(path)}


def test_a_file_in_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    path, (extent,) = segment(tmp_path, 10)
    writer = SegmentWriter(tmp_path, 2)
    writer.add(extent.stream + 1, extent.start, [b"x" * 10])
    writer.finish()
    writer.path.rename(path)
    with pytest.raises(StreamDamaged, match=path.name):
        SegmentFile(path).read(extent, extent.start, extent.end)


def test_bytes_that_the_disk_can_not_give_are_damage_with_a_place(tmp_path: Path) -> None:
    path, (extent,) = segment(tmp_path, 10)
    path.unlink()
    path.symlink_to("/proc/self/mem")  # there is nothing at its first addresses: EIO
    with pytest.raises(StreamDamaged) as caught:
        SegmentFile(path).read(extent, extent.start, extent.end)
    assert caught.value.file == str(path)
    assert caught.value.stream == extent.stream


def test_the_blocks_that_were_checked_take_little_memory(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 1)
    for number in range(20_000):
        writer.add(1, number, [b"x"])
    writer.finish()
    file = SegmentFile(writer.path)
    gc.collect()
    tracemalloc.start()
    try:
        for extent in writer.extents:
            assert file.read(extent, extent.start, extent.end) == b"x"
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 600_000


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path, _ = segment(tmp_path, 10)
    stored = path.read_bytes()
    newer = stored[:8] + (2).to_bytes(4, "little") + stored[12 : START - 4]
    path.write_bytes(newer + crc32(newer).to_bytes(4, "little") + stored[START:])
    with pytest.raises(NewerFormat):
        SegmentFile(path)


def test_a_segment_given_up_leaves_nothing(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 3)
    writer.add(1, 0, [b"some"])
    writer.abandon()
    assert segment_numbers(tmp_path) == []


def open_segments(folder: Path) -> int:
    """Count the files of a folder that this process has open, and no others of its files."""
    numbers = [Path(f"/proc/self/fd/{fd}") for fd in range(1024)]
    return sum(path.is_symlink() and path.readlink().is_relative_to(folder) for path in numbers)


def test_only_so_many_files_are_open_at_once(tmp_path: Path) -> None:
    extents = {number: segment(tmp_path, 10, number=number)[1] for number in range(1, 21)}
    files = SegmentFiles(tmp_path, 4)
    for number in [*range(1, 21), *range(1, 21)]:
        files.get(number)
        assert open_segments(tmp_path) <= 4
    # One that is in use stays open for its readers.
    held = files.get(5)
    for number in range(6, 12):
        files.get(number)
    (extent,) = extents[5]
    assert held.read(extent, extent.start, extent.end) == content(1, 10)
    files.close()
    del held
    assert open_segments(tmp_path) == 0


def test_a_thread_never_reads_a_file_that_another_thread_is_closing(tmp_path: Path) -> None:
    numbers = range(1, 6)
    extents = {number: segment(tmp_path, 100, number=number)[1][0] for number in numbers}
    files = SegmentFiles(tmp_path, 2)
    lock = Lock()

    def read(first: int) -> bool:
        for count in range(3000):
            number = 1 + (first + count) % len(numbers)
            with lock:
                file = files.get(number)
            if file.read(extents[number], 10, 110) != content(1, 100):
                return False
            del file  # the last reference, unless another thread gets one meanwhile
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))
