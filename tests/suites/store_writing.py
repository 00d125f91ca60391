"""What any store promises of creating, appending, producers, closing and deleting."""

import pytest

from headwater.protocol.expiry import Expiry
from headwater.protocol.framing import EmptyArray, InvalidJson
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.producers import (
    EpochStartsAtZero,
    Fenced,
    ProducerClaim,
    ProducerState,
    SequenceGap,
)
from headwater.protocol.refusals import (
    ConfigMismatch,
    ContentTypeMismatch,
    SeqRegression,
    StreamClosed,
    StreamNotFound,
)
from headwater.storage.store import Created, Store
from tests.suites.behaviours import runs_behaviours
from tests.suites.steps import (
    BINARY,
    JSON,
    T0,
    TEXT,
    append,
    close,
    content,
    create,
    expect,
    head,
    messages,
    read,
)

SOON = Expiry(expires_at="2030-01-01T00:00:00Z", instant=1_893_456_000.0)


@runs_behaviours
class Opening:
    """Whether a store can be used."""

    async def test_a_store_is_ready_between_open_and_close(self, store: Store) -> None:
        assert store.ready
        await store.close()
        assert not store.ready

    async def test_closing_twice_is_the_same_as_once(self, store: Store) -> None:
        await store.close()
        await store.close()
        assert not store.ready


@runs_behaviours
class Creating:
    """PUT, without forks."""

    async def test_a_new_stream_is_empty_open_and_starts_at_its_tail(self, store: Store) -> None:
        info = await create(store)
        chunk = await read(store)
        assert (info.path, info.closed) == ("s", False)
        assert (chunk.start, chunk.end, list(chunk.parts)) == (info.tail, info.tail, [])
        assert chunk.up_to_date
        assert not chunk.at_end

    async def test_the_configuration_is_kept_as_it_was_given(self, store: Store) -> None:
        info = await create(store, content_type="Text/Plain; charset=UTF-8", expiry=SOON)
        assert info.config.content_type == "Text/Plain; charset=UTF-8"
        assert info.config.media_type == "text/plain"
        assert info.config.expiry == SOON
        assert await head(store) == info

    async def test_without_a_content_type_a_stream_is_binary(self, store: Store) -> None:
        info = await create(store, content_type=None)
        assert info.config.media_type == BINARY

    async def test_the_first_bytes_are_there_at_once(self, store: Store) -> None:
        info = await create(store, body=b'[{"n": 1}, {"n": 2}]')
        assert await messages(store) == [{"n": 1}, {"n": 2}]
        assert (await read(store)).end == info.tail

    async def test_an_empty_array_creates_an_empty_stream(self, store: Store) -> None:
        await create(store, body=b"[]")
        assert await messages(store) == []

    async def test_a_broken_body_creates_nothing(self, store: Store) -> None:
        outcome = await store.create("s", Create(JSON, body=b'{"n": '), T0)
        expect(InvalidJson, outcome)
        assert await store.head("s", T0) == StreamNotFound("s")

    async def test_a_stream_can_be_born_closed_with_its_only_content(self, store: Store) -> None:
        info = await create(store, content_type=TEXT, body=b"all of it", close=True)
        assert info.closed
        chunk = await read(store)
        assert chunk.joined() == b"all of it"
        assert chunk.at_end

    async def test_repeating_a_creation_appends_nothing(self, store: Store) -> None:
        request = Create(JSON, Expiry(ttl=60), b"[1, 2]")
        first = expect(Created, await store.create("s", request, T0))
        again = expect(Created, await store.create("s", request, T0))
        assert (first.new, again.new) == (True, False)
        assert again.info == first.info
        assert await messages(store) == [1, 2]

    async def test_parameters_and_case_of_the_content_type_are_no_mismatch(
        self, store: Store
    ) -> None:
        await create(store, content_type="text/plain")
        again = await store.create("s", Create("TEXT/plain;charset=utf-8"), T0)
        assert not expect(Created, again).new

    @pytest.mark.parametrize(
        ("has", "wants", "field"),
        [
            (Create(JSON), Create(TEXT), "content type"),
            (Create(JSON), Create(JSON, close=True), "closure"),
            (Create(JSON, close=True), Create(JSON), "closure"),
            (Create(JSON), Create(JSON, Expiry(ttl=60)), "expiry"),
            (Create(JSON, Expiry(ttl=60)), Create(JSON), "expiry"),
            (Create(JSON, Expiry(ttl=60)), Create(JSON, Expiry(ttl=61)), "expiry"),
            (Create(JSON, SOON), Create(JSON, Expiry(ttl=60)), "expiry"),
            (Create(JSON, SOON), Create(JSON), "expiry"),
        ],
    )
    async def test_a_creation_that_disagrees_is_refused_and_changes_nothing(
        self, store: Store, has: Create, wants: Create, field: str
    ) -> None:
        before = expect(Created, await store.create("s", has, T0)).info
        refusal = expect(ConfigMismatch, await store.create("s", wants, T0))
        assert (refusal.path, refusal.field) == ("s", field)
        assert await head(store) == before

    async def test_streams_at_different_paths_know_nothing_of_each_other(
        self, store: Store
    ) -> None:
        for path in ("a", "a/b", "A", "ü", "a b"):
            await create(store, path, body=f'"{path}"'.encode())
        for path in ("a", "a/b", "A", "ü", "a b"):
            assert await messages(store, path) == [path]

    async def test_every_incarnation_has_its_own_number(self, store: Store) -> None:
        seen = set()
        for _ in range(3):
            seen.add((await create(store)).incarnation)
            assert await store.delete("s", T0) is None
        assert len(seen) == 3


