"""What any store promises of the points at which a stream may be cut."""

import pytest

from headwater.protocol.offsets import (
    NOW,
    START,
    Now,
    Offset,
    OffsetBeyondTail,
    OffsetInsideMessage,
    StaleIncarnation,
)
from headwater.protocol.refusals import StreamGone, StreamNotFound
from headwater.storage.store import SplitPoints, Store
from tests.suites.behaviours import runs_behaviours
from tests.suites.steps import (
    BINARY,
    PLENTY,
    T0,
    append,
    create,
    expect,
    fork,
    messages,
    messages_of,
    read,
)


async def splits(
    store: Store,
    path: str = "s",
    start: Offset = START,
    end: Offset | Now = NOW,
    size: int = 100,
    limit: int = 1000,
) -> SplitPoints:
    """Split, which must succeed."""
    return expect(SplitPoints, await store.split_points(path, start, end, size, limit, T0))


@runs_behaviours
class Splitting:
    """`splits`."""

    @pytest.mark.parametrize("size", [1, 40, 100, 1000, 100_000])
    async def test_the_pieces_hold_every_message_once(self, store: Store, size: int) -> None:
        await create(store)
        for number in range(60):
            pad = b"x" * (number % 23)
            await append(store, body=b'{"n": %d, "pad": "%b"}' % (number, pad))
        found = await splits(store, size=size)
        assert found.complete
        assert found.offsets[-1] == found.info.tail
        counted = []
        for start, end in zip(found.offsets, found.offsets[1:], strict=False):
            length = end.byte - start.byte
            piece = messages_of(await read(store, start=start, limit=length))
            assert piece
            assert length <= size or len(piece) == 1
            counted += [message["n"] for message in piece]
        assert counted == list(range(60))

    async def test_a_long_message_is_a_piece_of_its_own(self, store: Store) -> None:
        await create(store, body=b'["small", "%b", "after"]' % (b"x" * 50_000))
        found = await splits(store, size=100)
        assert len(found.offsets) == 4

    async def test_only_the_range_that_was_asked_for_is_cut(self, store: Store) -> None:
        tails = [(await create(store)).tail]
        tails += [(await append(store, body=b"%d" % number)).tail for number in range(6)]
        found = await splits(store, start=tails[2], end=tails[4], size=1)
        assert list(found.offsets) == tails[2:5]
        found = await splits(store, start=tails[2], end=tails[4])
        assert list(found.offsets) == [tails[2], tails[4]]

    async def test_many_pieces_come_in_several_answers(self, store: Store) -> None:
        await create(store, body=b"[" + b",".join(b"%d" % number for number in range(10)) + b"]")
        found = await splits(store, size=1, limit=4)
        assert not found.complete
        assert len(found.offsets) == 5
        rest = await splits(store, start=found.offsets[-1], size=1, limit=6)
        assert rest.complete
        assert len(rest.offsets) == 7
        assert await messages(store, start=rest.offsets[-2]) == [9]

    async def test_the_beginning_is_returned_by_its_own_name(self, store: Store) -> None:
        tail = (await create(store)).tail
        assert list((await splits(store)).offsets) == [tail]
        end = (await append(store)).tail
        assert list((await splits(store)).offsets) == [tail, end]

    async def test_an_empty_range_has_one_offset(self, store: Store) -> None:
        first = (await create(store, body=b"1")).tail
        tail = (await append(store)).tail
        assert list((await splits(store, start=tail)).offsets) == [tail]
        found = await splits(store, start=tail, end=first)
        assert (list(found.offsets), found.complete) == ([tail], True)

    async def test_binary_is_cut_at_the_size(self, store: Store) -> None:
        await create(store, content_type=BINARY, body=b"x" * 2500)
        found = await splits(store, size=1000)
        assert [offset.byte for offset in found.offsets] == [0, 1000, 2000, 2500]

    async def test_fork_points_are_cut(self, store: Store) -> None:
        await create(store, "source", body=b"[1, 2]")
        await fork(store, "s", "source")
        end = (await append(store, body=b"[3, 4]")).tail
        found = await splits(store, size=PLENTY)
        assert [offset.epoch for offset in found.offsets] == [
            end.epoch - 1,
            end.epoch - 1,
            end.epoch,
        ]
        assert await messages(store, start=found.offsets[1]) == [3, 4]

    async def test_positions_that_the_stream_does_not_have_are_refused(self, store: Store) -> None:
        first = (await create(store, body=b'["first"]')).tail
        tail = (await append(store, body=b'["second"]')).tail
        inside = Offset(first.epoch, first.byte + 1)
        beyond = Offset(tail.epoch, tail.byte + 1)
        refused = OffsetInsideMessage(inside)
        assert await store.split_points("s", inside, NOW, 10, 10, T0) == refused
        assert await store.split_points("s", START, inside, 10, 10, T0) == refused
        assert await store.split_points("s", START, beyond, 10, 10, T0) == OffsetBeyondTail(
            beyond, tail
        )
        await store.delete("s", T0)
        assert await store.split_points("s", START, NOW, 10, 10, T0) == StreamNotFound("s")
        info = await create(store)
        stale = await store.split_points("s", tail, NOW, 10, 10, T0)
        assert stale == StaleIncarnation(tail, info.incarnation)
        await fork(store, "fork", "s")
        await store.delete("s", T0)
        assert await store.split_points("s", START, NOW, 10, 10, T0) == StreamGone("s")
