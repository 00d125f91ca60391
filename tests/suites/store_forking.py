"""What any store promises of forks: what they inherit, and what they keep alive."""

import pytest

from headwater.protocol.expiry import NEVER, Expiry
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.offsets import (
    START,
    Offset,
    OffsetBeyondTail,
    OffsetInsideMessage,
    StaleIncarnation,
    UnknownPosition,
)
from headwater.protocol.producers import ProducerClaim
from headwater.protocol.refusals import (
    ConfigMismatch,
    ContentTypeMismatch,
    PathBlocked,
    SourceGone,
    SourceNotFound,
    StreamGone,
    StreamNotFound,
    SubOffsetOvershoot,
)
from headwater.storage.store import Created, Store
from tests.suites.behaviours import runs_behaviours
from tests.suites.steps import (
    BINARY,
    JSON,
    PLENTY,
    T0,
    TEXT,
    append,
    body_of,
    close,
    content,
    create,
    expect,
    fork,
    fork_of,
    head,
    messages,
    messages_of,
    pages,
    read,
)

DEEP = 1200
"""More levels than Python recurses by default."""


@runs_behaviours
class Forking:
    """Where a fork diverges, and what it shares (PROTOCOL 4.2)."""

    async def test_a_fork_begins_with_its_source_and_goes_its_own_way(self, store: Store) -> None:
        await create(store, body=b"[1, 2]")
        await fork(store, "f", "s")
        await append(store, "s", b"3")
        await append(store, "f", b"4")
        assert await messages(store, "s") == [1, 2, 3]
        assert await messages(store, "f") == [1, 2, 4]

    async def test_a_fork_can_diverge_at_any_offset_that_was_returned(self, store: Store) -> None:
        tails = [(await create(store)).tail]
        tails += [(await append(store, body=b"%d" % number)).tail for number in range(4)]
        for number, tail in enumerate(tails):
            info = await fork(store, f"f{number}", "s", tail)
            assert info.tail == tail
            assert await messages(store, f"f{number}") == list(range(number))

    async def test_a_fork_from_the_beginning_is_empty(self, store: Store) -> None:
        await create(store, body=b"[1, 2]")
        await fork(store, "f", "s", START)
        assert await messages(store, "f") == []

    async def test_a_fork_may_bring_its_first_bytes(self, store: Store) -> None:
        await create(store, body=b"[1, 2]")
        info = await fork(store, "f", "s", body=b"[3]")
        assert await messages(store, "f") == [1, 2, 3]
        assert (await read(store, "f")).end == info.tail

    async def test_inherited_offsets_are_the_sources_and_own_ones_are_not(
        self, store: Store
    ) -> None:
        first = (await create(store, body=b"[1]")).tail
        second = (await append(store, body=b"2")).tail
        await fork(store, "f", "s", second)
        ours = (await append(store, "f", b"3")).tail
        theirs = (await append(store, "s", b"3")).tail
        assert ours.byte == theirs.byte
        assert ours != theirs
        assert await messages(store, "f", first) == [2, 3]
        assert await messages(store, "f", second) == [3]
        assert await store.read("f", theirs, PLENTY, T0) == UnknownPosition(theirs)
        assert await store.read("s", ours, PLENTY, T0) == UnknownPosition(ours)
        assert str(START) < str(first) < str(second) < str(ours)

    async def test_a_sub_offset_counts_json_messages(self, store: Store) -> None:
        anchor = (await create(store, body=b"[1]")).tail
        await append(store, body=b"[2, 3, [4, 5], 6]")
        batch = [2, 3, [4, 5], 6]
        for count in range(5):
            await fork(store, f"f{count}", "s", anchor, count)
            await append(store, f"f{count}", b'"own"')
            assert await messages(store, f"f{count}") == [1, *batch[:count], "own"]

    async def test_a_sub_offset_counts_bytes_otherwise(self, store: Store) -> None:
        anchor = (await create(store, content_type=BINARY, body=b"abc")).tail
        await append(store, body=b"def", content_type=BINARY)
        for count in range(4):
            await fork(store, f"f{count}", "s", anchor, count)
            await append(store, f"f{count}", b"!", BINARY)
            assert await content(store, f"f{count}") == b"abcdef"[: 3 + count] + b"!"

    @pytest.mark.parametrize(("media", "available"), [(JSON, 2), (BINARY, 5)])
    async def test_a_sub_offset_past_the_end_is_refused(
        self, store: Store, media: str, available: int
    ) -> None:
        await create(store, content_type=media, body=b"[1,2]")
        outcome = await store.create("f", fork_of("s", START, available + 1), T0)
        refusal = expect(SubOffsetOvershoot, outcome)
        assert (refusal.sub_offset, refusal.available) == (available + 1, available)
        assert await store.head("f", T0) == StreamNotFound("f")
        huge = await store.create("f", fork_of("s", START, 2**53 - 1), T0)
        expect(SubOffsetOvershoot, huge)

    async def test_fork_offsets_are_held_against_the_source(self, store: Store) -> None:
        await create(store, "older")
        tail = (await create(store, body=b'"first"')).tail
        newer = await create(store, "newer")
        beyond = Offset(tail.epoch, tail.byte + 1)
        inside = Offset(tail.epoch, tail.byte - 1)
        expect(OffsetBeyondTail, await store.create("f", fork_of("s", beyond), T0))
        expect(OffsetInsideMessage, await store.create("f", fork_of("s", inside), T0))
        foreign = Offset(tail.epoch - 1, tail.byte)
        expect(StaleIncarnation, await store.create("f", fork_of("s", foreign), T0))
        expect(UnknownPosition, await store.create("f", fork_of("s", newer.tail), T0))
        assert await store.head("f", T0) == StreamNotFound("f")
        # Nothing of this held on to the source.
        await store.delete("s", T0)
        assert await store.head("s", T0) == StreamNotFound("s")

    async def test_a_fork_of_nothing_is_refused(self, store: Store) -> None:
        assert await store.create("f", fork_of("s"), T0) == SourceNotFound("s")

    async def test_a_fork_takes_the_content_type_of_its_source(self, store: Store) -> None:
        await create(store, content_type="text/plain; charset=utf-8")
        info = await fork(store, "f", "s")
        assert info.config.content_type == "text/plain; charset=utf-8"
        refusal = await store.create("g", fork_of("s", content_type=JSON), T0)
        expect(ContentTypeMismatch, refusal)
        await fork(store, "g", "s", content_type=TEXT)

    async def test_a_fork_of_a_closed_stream_is_open(self, store: Store) -> None:
        await create(store, body=b"1")
        await close(store)
        info = await fork(store, "f", "s")
        assert not info.closed
        await append(store, "f", b"2")
        assert await messages(store, "f") == [1, 2]

    async def test_closing_a_fork_leaves_its_source_open(self, store: Store) -> None:
        await create(store)
        await fork(store, "f", "s")
        await close(store, "f")
        assert not (await head(store)).closed

    async def test_writers_start_afresh_on_a_fork(self, store: Store) -> None:
        await create(store)
        claim = ProducerClaim("p", 7, 0)
        await append(store, seq="9", producer=claim)
        await fork(store, "f", "s")
        first = await append(store, "f", seq="1", producer=ProducerClaim("p", 0, 0))
        assert not first.repeated
        assert (await append(store, producer=claim)).repeated

    async def test_repeating_a_fork_finds_it(self, store: Store) -> None:
        anchor = (await create(store, body=b"[1]")).tail
        await append(store, body=b"[2, 3]")
        info = await fork(store, "f", "s", anchor, 1)
        again = expect(Created, await store.create("f", fork_of("s", anchor, 1), T0))
        assert (again.new, again.info) == (False, info)
        # Without an offset it meant the tail of its time, also when the source has grown since.
        await fork(store, "g", "s")
        await append(store, body=b"4")
        assert not expect(Created, await store.create("g", fork_of("s"), T0)).new

    async def test_repeating_a_fork_does_not_hold_its_source_twice(self, store: Store) -> None:
        await create(store)
        await fork(store, "f", "s")
        expect(Created, await store.create("f", fork_of("s"), T0))
        await store.delete("s", T0)
        await store.delete("f", T0)
        assert await store.head("s", T0) == StreamNotFound("s")

    async def test_a_fork_that_disagrees_with_what_exists_is_refused(self, store: Store) -> None:
        anchor = (await create(store, body=b"[1]")).tail
        await append(store, body=b"[2, 3]")
        await create(store, "other")
        await fork(store, "f", "s", anchor, 1)
        for request in (
            fork_of("s", anchor, 2),
            fork_of("s", START, 1),
            fork_of("other"),
            Create(JSON),
            fork_of("s", anchor, 1, expiry=Expiry(ttl=9)),
        ):
            expect(ConfigMismatch, await store.create("f", request, T0))
        expect(ConfigMismatch, await store.create("other", fork_of("s"), T0))