@runs_behaviours
class Appending:
    """POST without producers."""

    async def test_appends_come_back_in_order(self, store: Store) -> None:
        await create(store)
        for number in range(20):
            await append(store, body=b"%d" % number)
        assert await messages(store) == list(range(20))

    async def test_an_array_is_flattened_by_one_level(self, store: Store) -> None:
        await create(store)
        await append(store, body=b"[[1, 2], [[3]], {}]")
        assert await messages(store) == [[1, 2], [[3]], {}]

    async def test_binary_appends_are_joined_byte_for_byte(self, store: Store) -> None:
        await create(store, content_type=BINARY)
        for piece in (b"\x00\xff\n", b"", b",\n", bytes(range(256))):
            if piece:
                await append(store, body=piece, content_type=BINARY)
        assert await content(store) == b"\x00\xff\n,\n" + bytes(range(256))

    async def test_each_append_names_the_new_tail_and_tails_increase_as_text(
        self, store: Store
    ) -> None:
        tails = [(await create(store)).tail]
        for number in range(12):
            tails.append((await append(store, body=b"%d" % number)).tail)
            assert (await head(store)).tail == tails[-1]
        assert [str(tail) for tail in tails] == sorted({str(tail) for tail in tails})

    async def test_an_append_to_nothing_is_refused(self, store: Store) -> None:
        assert await store.append("s", Append(JSON, b"1"), T0) == StreamNotFound("s")

    @pytest.mark.parametrize(
        ("body", "refusal"),
        [(b"[]", EmptyArray), (b" [ ] ", EmptyArray), (b"{", InvalidJson), (b"\xff", InvalidJson)],
    )
    async def test_a_body_that_is_no_message_is_refused_and_leaves_no_trace(
        self, store: Store, body: bytes, refusal: type
    ) -> None:
        before = await create(store, body=b"1")
        claim = ProducerClaim("p", 0, 0)
        request = Append(JSON, body, close=True, seq="5", producer=claim)
        expect(refusal, await store.append("s", request, T0))
        assert await head(store) == before
        # Neither the producer, nor Stream-Seq, nor closure was taken over.
        await append(store, body=b"2", seq="1", producer=claim)
        assert await messages(store) == [1, 2]

    async def test_another_content_type_is_refused(self, store: Store) -> None:
        await create(store)
        refusal = expect(ContentTypeMismatch, await store.append("s", Append(TEXT, b'"text"'), T0))
        assert (refusal.expected, refusal.received) == (JSON, TEXT)
        assert await messages(store) == []

    async def test_stream_seq_must_grow_bytewise(self, store: Store) -> None:
        await create(store)
        await append(store, seq="09")
        await append(store, seq="1")
        refusal = expect(SeqRegression, await store.append("s", Append(JSON, b"2", seq="0999"), T0))
        assert (refusal.last, refusal.received) == ("1", "0999")
        expect(SeqRegression, await store.append("s", Append(JSON, b"2", seq="1"), T0))
        await append(store)  # one without a number neither needs nor changes it
        expect(SeqRegression, await store.append("s", Append(JSON, b"2", seq="1"), T0))
        await append(store, seq="10")
        await append(store, seq="\u00ff")
        assert await messages(store) == [1] * 5


