"""What any store promises of reading: positions, limits, cuts and what is refused."""

import pytest

from headwater.protocol.offsets import (
    NOW,
    START,
    Offset,
    OffsetBeyondTail,
    OffsetInsideMessage,
    StaleIncarnation,
    UnknownPosition,
)
from headwater.protocol.refusals import StreamNotFound
from headwater.storage.store import Chunk, Store
from tests.suites.behaviours import runs_behaviours
from tests.suites.steps import (
    BINARY,
    PLENTY,
    T0,
    TEXT,
    append,
    close,
    content,
    create,
    expect,
    messages,
    messages_of,
    pages,
    read,
)


@runs_behaviours
class Reading:
    """GET."""

    async def test_a_read_goes_on_where_the_last_one_ended(self, store: Store) -> None:
        await create(store)
        position = START
        for number in range(5):
            await append(store, body=b"%d" % number)
            chunk = await read(store, start=position)
            assert messages_of(chunk) == [number]
            assert chunk.up_to_date
            position = chunk.end

    async def test_every_tail_that_was_returned_can_be_read_from(self, store: Store) -> None:
        tails = [(await create(store)).tail]
        tails += [(await append(store, body=b"%d" % number)).tail for number in range(6)]
        for number, tail in enumerate(tails):
            assert await messages(store, start=tail) == list(range(number, 6))

    async def test_a_read_at_the_tail_is_empty_and_up_to_date(self, store: Store) -> None:
        tail = (await create(store, body=b"1")).tail
        chunk = await read(store, start=tail)
        assert (chunk.start, chunk.end, list(chunk.parts)) == (tail, tail, [])
        assert chunk.up_to_date

    async def test_now_is_the_tail_wherever_it_is(self, store: Store) -> None:
        await create(store, body=b"[1, 2]")
        tail = (await append(store, body=b"3")).tail
        chunk = await read(store, start=NOW)
        assert (chunk.start, chunk.end, list(chunk.parts)) == (tail, tail, [])

    async def test_nothing_can_be_read_of_nothing(self, store: Store) -> None:
        assert await store.read("s", START, 100, T0) == StreamNotFound("s")
        assert await store.read("s", NOW, 100, T0) == StreamNotFound("s")

    async def test_the_end_is_only_reported_at_the_end_of_a_closed_stream(
        self, store: Store
    ) -> None:
        await create(store, body=b"[1, 2]")
        first = await read(store, limit=1)
        await close(store)
        assert not first.at_end
        assert not (await read(store, limit=1)).at_end
        assert (await read(store, start=first.end)).at_end
        assert (await read(store, start=NOW)).at_end

    async def test_what_was_read_does_not_change_when_more_is_appended(self, store: Store) -> None:
        await create(store, content_type=BINARY, body=b"a" * 1000)
        chunk = await read(store)
        for _ in range(300):
            await append(store, body=b"b" * 1000, content_type=BINARY)
        assert chunk.joined() == b"a" * 1000
        assert await content(store) == b"a" * 1000 + b"b" * 300_000

    async def test_what_was_read_outlives_its_stream(self, store: Store) -> None:
        await create(store, content_type=BINARY, body=b"a" * 300_000)
        chunk = await read(store)
        await store.delete("s", T0)
        await create(store, content_type=BINARY, body=b"b" * 300_000)
        assert chunk.joined() == b"a" * 300_000


