"""What any store promises to those who watch a stream."""

import asyncio
from collections.abc import Callable

import pytest

from headwater.protocol.expiry import Expiry
from headwater.protocol.lifecycle import Append
from headwater.storage.store import Store
from tests.suites.behaviours import runs_behaviours
from tests.suites.steps import (
    JSON,
    T0,
    append,
    close,
    create,
    expect,
    fork,
    head,
    messages,
    notified,
)


class Bell:
    """Counts how often it was rung."""

    def __init__(self, store: Store, path: str = "s") -> None:
        self.rung = 0
        self.unwatch: Callable[[], None] = store.watch(path, self.ring)

    def ring(self) -> None:
        self.rung += 1

    async def heard(self) -> bool:
        """Return whether it was rung since the last call of this."""
        await notified()
        heard, self.rung = self.rung > 0, 0
        return heard


@runs_behaviours
class Watching:
    """`watch`."""

    async def test_all_writers_are_acknowledged_before_watchers_are_notified_once(
        self, store: Store
    ) -> None:
        await create(store)
        await notified()
        events: list[str] = []
        store.watch("s", lambda: events.append("watcher"))
        store.observe(lambda path: events.append(f"observer of {path}"))

        async def write() -> None:
            await append(store)
            events.append("acknowledged")

        await asyncio.gather(write(), write(), write())
        await notified()
        assert events == [*3 * ["acknowledged"], "observer of s", "watcher"]

    async def test_a_watcher_that_fails_keeps_no_other_from_being_called(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        await create(store)
        await notified()
        seen: list[str] = []

        def fail(*_: object) -> None:
            raise RuntimeError("injected")

        store.watch("s", fail)
        store.observe(fail)
        store.watch("s", lambda: seen.append("watcher"))
        store.observe(seen.append)
        await append(store)
        await notified()
        assert seen == ["s", "watcher"]
        assert caplog.text.count("notifying readers failed") == 2

    async def test_every_change_wakes(self, store: Store) -> None:
        await create(store)
        await notified()
        bell = Bell(store)
        await append(store)
        assert await bell.heard()
        await append(store)
        assert await bell.heard()
        await close(store)
        assert await bell.heard()
        await store.delete("s", T0)
        assert await bell.heard()

    async def test_a_creation_wakes_who_waited_for_the_path(self, store: Store) -> None:
        bell = Bell(store)
        await create(store)
        assert await bell.heard()

    async def test_an_expiry_wakes(self, store: Store) -> None:
        await create(store, expiry=Expiry(expires_at="soon", instant=T0 + 10))
        await notified()
        bell = Bell(store)
        await store.expire(T0 + 10, 10)
        assert await bell.heard()

    async def test_a_deletion_that_only_hides_wakes(self, store: Store) -> None:
        await create(store, body=b"1")
        await fork(store, "f", "s")
        await notified()
        bell = Bell(store)
        await store.delete("s", T0)
        assert await bell.heard()

    async def test_who_is_woken_sees_the_change(self, store: Store) -> None:
        await create(store)
        await notified()
        seen = []
        unwatch = store.watch("s", lambda: seen.append(True))
        await append(store)
        await notified()
        assert seen
        assert await messages(store) == [1]
        unwatch()

    async def test_no_watcher_is_called_after_the_watch_has_ended(self, store: Store) -> None:
        await create(store)
        await notified()
        bell = Bell(store)
        bell.unwatch()
        bell.unwatch()
        await append(store)
        await store.delete("s", T0)
        assert not await bell.heard()

    async def test_all_watchers_of_a_stream_are_woken_and_end_one_by_one(
        self, store: Store
    ) -> None:
        await create(store)
        await notified()
        bells = [Bell(store) for _ in range(3)]
        bells[1].unwatch()
        await append(store)
        assert [await bell.heard() for bell in bells] == [True, False, True]

    async def test_one_call_that_watches_twice_is_two_watches(self, store: Store) -> None:
        await create(store)
        await notified()
        rung: list[int] = []

        def ring() -> None:
            rung.append(1)

        first = store.watch("s", ring)
        second = store.watch("s", ring)
        first()
        await append(store)
        await notified()
        assert rung
        second()
        rung.clear()
        await append(store)
        await notified()
        assert not rung

    async def test_a_watch_may_end_itself_when_it_wakes(self, store: Store) -> None:
        await create(store)
        await notified()
        others = [Bell(store), Bell(store)]
        ended: list[Callable[[], None]] = []

        def once() -> None:
            ended.pop()()

        ended.append(store.watch("s", once))
        others.append(Bell(store))
        await append(store)
        await notified()
        await append(store)
        await notified()
        assert [bell.rung for bell in others] == [2, 2, 2]

    async def test_other_streams_and_sources_do_not_wake(self, store: Store) -> None:
        await create(store)
        await create(store, "other")
        await fork(store, "f", "s")
        await notified()
        bell, of_fork = Bell(store), Bell(store, "f")
        await append(store, "other")
        assert not await bell.heard()
        await append(store)
        assert await bell.heard()
        assert not await of_fork.heard()
        await append(store, "f")
        assert await of_fork.heard()
        assert not await bell.heard()

    async def test_a_refused_append_shows_nothing_to_who_wakes(self, store: Store) -> None:
        before = await create(store)
        bell = Bell(store)
        refusal = await store.append("s", Append("text/plain", b"x"), T0)
        expect(object, refusal)
        assert await head(store) == before
        await append(store, content_type=JSON)
        assert await bell.heard()