@runs_behaviours
class Producing:
    """Idempotent producers (PROTOCOL 5.2.1)."""

    async def test_a_repeated_claim_is_answered_again_and_written_once(self, store: Store) -> None:
        await create(store)
        first = await append(store, producer=ProducerClaim("p", 0, 0))
        again = await append(store, producer=ProducerClaim("p", 0, 0))
        assert (first.repeated, again.repeated) == (False, True)
        assert first.producer == again.producer == ProducerState(0, 0)
        assert first.tail == again.tail
        assert await messages(store) == [1]

    async def test_the_answer_to_an_old_claim_has_the_highest_number(self, store: Store) -> None:
        await create(store)
        for seq in range(4):
            await append(store, producer=ProducerClaim("p", 0, seq))
        again = await append(store, producer=ProducerClaim("p", 0, 1))
        assert (again.repeated, again.producer) == (True, ProducerState(0, 3))

    async def test_a_gap_is_refused_and_can_be_filled(self, store: Store) -> None:
        await create(store)
        late = Append(JSON, b"1", producer=ProducerClaim("p", 0, 1))
        assert await store.append("s", late, T0) == SequenceGap("p", 0, 1)
        await append(store, body=b"0", producer=ProducerClaim("p", 0, 0))
        await append(store, body=b"1", producer=ProducerClaim("p", 0, 1))
        skipped = Append(JSON, b"9", producer=ProducerClaim("p", 0, 9))
        assert await store.append("s", skipped, T0) == SequenceGap("p", 2, 9)
        assert await messages(store) == [0, 1]

    async def test_a_newer_epoch_fences_the_older(self, store: Store) -> None:
        await create(store)
        await append(store, body=b"1", producer=ProducerClaim("p", 0, 0))
        started = await append(store, body=b"2", producer=ProducerClaim("p", 3, 0))
        assert started.producer == ProducerState(3, 0)
        zombie = Append(JSON, b"3", producer=ProducerClaim("p", 0, 1))
        assert await store.append("s", zombie, T0) == Fenced("p", 0, 3)
        assert await messages(store) == [1, 2]

    async def test_a_new_epoch_starts_at_zero(self, store: Store) -> None:
        await create(store)
        await append(store, producer=ProducerClaim("p", 0, 0))
        request = Append(JSON, b"2", producer=ProducerClaim("p", 1, 1))
        assert await store.append("s", request, T0) == EpochStartsAtZero("p", 1, 1)
        assert await messages(store) == [1]

    async def test_producers_and_streams_are_apart(self, store: Store) -> None:
        for path in ("a", "b"):
            await create(store, path)
            for producer in ("p", "q"):
                claim = ProducerClaim(producer, 0, 0)
                assert not (await append(store, path, producer=claim)).repeated
        assert await messages(store, "a") == [1, 1]

    async def test_a_repeated_claim_comes_before_stream_seq(self, store: Store) -> None:
        await create(store)
        claim = ProducerClaim("p", 0, 0)
        await append(store, seq="5", producer=claim)
        assert (await append(store, seq="5", producer=claim)).repeated

    async def test_a_refused_stream_seq_leaves_the_producer_where_it_was(
        self, store: Store
    ) -> None:
        await create(store)
        await append(store, seq="5")
        claim = ProducerClaim("p", 0, 0)
        refused = await store.append("s", Append(JSON, b"2", seq="4", producer=claim), T0)
        expect(SeqRegression, refused)
        assert not (await append(store, body=b"3", seq="6", producer=claim)).repeated
        assert await messages(store) == [1, 3]

    async def test_a_recreated_stream_has_forgotten_its_producers(self, store: Store) -> None:
        await create(store)
        await append(store, seq="9", producer=ProducerClaim("p", 5, 0))
        await store.delete("s", T0)
        await create(store)
        fresh = await append(store, seq="1", producer=ProducerClaim("p", 0, 0))
        assert not fresh.repeated


