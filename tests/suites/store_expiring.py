"""What any store promises of time: sliding TTL, absolute expiry, and the reaper."""

from headwater.protocol.expiry import Expiry
from headwater.protocol.lifecycle import Append
from headwater.protocol.offsets import START
from headwater.protocol.refusals import StreamNotFound
from headwater.storage.store import Store
from tests.suites.behaviours import runs_behaviours
from tests.suites.steps import JSON, T0, append, close, create, head, messages, read

GONE = StreamNotFound("s")
AT_TEN = Expiry(expires_at="the tenth second", instant=T0 + 10)


@runs_behaviours
class Expiring:
    """`Stream-TTL` and `Stream-Expires-At` (PROTOCOL 5.1)."""

    async def test_a_ttl_runs_out_without_access(self, store: Store) -> None:
        await create(store, expiry=Expiry(ttl=10))
        assert (await head(store, now=T0 + 9.9)).config.expiry.ttl == 10
        assert await store.head("s", T0 + 10) == GONE

    async def test_reading_and_appending_restart_a_ttl(self, store: Store) -> None:
        await create(store, expiry=Expiry(ttl=10))
        await append(store, now=T0 + 8)
        await read(store, now=T0 + 16)
        await head(store, now=T0 + 25)
        assert await store.head("s", T0 + 26) == GONE

    async def test_looking_does_not_restart_a_ttl(self, store: Store) -> None:
        await create(store, expiry=Expiry(ttl=10))
        await head(store, now=T0 + 9)
        assert await store.head("s", T0 + 10) == GONE

    async def test_closing_counts_as_a_write(self, store: Store) -> None:
        await create(store, expiry=Expiry(ttl=10))
        await close(store, now=T0 + 9)
        await head(store, now=T0 + 18)

    async def test_an_absolute_expiry_does_not_slide(self, store: Store) -> None:
        await create(store, expiry=AT_TEN)
        await append(store, now=T0 + 9)
        await read(store, now=T0 + 9.9)
        assert await store.head("s", T0 + 10) == GONE

    async def test_an_expired_stream_is_gone_for_every_call(self, store: Store) -> None:
        later = T0 + 60
        for call in (
            store.read("s", START, 100, later),
            store.append("s", Append(JSON, b"1"), later),
            store.delete("s", later),
            store.head("s", later),
        ):
            await create(store, expiry=AT_TEN)
            assert await call == GONE

    async def test_the_path_of_an_expired_stream_is_free(self, store: Store) -> None:
        first = await create(store, body=b"1", expiry=Expiry(ttl=10))
        second = await create(store, body=b"2", now=T0 + 11)
        assert second.incarnation != first.incarnation
        assert await messages(store, now=T0 + 11) == [2]

    async def test_a_stream_without_expiry_stays(self, store: Store) -> None:
        await create(store)
        assert await store.expire(T0 + 10**10, 100) == 0
        await head(store, now=T0 + 10**10)


@runs_behaviours
class Reaping:
    """`expire`."""

    async def test_the_reaper_removes_what_is_over_and_nothing_else(self, store: Store) -> None:
        await create(store, "over", expiry=Expiry(ttl=10))
        await create(store, "over too", expiry=AT_TEN)
        await create(store, "later", expiry=Expiry(ttl=100))
        await create(store, "never")
        assert await store.expire(T0 + 9, 100) == 0
        assert await store.expire(T0 + 10, 100) == 2
        assert await store.expire(T0 + 10, 100) == 0
        for path in ("later", "never"):
            await head(store, path, now=T0 + 10)
        # Looked at in the past, what the reaper took is still gone: it did not only look expired.
        assert await store.head("over", T0) == StreamNotFound("over")
        assert await store.head("over too", T0) == StreamNotFound("over too")

    async def test_no_more_streams_expire_at_once_than_the_limit(self, store: Store) -> None:
        for number in range(10):
            await create(store, f"s{number}", expiry=Expiry(ttl=1))
        removed = []
        while count := await store.expire(T0 + 5, 4):
            removed.append(count)
        assert removed == [4, 4, 2]

    async def test_streams_that_were_touched_do_not_hold_up_the_reaper(self, store: Store) -> None:
        for number in range(20):
            await create(store, f"kept{number}", expiry=Expiry(ttl=10))
        await create(store, expiry=Expiry(ttl=11))
        for number in range(20):
            await append(store, f"kept{number}", now=T0 + 9)
        assert await store.expire(T0 + 12, 1) == 1
        assert await store.head("s", T0) == GONE

    async def test_a_touched_stream_is_reaped_when_its_new_time_is_over(self, store: Store) -> None:
        await create(store, expiry=Expiry(ttl=10))
        await append(store, now=T0 + 9)
        assert await store.expire(T0 + 10, 100) == 0
        assert await store.expire(T0 + 19, 100) == 1

    async def test_a_recreated_stream_is_not_reaped_for_its_predecessor(self, store: Store) -> None:
        await create(store, expiry=Expiry(ttl=10))
        await store.delete("s", T0)
        await create(store, expiry=Expiry(ttl=100))
        assert await store.expire(T0 + 50, 100) == 0
        await head(store, now=T0 + 50)

    async def test_a_watched_stream_does_not_run_out_its_ttl(self, store: Store) -> None:
        await create(store, expiry=Expiry(ttl=10))
        unwatch = store.watch("s", lambda: None)
        for second in range(0, 100, 5):
            assert await store.expire(T0 + second, 100) == 0
        await head(store, now=T0 + 99)
        unwatch()
        assert await store.expire(T0 + 120, 100) == 1

    async def test_a_ttl_starts_again_when_the_last_watch_ends(self, store: Store) -> None:
        # The reaper may not come by between a watch's end and the next access.
        await create(store, expiry=Expiry(ttl=10))
        unwatch = store.watch("s", lambda: None)
        await store.expire(T0 + 95, 100)
        unwatch()
        await head(store, now=T0 + 96)

    async def test_a_watch_does_not_hold_off_an_absolute_expiry(self, store: Store) -> None:
        await create(store, expiry=AT_TEN)
        unwatch = store.watch("s", lambda: None)
        assert await store.expire(T0 + 10, 100) == 1
        unwatch()
