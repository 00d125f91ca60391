"""Compaction: contents stay, segments become few, dead ones go, and reads go on meanwhile."""

import asyncio
import tracemalloc
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from headwater.protocol.offsets import START
from headwater.storage.disk.catalog import Catalog, CatalogChanges
from headwater.storage.disk.compaction import (
    MAX_FILES,
    MERGE_AT,
    CompactionCancelled,
    choose,
    choose_to_free,
    compact,
)
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.segments import (
    Extent,
    SegmentFile,
    SegmentWriter,
    max_segment_bytes,
    segment_numbers,
    segment_path,
)
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import Chunk
from tests.storage.disk.steps import flip, segments, until_at_rest, with_store
from tests.suites.steps import BINARY, PLENTY, T0, append, content, create, fork
from tests.support.patience import until

EAGER: Final = DiskOptions(
    durability="os", tail_budget=16 * 1024, journal_bytes=64 * 1024, checkpoint_seconds=0.02
)
"""A checkpoint after every 4 KiB."""
_ROOM: Final = 2**40


def piece(path: str, number: int) -> bytes:
    return f"{path}/{number};".encode() * 20


async def grow(store: DiskStore, paths: list[str], first: int, count: int) -> None:
    """Append to streams in turn, slowly enough for many checkpoints."""
    for number in range(first, first + count):
        for path in paths:
            await append(store, path, piece(path, number), BINARY)
        await asyncio.sleep(0.002)  # Only more checkpoints: the budget forces the necessary ones.


async def grow_until_merged(store: DiskStore, paths: list[str]) -> int:
    """Append until segments were merged a few times; return the number of pieces of each stream."""
    number = 0
    while store.metrics.compactions < 3:
        assert number < 20_000, "segments are not merged"
        await grow(store, paths, number, 20)
        number += 20
    return number


def test_contents_stay_and_segments_become_few(tmp_path: Path) -> None:
    paths = [f"s{number}" for number in range(5)]

    async def scenario(store: DiskStore) -> int:
        for path in paths:
            await create(store, path, BINARY)
        count = await grow_until_merged(store, paths)
        await until_at_rest(store)
        saved = (MERGE_AT - 1) * store.metrics.compactions
        assert len(segments(store.folder)) <= store.metrics.checkpoints - saved
        await look(store, count)
        return count

    async def look(store: DiskStore, count: int) -> None:
        for path in paths:
            expected = b"".join(piece(path, number) for number in range(count))
            assert await content(store, path) == expected

    count = with_store(tmp_path / "data", scenario, EAGER)
    with_store(tmp_path / "data", partial(look, count=count), EAGER)


def test_what_is_deleted_gives_its_room_back(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "kept", BINARY)
        await create(store, "gone", BINARY)
        await create(store, "source", BINARY, b"shared")
        await fork(store, "fork", "source")
        await grow(store, ["kept", "gone", "fork"], 0, 100)
        await store.delete("gone", T0)
        await store.delete("source", T0)
        await grow(store, ["kept"], 100, 95)
        for number in range(195, 200):  # a checkpoint at rest always begins a round
            await until_at_rest(store)
            await grow(store, ["kept"], number, 1)
        await until_at_rest(store)
        left = sum(path.stat().st_size for path in segments(store.folder))
        kept = len(b"".join(piece("kept", number) for number in range(200)))
        forked = len(b"".join(piece("fork", number) for number in range(100)))
        assert left < 2.2 * (kept + forked)
        await store.delete("kept", T0)
        await store.delete("fork", T0)
        await until_at_rest(store)
        assert segments(store.folder) == []

    with_store(tmp_path / "data", scenario, EAGER)


def test_reads_go_on_while_segments_are_merged(tmp_path: Path) -> None:
    paths = ["a", "b"]

    async def scenario(store: DiskStore) -> None:
        for path in paths:
            await create(store, path, BINARY)
        growing = asyncio.create_task(grow_until_merged(store, paths))
        reads = 0
        held: list[tuple[Chunk, bytes]] = []
        while not growing.done():
            for path in paths:
                chunk = await store.read(path, START, PLENTY, T0)
                assert isinstance(chunk, Chunk)
                count = chunk.end.byte // len(piece(path, 0)) + 1
                whole = b"".join(piece(path, number) for number in range(count))
                expected = whole[: chunk.end.byte]
                assert chunk.joined() == expected
                reads += 1
                if reads % 20 == 1:
                    held.append((chunk, expected))
            await asyncio.sleep(0.002)  # As long as the writer's, so that neither runs alone.
        await growing
        assert reads > 10
        # What was handed out before a merge can be read after it, although its files are gone.
        for chunk, expected in held:
            assert chunk.joined() == expected

    with_store(tmp_path / "data", scenario, EAGER)