@runs_behaviours
class Chaining:
    """Forks of forks."""

    async def test_a_chain_reads_across_all_of_its_borders(self, store: Store) -> None:
        await create(store, "f0", body=b'"0a"')
        for level in range(1, 8):
            await fork(store, f"f{level}", f"f{level - 1}")
            await append(store, f"f{level - 1}", b'"not inherited"')
            await append(store, f"f{level}", b'"%da"' % level)
        expected = [f"{level}a" for level in range(8)]
        assert await messages(store, "f7") == expected
        for limit in (1, 8, 13, 1000):
            found = await pages(store, "f7", limit)
            assert [each for page in found for each in messages_of(page)] == expected

    async def test_offsets_of_a_chain_sort_and_resume(self, store: Store) -> None:
        tails = [(await create(store, "f0")).tail]
        for level in range(1, 7):
            await fork(store, f"f{level}", f"f{level - 1}")
            tails.append((await append(store, f"f{level}", b"%d" % level)).tail)
        texts = [str(tail) for tail in tails]
        assert texts == sorted(set(texts))
        for level, tail in enumerate(tails):
            assert await messages(store, "f6", tail) == list(range(level + 1, 7))

    async def test_a_fork_inside_what_was_inherited_belongs_to_the_older_source(
        self, store: Store
    ) -> None:
        early = (await create(store, "a", body=b"[1]")).tail
        await append(store, "a", b"2")
        await fork(store, "b", "a")
        await append(store, "b", b"3")
        info = await fork(store, "c", "b", early)
        assert info.tail == early
        await append(store, "c", b"4")
        assert await messages(store, "c") == [1, 4]
        await fork(store, "d", "b", early, 2)
        assert await messages(store, "d") == [1, 2, 3]

    async def test_bytes_are_inherited_through_a_chain_byte_for_byte(self, store: Store) -> None:
        await create(store, "f0", content_type=BINARY, body=b"0" * 300_000)
        for level in range(1, 6):
            await fork(store, f"f{level}", f"f{level - 1}")
            await append(store, f"f{level}", b"%d" % level * 100_000, BINARY)
        expected = b"0" * 300_000 + b"".join(b"%d" % level * 100_000 for level in range(1, 6))
        assert await content(store, "f5") == expected
        parts = [body_of(page) for page in await pages(store, "f5", 77_777)]
        assert b"".join(parts) == expected

    async def test_a_very_long_chain_can_be_read_and_taken_down(self, store: Store) -> None:
        await create(store, "f0", body=b'"root"')
        for level in range(1, DEEP):
            await fork(store, f"f{level}", f"f{level - 1}")
        last = f"f{DEEP - 1}"
        assert await messages(store, last) == ["root"]
        for level in range(DEEP):
            assert await store.delete(f"f{level}", T0) is None
        assert await store.head("f0", T0) == StreamNotFound("f0")


