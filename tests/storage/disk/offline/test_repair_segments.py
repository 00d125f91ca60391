"""A repair of segments cuts a damaged stream at what is lost, and no other stream."""

import json
import random

import pytest

from headwater.protocol.offsets import Offset
from headwater.protocol.producers import ProducerClaim
from headwater.storage.disk.offline.check import check
from headwater.storage.disk.segments import EXTENT_HEADER
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import Chunk
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.repairs import assert_prefixes, damaged_block, repaired
from tests.storage.disk.offline.stores import (
    contents,
    extents_of,
    flip,
    number_of,
    segment_of,
    segments,
    with_store,
)
from tests.suites.steps import BINARY, PLENTY, T0, append, create, head, read


def test_a_damaged_block_cuts_its_stream_there(killed: Sample) -> None:
    cut = damaged_block(killed, "large/binary", 1)
    repair = repaired(killed.folder)
    (line,) = repair.dropped
    assert line.startswith(f"Bytes {cut} to {len(killed.written['large/binary'])} (stream ")
    assert "large/binary" in line
    found = contents(killed.folder)
    assert found["large/binary"] == killed.written["large/binary"][:cut]
    assert_prefixes(found, killed.written, {"large/binary"})


def test_a_json_stream_is_cut_after_a_message_and_its_fork_with_it(killed: Sample) -> None:
    cut = damaged_block(killed, "large/json", 1)
    repaired(killed.folder)
    found = contents(killed.folder)
    whole = killed.written["large/json"]
    kept = whole[: whole.rfind(b"\n", 0, cut) + 1]
    assert found["large/json"] == found["fork"] == kept
    json.loads(b"[" + kept[:-2] + b"]")
    assert_prefixes(found, killed.written, {"large/json", "fork"})


def test_offsets_of_what_was_lost_are_refused_for_ever(killed: Sample) -> None:
    number = number_of(killed.folder, "large/binary")
    cut = damaged_block(killed, "large/binary", 1)
    repaired(killed.folder)

    async def scenario(store: DiskStore) -> None:
        lost = Offset(number, cut + 10)
        kept = Offset(number, cut - 10)
        assert not isinstance(await store.read("large/binary", lost, PLENTY, T0), Chunk)
        before = await read(store, "large/binary", kept)
        assert before.end == Offset(number, cut)
        await append(store, "large/binary", b"x" * 100, BINARY)
        assert not isinstance(await store.read("large/binary", lost, PLENTY, T0), Chunk)
        after = await read(store, "large/binary", before.end)
        assert after.joined() == b"x" * 100

    with_store(killed.folder, scenario)


def test_a_repaired_stream_goes_on_with_its_producers_and_can_be_deleted(killed: Sample) -> None:
    damaged_block(killed, "large/binary", 1)
    repaired(killed.folder)

    async def scenario(store: DiskStore) -> None:
        repeated = await append(
            store, "large/binary", b"x", BINARY, producer=ProducerClaim("p", 0, 0)
        )
        assert repeated.repeated
        path = "large/binary"
        assert await store.delete(path, T0) is None
        await create(store, path, BINARY, b"again")

    with_store(killed.folder, scenario)
    assert check(killed.folder).damages == []
    assert contents(killed.folder)["large/binary"] == b"again"


def test_a_closed_stream_stays_closed(killed: Sample) -> None:
    damaged_block(killed, "large/json", 0)
    repaired(killed.folder)

    async def scenario(store: DiskStore) -> None:
        info = await head(store, "fork")
        assert info.closed
        assert info.tail.byte == 0

    with_store(killed.folder, scenario)


def test_damaged_headers_lose_nothing(killed: Sample) -> None:
    flip(segments(killed.folder)[0], 3)
    extent = extents_of(killed.folder, "large/binary")[0]
    flip(segment_of(killed.folder, extent), extent.position - EXTENT_HEADER)
    repair = repaired(killed.folder)
    assert repair.dropped == []
    assert contents(killed.folder) == killed.written


def test_a_missing_segment_takes_only_what_it_held(killed: Sample) -> None:
    extent = extents_of(killed.folder, "large/binary")[-1]
    lost = segment_of(killed.folder, extent)
    streams = {
        path
        for path in killed.written
        if any(segment_of(killed.folder, item) == lost for item in extents_of(killed.folder, path))
    }
    lost.unlink()
    repaired(killed.folder)
    found = contents(killed.folder)
    assert_prefixes(found, killed.written, streams)
    assert len(found["large/binary"]) == extent.start


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_of_a_segment_costs_one_stream_at_most(killed: Sample, seed: int) -> None:
    chance = random.Random(seed)
    file = chance.choice(segments(killed.folder))
    flip(file, chance.randrange(file.stat().st_size), chance.randrange(8))
    damages = check(killed.folder).damages
    affected = {path for finding in damages for _, path in finding.streams if path}
    repaired(killed.folder)
    forks = {"fork"} if "large/json" in affected else set()
    assert len(affected) <= 1
    assert_prefixes(contents(killed.folder), killed.written, affected | forks)