def test_a_damaged_segment_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def begin(store: DiskStore) -> None:
        await create(store, "a", BINARY, b"precious " * 100)
        await create(store, "dead", BINARY, b"x" * 5000)

    async def go_on(store: DiskStore) -> None:
        await store.delete("dead", T0)  # So the next round rewrites the segment.
        await create(store, "b", BINARY)
        await grow(store, ["b"], 0, 200)
        await until(lambda: "skips a damaged segment" in caplog.text, "a round with the segment")
        await until_at_rest(store)
        expected = b"".join(piece("b", number) for number in range(200))
        assert await content(store, "b") == expected

    folder = tmp_path / "data"
    with_store(folder, begin)
    (damaged,) = segments(folder)
    flip(damaged, damaged.read_bytes().index(b"precious") + 3)
    stored = damaged.read_bytes()
    with_store(folder, go_on, EAGER)
    assert damaged.read_bytes() == stored


def test_the_others_of_a_round_are_compacted_without_the_one_that_is_damaged(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    slow = DiskOptions(durability="os", checkpoint_seconds=3600)
    for number in range(MERGE_AT - 1):
        body = b"%d" % number * 1000
        with_store(folder, partial(create, path=f"s{number}", content_type=BINARY, body=body), slow)
    damaged, *others = segments(folder)
    flip(damaged, 500)

    async def go_on(store: DiskStore) -> None:
        for number in range(100):
            await create(store, f"t{number}", BINARY, b"x" * 1000)
            await until_at_rest(store)  # after a checkpoint
            if store.metrics.compactions:
                break
        for number in range(1, MERGE_AT - 1):
            assert await content(store, f"s{number}") == b"%d" % number * 1000

    with_store(folder, go_on, EAGER)
    assert damaged.exists()
    assert not any(path.exists() for path in others)


def test_long_extents_are_copied_with_little_memory(tmp_path: Path) -> None:
    length = 64 << 20
    folder = tmp_path / "segments"
    folder.mkdir()
    with closing(Catalog(tmp_path)) as catalog:
        for number in (1, 2):
            writer = SegmentWriter(folder, number)
            writer.add(number, 0, [bytes([number]) * 1_000_003] * (length // 1_000_003))
            writer.finish()
            size = writer.extents[0].length
            catalog.apply(CatalogChanges([], [], [], writer.extents, size, number, 1, 5, "{}"))
        tracemalloc.start()
        try:
            unused = compact([1, 2], folder, 3, catalog, EngineMetrics())
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert unused == [1, 2]
        assert most < 8 << 20
        file = SegmentFile(segment_path(folder, 3))
        for extent in catalog.extents_in(3):
            file.verify_header(extent)
            assert extent.length == size
            assert file.read(extent, 0, size) == bytes([extent.stream]) * size


def test_a_segment_that_is_mostly_dead_is_rewritten_first() -> None:
    assert choose([(1, 100, 80), (2, 100, 49), (3, 100, 100)], _ROOM) == [2]


def test_segments_of_one_size_are_merged_once_there_are_enough() -> None:
    small = [(number, 100, 100) for number in range(MERGE_AT - 1)]
    large = [(100 + number, 10**6, 10**6) for number in range(MERGE_AT - 1)]
    assert choose([*small, *large], _ROOM) == []
    assert choose([*small, (50, 100, 100), *large], _ROOM) == [*range(MERGE_AT - 1), 50]


def test_very_large_segments_are_left_as_they_are() -> None:
    assert choose([(number, 2**29, 2**29) for number in range(100)], _ROOM) == []


def test_mostly_dead_segments_do_not_hold_up_the_others() -> None:
    dead = [(number, 100, 10) for number in range(3)]
    small = [(100 + number, 100, 100) for number in range(10)]
    assert choose([*dead, *small], _ROOM) == [0, 1, 2, *range(100, 110)]


def test_a_full_disk_is_freed_by_what_gives_back_most_for_its_room() -> None:
    segments = [(1, 100, 100), (2, 100, 90), (3, 1000, 400), (4, 100, 10), (5, 100, 60)]
    assert choose_to_free(segments, 0) == []
    assert choose_to_free(segments, 20) == [4]
    assert choose_to_free(segments, 75) == [4, 5]
    assert choose_to_free(segments, 1000) == [4, 3, 5, 2]
    assert choose_to_free(segments, 1000, 2) == [4, 3]


def test_one_round_opens_few_files() -> None:
    small = [(number, 100, 100) for number in range(1000)]
    assert len(choose(small, _ROOM)) == MAX_FILES
    assert len(choose(small, _ROOM, MERGE_AT)) == MERGE_AT


def test_a_round_takes_no_more_than_the_room_that_it_is_given() -> None:
    small = [(number, 100, 100) for number in range(MERGE_AT)]
    assert choose(small, 500) == [0, 1, 2, 3, 4]
    assert choose(small, 199) == []  # one alone would only be copied
    dead = [(50, 1000, 300), (51, 1000, 90)]
    assert choose(dead, 100) == [51]
    assert choose(dead, 80) == []
    assert choose([(60, 1000, 400), *small], 150) == []  # what frees something does not fit


def test_segments_stay_few_however_short_their_streams_live() -> None:
    """One round for each checkpoint keeps up, with streams of any lifetime."""
    random = Random(1)
    segments: dict[int, tuple[int, int]] = {}
    for number in range(1, 5000):
        size = random.choice([100, 1000, 10_000])
        segments[2 * number] = (size, size)
        for other in random.sample(sorted(segments), min(3, len(segments))):
            size, live = segments[other]
            segments[other] = (size, random.randint(0, live))
        segments = {n: item for n, item in segments.items() if item[1]}
        merged = choose([(n, *item) for n, item in sorted(segments.items())], _ROOM)
        live = sum(segments.pop(n)[1] for n in merged)
        if live:
            segments[2 * number + 1] = (live, live)
        assert len(segments) < 100


def test_a_stream_removed_while_it_is_rewritten_stays_removed(tmp_path: Path) -> None:
    """A checkpoint may take a stream out of the catalog between a round's reading and its end."""

    async def scenario(store: DiskStore) -> None:
        for path in ("kept", "gone"):
            await create(store, path, BINARY)
            await append(store, path, path.encode() * 1000, BINARY)
        await store.close()

    with_store(tmp_path / "data", scenario)
    with closing(Catalog(tmp_path / "data")) as catalog:
        ((number, _, _),) = catalog.segments()
        folder = tmp_path / "data" / "segments"
        gone = catalog.stream_at("gone")
        assert gone is not None

        def remove_gone() -> None:
            changes = CatalogChanges([], [], [gone.id], [], 0, 90, 9, 9, "{}", [])
            catalog.apply(changes)

        assert compact([number], folder, 99, catalog, EngineMetrics(), remove_gone) == [number]
        assert {extent.stream for extent in catalog.extents_in(99)} == {gone.id - 1}
        (kept,) = catalog.extents_in(99)
        assert [item[2] for item in catalog.segments()] == [kept.length]


def test_a_round_over_streams_that_are_all_gone_leaves_no_segment(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "gone", BINARY)
        await append(store, "gone", b"gone", BINARY)
        await store.close()

    with_store(tmp_path / "data", scenario)
    with closing(Catalog(tmp_path / "data")) as catalog:
        ((number, _, _),) = catalog.segments()
        gone = catalog.stream_at("gone")
        assert gone is not None

        def remove_gone() -> None:
            catalog.apply(CatalogChanges([], [], [gone.id], [], 0, 90, 9, 9, "{}", []))

        folder = tmp_path / "data" / "segments"
        assert compact([number], folder, 99, catalog, EngineMetrics(), remove_gone) == [99]
        assert catalog.segments() == []


def test_a_round_that_is_called_off_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async def scenario(store: DiskStore) -> None:
        await create(store, "s", BINARY)
        await append(store, "s", b"bytes", BINARY)
        await store.close()

    def call_off() -> None:
        raise CompactionCancelled

    with_store(tmp_path / "data", scenario)
    folder = tmp_path / "data" / "segments"
    with closing(Catalog(tmp_path / "data")) as catalog:
        before = catalog.segments()
        with pytest.raises(CompactionCancelled):
            compact([before[0][0]], folder, 99, catalog, EngineMetrics(), call_off)
        assert catalog.segments() == before
        assert segment_numbers(folder) == [before[0][0]]


def test_the_room_for_a_round_is_taken_before_it_begins(tmp_path: Path) -> None:
    """Appends that fill the disk meanwhile must not end it half-way."""
    extents = [Extent(number, 0, 300_000, 1, 0) for number in range(3)]
    writer = SegmentWriter(tmp_path, 7, max_segment_bytes(extents))
    reserved = writer.path.stat()
    assert reserved.st_blocks * 512 >= max_segment_bytes(extents) > 900_000
    for extent in extents:
        writer.add(extent.stream, extent.start, [bytes(extent.length)])
    writer.finish()
    assert writer.path.stat().st_size == writer.size == max_segment_bytes(extents)


def test_a_round_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"too large|No space"):
        SegmentWriter(tmp_path, 7, 1 << 62)
    assert not list(tmp_path.iterdir())