@runs_behaviours
class KeepingAlive:
    """Soft deletion, reference counts and the cascade."""

    async def test_a_deleted_source_is_gone_but_its_forks_read_on(self, store: Store) -> None:
        await create(store, body=b"[1, 2]")
        await fork(store, "f", "s")
        assert await store.delete("s", T0) is None
        gone = StreamGone("s")
        assert await store.head("s", T0) == gone
        assert await store.read("s", START, PLENTY, T0) == gone
        assert await store.append("s", Append(JSON, b"1"), T0) == gone
        assert await store.delete("s", T0) == gone
        await append(store, "f", b"3")
        assert await messages(store, "f") == [1, 2, 3]

    async def test_a_deleted_source_blocks_its_path_and_new_forks(self, store: Store) -> None:
        await create(store, body=b"[1, 2]")
        await fork(store, "f", "s")
        await store.delete("s", T0)
        assert await store.create("s", Create(JSON), T0) == PathBlocked("s")
        assert await store.create("s", fork_of("f"), T0) == PathBlocked("s")
        assert await store.create("g", fork_of("s"), T0) == SourceGone("s")
        await fork(store, "g", "f")
        assert await messages(store, "g") == [1, 2]

    async def test_the_last_fork_takes_its_deleted_source_along(self, store: Store) -> None:
        await create(store, body=b"1")
        await fork(store, "f", "s")
        await fork(store, "g", "s")
        await store.delete("s", T0)
        await store.delete("f", T0)
        assert await store.head("s", T0) == StreamGone("s")
        await store.delete("g", T0)
        assert await store.head("s", T0) == StreamNotFound("s")
        await create(store, body=b"2")
        assert await messages(store) == [2]

    async def test_deleting_a_fork_leaves_a_living_source(self, store: Store) -> None:
        await create(store, body=b"1")
        await fork(store, "f", "s")
        await store.delete("f", T0)
        assert await messages(store) == [1]
        await store.delete("s", T0)
        assert await store.head("s", T0) == StreamNotFound("s")

    async def test_the_cascade_climbs_the_whole_chain(self, store: Store) -> None:
        await create(store, "f0", body=b"0")
        for level in range(1, 6):
            await fork(store, f"f{level}", f"f{level - 1}")
            await append(store, f"f{level}", b"%d" % level)
        for level in range(5):
            await store.delete(f"f{level}", T0)
        assert await messages(store, "f5") == [0, 1, 2, 3, 4, 5]
        await store.delete("f5", T0)
        for level in range(6):
            assert await store.head(f"f{level}", T0) == StreamNotFound(f"f{level}")

    async def test_the_cascade_stops_at_what_still_lives(self, store: Store) -> None:
        await create(store, "a", body=b"1")
        await fork(store, "b", "a")
        await fork(store, "c", "b")
        await fork(store, "d", "a")
        await store.delete("b", T0)
        await store.delete("a", T0)
        await store.delete("c", T0)
        assert await store.head("b", T0) == StreamNotFound("b")
        assert await store.head("a", T0) == StreamGone("a")
        assert await messages(store, "d") == [1]

    async def test_an_expired_source_serves_its_forks_until_they_go(self, store: Store) -> None:
        await create(store, body=b"1", expiry=Expiry(ttl=10))
        await fork(store, "f", "s", expiry=Expiry(ttl=1000))
        assert await store.expire(T0 + 11, 100) == 1
        assert await store.head("s", T0 + 11) == StreamGone("s")
        assert await messages(store, "f", now=T0 + 11) == [1]
        assert await store.expire(T0 + 2000, 100) == 1
        assert await store.head("s", T0 + 2000) == StreamNotFound("s")

    async def test_a_path_that_is_used_again_can_be_forked_again(self, store: Store) -> None:
        old = (await create(store, body=b"1")).tail
        await fork(store, "f", "s")
        await store.delete("s", T0)
        await store.delete("f", T0)
        await create(store, body=b"2")
        await fork(store, "f", "s")
        assert await messages(store, "f") == [2]
        expect(StaleIncarnation, await store.read("f", old, PLENTY, T0))


