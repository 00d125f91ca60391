"""What any store promises to those who observe, list its streams, or keep documents beside them."""

import asyncio

from headwater.protocol.expiry import Expiry
from headwater.storage.store import Store
from tests.suites.behaviours import runs_behaviours
from tests.suites.steps import T0, append, close, create, fork, head, notified

EVERYTHING = 1000


async def paths(store: Store, prefix: str = "", after: str = "", now: float = T0) -> list[str]:
    """List the paths of all living streams under a prefix."""
    return [info.path for info in await store.list_streams(prefix, after, EVERYTHING, now)]


@runs_behaviours
class Observing:
    """`observe`."""

    async def test_every_change_of_every_stream_is_reported(self, store: Store) -> None:
        reported: list[str] = []
        store.observe(reported.append)
        await create(store, "a")
        await notified()
        assert reported.count("a") == 1
        await create(store, "b")
        await notified()
        await append(store, "a")
        await notified()
        assert reported == ["a", "b", "a"]
        await close(store, "b")
        await notified()
        await store.delete("a", T0)
        await notified()
        assert reported == ["a", "b", "a", "b", "a"]

    async def test_an_observer_can_read_the_change_it_is_notified_of(self, store: Store) -> None:
        seen: list[object] = []
        tasks = []

        async def look(path: str) -> None:
            seen.append((await head(store, path)).tail)

        store.observe(lambda path: tasks.append(asyncio.ensure_future(look(path))))
        await create(store, body=b"[1]")
        await notified()
        await asyncio.gather(*tasks)
        assert seen == [(await head(store)).tail]

    async def test_no_change_is_reported_after_the_end(self, store: Store) -> None:
        reported: list[str] = []
        end = store.observe(reported.append)
        other: list[str] = []
        store.observe(other.append)
        end()
        end()
        await create(store)
        await notified()
        assert (reported, other) == ([], ["s"])

    async def test_an_expiry_is_reported_and_not_delayed(self, store: Store) -> None:
        await create(store, expiry=Expiry(ttl=10))
        await notified()
        reported: list[str] = []
        store.observe(reported.append)
        await store.expire(T0 + 10, 10)
        await notified()
        assert reported == ["s"]


@runs_behaviours
class Listing:
    """`streams`."""

    async def settle(self, store: Store) -> None:
        """Wait until the changes are saved, in a store that soon starts a checkpoint."""

    async def test_streams_are_listed_in_the_order_of_paths(self, store: Store) -> None:
        for path in ("b/2", "a", "b/10", "c", "b/1"):
            await create(store, path)
        assert await paths(store) == ["a", "b/1", "b/10", "b/2", "c"]
        assert await paths(store, "b/") == ["b/1", "b/10", "b/2"]
        assert await paths(store, "b/", "b/10") == ["b/2"]
        assert await paths(store, "x") == []

    async def test_a_prefix_is_taken_as_it_is(self, store: Store) -> None:
        for path in ("a%", "a_", "ab", "aé", "a😀"):
            await create(store, path)
        assert await paths(store, "a%") == ["a%"]
        assert await paths(store, "a") == ["a%", "a_", "ab", "aé", "a😀"]

    async def test_pages_follow_one_another_until_an_empty_one(self, store: Store) -> None:
        names = [f"s/{number:02d}" for number in range(23)]
        for name in reversed(names):
            await create(store, name)
            await append(store, name)
        found: list[str] = []
        while page := await store.list_streams("s/", found[-1] if found else "", 4, T0):
            assert len(page) <= 4
            found += [info.path for info in page]
        assert found == names

    async def test_streams_are_described_as_they_are(self, store: Store) -> None:
        await create(store, "a", body=b"[1]")
        await append(store, "a")
        assert await store.list_streams("", "", 10, T0) == [await head(store, "a")]

    async def test_what_is_deleted_or_expired_is_not_listed(self, store: Store) -> None:
        for path in ("deleted", "forked", "living"):
            await create(store, path, body=b"[1]")
        await fork(store, "fork", "forked")
        await create(store, "over", expiry=Expiry(expires_at="soon", instant=T0 + 5))
        await store.delete("deleted", T0)
        await store.delete("forked", T0)
        assert await paths(store, now=T0 + 4) == ["fork", "living", "over"]
        assert await paths(store, now=T0 + 5) == ["fork", "living"]
        await create(store, "deleted")
        assert await paths(store, now=T0 + 5) == ["deleted", "fork", "living"]

    async def test_pages_full_of_expired_streams_do_not_end_the_list(self, store: Store) -> None:
        for number in range(9):
            await create(store, f"a/{number}", expiry=Expiry(expires_at="x", instant=T0 + 1))
        await create(store, "z")
        page = await store.list_streams("", "", 3, T0 + 1)
        assert [info.path for info in page] == ["z"]

    async def test_pages_full_of_deleted_streams_do_not_end_the_list(self, store: Store) -> None:
        names = [f"a/{number}" for number in range(9)]
        for name in (*names, "z"):
            await create(store, name)
        await self.settle(store)
        for name in names:
            await store.delete(name, T0)
        page = await store.list_streams("", "", 3, T0)
        assert [info.path for info in page] == ["z"]


@runs_behaviours
class Keeping:
    """`keep` and `documents`."""

    async def test_documents_are_found_by_prefix(self, store: Store) -> None:
        assert await store.put_documents({"a/1": b"one", "b/1": b"other", "a/2": b"two"}) is None
        assert await store.get_documents("a/") == {"a/1": b"one", "a/2": b"two"}
        assert await store.get_documents("b/1") == {"b/1": b"other"}
        assert await store.get_documents("c") == {}

    async def test_the_last_value_counts_and_none_drops(self, store: Store) -> None:
        await store.put_documents({"a": b"1", "b": b"1"})
        await store.put_documents({"a": b"2", "b": None, "never": None})
        assert await store.get_documents("") == {"a": b"2"}
        await store.put_documents({"b": b"3"})
        assert await store.get_documents("") == {"a": b"2", "b": b"3"}

    async def test_keys_are_given_in_order(self, store: Store) -> None:
        for key in ("c", "a", "b"):
            await store.put_documents({key: b""})
        assert list(await store.get_documents("")) == ["a", "b", "c"]

    async def test_many_at_once_take_effect_in_order(self, store: Store) -> None:
        await asyncio.gather(
            *(store.put_documents({"n": b"%d" % n, f"k/{n}": b""}) for n in range(50))
        )
        assert (await store.get_documents("n"))["n"] == b"49"
        assert len(await store.get_documents("k/")) == 50

    async def test_documents_and_streams_do_not_meet(self, store: Store) -> None:
        await create(store, "s")
        await store.put_documents({"s": b"document"})
        await append(store, "s")
        await store.delete("s", T0)
        assert await store.get_documents("s") == {"s": b"document"}
        assert await paths(store) == []