@runs_behaviours
class Cutting:
    """The limit of a read, and where it may cut."""

    @pytest.mark.parametrize("limit", [1, 7, 12, 13, 64, 100, 1000])
    async def test_json_is_cut_between_messages(self, store: Store, limit: int) -> None:
        sent = [{"n": number, "pad": "x" * (number % 17)} for number in range(40)]
        await create(store)
        for message in sent:
            await append(store, body=str(message).replace("'", '"').encode())
        found = await pages(store, "s", limit)
        assert [message for page in found for message in messages_of(page)] == sent
        assert all(messages_of(page) for page in found)
        assert [page.up_to_date for page in found] == [False] * (len(found) - 1) + [True]

    async def test_a_chunk_stays_within_the_limit_where_its_messages_allow(
        self, store: Store
    ) -> None:
        await create(store, body=b"[" + b",".join([b'"0123456789"'] * 50) + b"]")
        for page in await pages(store, "s", 100):
            assert sum(map(len, page.parts)) <= 100

    async def test_a_message_over_the_limit_comes_whole_and_alone(self, store: Store) -> None:
        await create(store)
        await append(store, body=b'["small", "%b", "after"]' % (b"x" * 5000))
        found = [messages_of(page) for page in await pages(store, "s", 100)]
        assert found == [["small"], ["x" * 5000], ["after"]]

    async def test_a_large_message_at_the_very_end_comes_whole(self, store: Store) -> None:
        await create(store, body=b'["small"]')
        await append(store, body=b'"%b"' % (b"x" * 70_000))
        found = [messages_of(page) for page in await pages(store, "s", 1000)]
        assert found == [["small"], ["x" * 70_000]]

    async def test_binary_is_cut_at_the_limit(self, store: Store) -> None:
        body = bytes(range(256)) * 10
        await create(store, content_type=BINARY, body=body)
        found = [page.joined() for page in await pages(store, "s", 999)]
        assert [len(piece) for piece in found] == [999, 999, 562]
        assert b"".join(found) == body

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 64])
    async def test_text_is_not_cut_inside_a_character(self, store: Store, limit: int) -> None:
        text = "aé€𝄞" * 20
        await create(store, content_type=TEXT, body=text.encode())
        found = [page.joined().decode() for page in await pages(store, "s", limit)]
        assert "".join(found) == text

    async def test_text_that_is_not_utf8_still_comes_to_an_end(self, store: Store) -> None:
        body = b"\xff\xc3\xc3\x80\x80\x80\x80\xf0\x9f\xe2" * 30
        await create(store, content_type=TEXT, body=body)
        found = [page.joined() for page in await pages(store, "s", 3)]
        assert b"".join(found) == body

    async def test_large_streams_come_back_whole_in_chunks(self, store: Store) -> None:
        await create(store, content_type=BINARY)
        pieces = [bytes([number]) * (10_007 * (number + 1)) for number in range(25)]
        for piece in pieces:
            await append(store, body=piece, content_type=BINARY)
        found = [page.joined() for page in await pages(store, "s", 100_000)]
        assert b"".join(found) == b"".join(pieces)
        assert max(map(len, found)) <= 100_000


@runs_behaviours
class Refusing:
    """Positions that a stream does not have."""

    async def test_an_offset_inside_a_message_is_refused(self, store: Store) -> None:
        start = (await create(store, body=b'["first"]')).tail
        end = (await append(store, body=b'["second"]')).tail
        for byte in range(start.byte + 1, end.byte):
            offset = Offset(start.epoch, byte)
            assert await store.read("s", offset, PLENTY, T0) == OffsetInsideMessage(offset)

    async def test_every_byte_of_a_binary_stream_is_a_position(self, store: Store) -> None:
        end = (await create(store, content_type=BINARY, body=b"abcdef")).tail
        for byte in range(7):
            offset = Offset(end.epoch, byte)
            assert await content(store, start=offset) == b"abcdef"[byte:]

    async def test_an_offset_beyond_the_tail_is_refused_until_it_exists(self, store: Store) -> None:
        tail = (await create(store, body=b"1")).tail
        beyond = Offset(tail.epoch, tail.byte + 3)
        assert await store.read("s", beyond, PLENTY, T0) == OffsetBeyondTail(beyond, tail)
        await append(store, body=b"2")
        expect(Chunk, await store.read("s", beyond, PLENTY, T0))

    async def test_a_huge_offset_is_refused(self, store: Store) -> None:
        tail = (await create(store, body=b"1")).tail
        offset = Offset(tail.epoch, 10**16 - 1)
        expect(OffsetBeyondTail, await store.read("s", offset, PLENTY, T0))

    async def test_an_offset_of_an_earlier_incarnation_is_recognised(self, store: Store) -> None:
        stale = (await create(store, body=b"1")).tail
        await store.delete("s", T0)
        info = await create(store, body=b"1")
        outcome = await store.read("s", stale, PLENTY, T0)
        assert outcome == StaleIncarnation(stale, info.incarnation)

    async def test_an_offset_of_another_stream_is_refused(self, store: Store) -> None:
        older = (await create(store, "older", body=b"1")).tail
        info = await create(store, body=b"1")
        newer = (await create(store, "newer", body=b"1")).tail
        outcome = await store.read("s", older, PLENTY, T0)
        assert outcome == StaleIncarnation(older, info.incarnation)
        assert await store.read("s", newer, PLENTY, T0) == UnknownPosition(newer)

    async def test_an_epoch_that_was_never_written_is_refused(self, store: Store) -> None:
        tail = (await create(store, body=b"1")).tail
        offset = Offset(tail.epoch + 1000, tail.byte)
        assert await store.read("s", offset, PLENTY, T0) == UnknownPosition(offset)

    async def test_the_beginning_of_any_stream_can_be_named_without_its_epoch(
        self, store: Store
    ) -> None:
        await create(store, body=b"1")
        await store.delete("s", T0)
        await create(store, body=b"2")
        assert await messages(store, start=START) == [2]