TTL = Expiry(ttl=10)
OTHER_TTL = Expiry(ttl=30)
AT = Expiry(expires_at="at", instant=T0 + 20)
OTHER_AT = Expiry(expires_at="later", instant=T0 + 40)


@runs_behaviours
class Inheriting:
    """The table of PROTOCOL 4.2: which expiry a fork gets."""

    @pytest.mark.parametrize(
        ("source", "asked", "gets"),
        [
            (NEVER, NEVER, NEVER),
            (NEVER, OTHER_TTL, OTHER_TTL),
            (NEVER, OTHER_AT, OTHER_AT),
            (TTL, NEVER, TTL),
            (TTL, OTHER_TTL, OTHER_TTL),
            (TTL, OTHER_AT, OTHER_AT),
            (AT, NEVER, AT),
            (AT, OTHER_TTL, OTHER_TTL),
            (AT, OTHER_AT, OTHER_AT),
        ],
    )
    async def test_a_fork_gets_what_it_asks_for_or_what_its_source_has(
        self, store: Store, source: Expiry, asked: Expiry, gets: Expiry
    ) -> None:
        await create(store, expiry=source)
        info = await fork(store, "f", "s", expiry=asked)
        assert info.config.expiry == gets
        deadline = gets.deadline(T0)
        if deadline is None:
            await head(store, "f", now=T0 + 10**9)
        else:
            await head(store, "f", now=deadline - 0.1)
            assert await store.head("f", deadline) == StreamNotFound("f")

    async def test_source_and_fork_slide_apart(self, store: Store) -> None:
        await create(store, expiry=TTL)
        await fork(store, "f", "s")
        for second in (8, 16, 24):
            await append(store, "f", now=T0 + second)
        await head(store, "f", now=T0 + 33)
        assert await store.head("s", T0 + 33) == StreamGone("s")