@runs_behaviours
class Closing:
    """Closing, alone and with the last append (PROTOCOL 5.3)."""

    async def test_closing_keeps_the_content_and_the_tail(self, store: Store) -> None:
        before = await create(store, body=b"[1, 2]")
        closed = await close(store)
        assert (closed.tail, closed.closed) == (before.tail, True)
        assert await messages(store) == [1, 2]
        assert (await head(store)).closed

    async def test_closing_is_one_step_with_the_last_append(self, store: Store) -> None:
        await create(store)
        last = await append(store, close=True)
        assert last.closed
        chunk = await read(store)
        assert chunk.at_end
        assert chunk.end == last.tail

    async def test_closing_again_is_a_success_that_changes_nothing(self, store: Store) -> None:
        await create(store, body=b"1")
        first = await close(store)
        again = await close(store)
        assert (again.tail, again.closed, again.repeated) == (first.tail, True, True)

    @pytest.mark.parametrize("with_close", [False, True])
    async def test_a_closed_stream_takes_no_data_and_says_where_it_ends(
        self, store: Store, with_close: bool
    ) -> None:
        await create(store, body=b"1")
        tail = (await close(store)).tail
        outcome = await store.append("s", Append(JSON, b"2", close=with_close), T0)
        assert outcome == StreamClosed("s", tail)
        assert await messages(store) == [1]

    async def test_closure_is_reported_before_any_other_conflict(self, store: Store) -> None:
        await create(store, body=b"1")
        await append(store, seq="5", close=True)
        for request in (
            Append(TEXT, b"x"),
            Append(JSON, b"1", seq="4"),
            Append(JSON, b"1", producer=ProducerClaim("p", 0, 7)),
            Append(JSON, b"{"),
        ):
            expect(StreamClosed, await store.append("s", request, T0))

    async def test_the_claim_that_closed_is_answered_again(self, store: Store) -> None:
        await create(store)
        await append(store, body=b"1", producer=ProducerClaim("p", 2, 0))
        claim = ProducerClaim("p", 2, 1)
        last = await append(store, body=b"2", close=True, producer=claim)
        again = await append(store, body=b"2", close=True, producer=claim)
        assert (again.tail, again.closed, again.repeated) == (last.tail, True, True)
        assert again.producer == ProducerState(2, 1)
        assert await messages(store) == [1, 2]

    @pytest.mark.parametrize(
        "claim", [ProducerClaim("p", 0, 0), ProducerClaim("p", 0, 2), ProducerClaim("q", 0, 1)]
    )
    async def test_any_other_claim_on_a_closed_stream_is_refused(
        self, store: Store, claim: ProducerClaim
    ) -> None:
        await create(store)
        await append(store, producer=ProducerClaim("p", 0, 0))
        await append(store, close=True, producer=ProducerClaim("p", 0, 1))
        request = Append(JSON, b"2", close=True, producer=claim)
        expect(StreamClosed, await store.append("s", request, T0))

    async def test_a_producer_can_close_without_data_and_repeat_it(self, store: Store) -> None:
        await create(store)
        request = Append(close=True, producer=ProducerClaim("p", 0, 0))
        for repeated in (False, True):
            outcome = await append(
                store, body=b"", content_type="", close=True, producer=request.producer
            )
            assert (outcome.closed, outcome.repeated) == (True, repeated)

    async def test_a_close_from_a_fenced_producer_does_not_close(self, store: Store) -> None:
        await create(store)
        await append(store, producer=ProducerClaim("p", 1, 0))
        request = Append(JSON, b"2", close=True, producer=ProducerClaim("p", 0, 1))
        expect(Fenced, await store.append("s", request, T0))
        assert not (await head(store)).closed


@runs_behaviours
class Deleting:
    """DELETE, without forks."""

    async def test_a_deleted_stream_is_gone_for_every_call(self, store: Store) -> None:
        tail = (await create(store, body=b"1")).tail
        assert await store.delete("s", T0) is None
        missing = StreamNotFound("s")
        assert await store.head("s", T0) == missing
        assert await store.read("s", tail, 100, T0) == missing
        assert await store.append("s", Append(JSON, b"1"), T0) == missing
        assert await store.delete("s", T0) == missing

    async def test_deleting_a_stream_that_never_existed_is_refused(self, store: Store) -> None:
        assert await store.delete("s", T0) == StreamNotFound("s")

    async def test_a_path_can_be_used_again_for_another_kind_of_stream(self, store: Store) -> None:
        await create(store, body=b"1", close=True, expiry=Expiry(ttl=5))
        await store.delete("s", T0)
        info = await create(store, content_type=TEXT, body=b"new")
        assert not info.closed
        assert not info.config.expiry
        assert await content(store) == b"new"
