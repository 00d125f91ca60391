"""The registry of subscriptions: creation, deletion, membership, and notice of changed streams."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from msgspec import Struct

from headwater.protocol.globs import GlobIndex, literal_prefix
from headwater.protocol.offsets import START
from headwater.protocol.refusals import Missing
from headwater.protocol.subscriptions import Config, Link, State, to_idle
from headwater.server.subscriptions.delivery import WakeDelivery
from headwater.server.subscriptions.refusals import ConfigConflict, SubscriptionNotFound
from headwater.server.subscriptions.subscription import (
    LINKS,
    MAIN,
    PAGE,
    StoredSubscription,
    Subscription,
    encode_link,
    load,
)
from headwater.storage.refusals import StoreUnwritable
from headwater.storage.store import Store, StreamInfo

log: Final = logging.getLogger("headwater.subscriptions")


class SubscriptionCreated(Struct, frozen=True):
    """The subscription exists with the requested configuration; `new` if it was just created."""

    sub: Subscription
    new: bool


class SubscriptionRegistry:
    """The subscriptions of one store."""

    def __init__(self, store: Store, clock: Callable[[], float], delivery: WakeDelivery) -> None:
        self._store = store
        self._clock = clock
        self._delivery = delivery
        self._by_id: dict[str, Subscription] = {}
        self._globs: GlobIndex[Subscription] = GlobIndex()
        self._explicit: dict[str, set[Subscription]] = {}
        self._unobserve: Callable[[], None] | None = None
        self._recovery: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load all subscriptions; changes since the last run are looked up in the background."""
        store = self._store
        self._by_id, orphans = load(
            await store.get_documents(MAIN), await store.get_documents(LINKS)
        )
        for sub in self._by_id.values():
            sub.ready = True
            self._index(sub)
        for keys in _batches(orphans):
            await store.put_documents(dict.fromkeys(keys))
        if self._by_id:
            self._observe()
            self._recovery = asyncio.get_running_loop().create_task(self._recover_all())

    async def stop(self) -> None:
        """Stop timers and deliveries, and wait for the jobs in flight."""
        if self._unobserve is not None:
            self._unobserve()
            self._unobserve = None
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.wait([self._recovery])
        for sub in self._by_id.values():
            sub.deleted = True
            sub.cancel_timer()
        await self._delivery.stop()
        for sub in self._by_id.values():
            await sub.queue.drain()

    def get(self, subscription_id: str) -> Subscription | SubscriptionNotFound:
        """Return the subscription with an id."""
        sub = self._by_id.get(subscription_id)
        if sub is None or not sub.ready or sub.deleted:
            return SubscriptionNotFound(subscription_id)
        self._recover_soon(sub)
        return sub

    def page(self, after: str, limit: int) -> list[Subscription]:
        """Return a page of subscriptions, ordered by id."""
        ids = sorted(key for key, sub in self._by_id.items() if key > after and sub.ready)
        return [self._by_id[key] for key in ids[:limit] if not self._by_id[key].deleted]

    # Creation and deletion

    async def put(
        self, subscription_id: str, config: Config, base_url: str
    ) -> SubscriptionCreated | ConfigConflict | StoreUnwritable:
        """Create a subscription, or confirm an existing one (PROTOCOL 6.2)."""
        while True:
            sub = self._by_id.get(subscription_id)
            if sub is None:
                stored = StoredSubscription(config, State(), self._clock(), base_url)
                created = self._by_id[subscription_id] = Subscription(subscription_id, stored)
                self._observe()
                created.recovered = True
                return await created.queue.run(partial(self._create, created))
            self._recover_soon(sub)
            result = await sub.queue.run(partial(self._confirm, sub, config, base_url))
            if result is not None:
                return result

    async def _create(self, sub: Subscription) -> SubscriptionCreated | StoreUnwritable:
        # Indexed first: streams that appear during the listing are recorded and checked after it.
        self._index(sub)
        try:
            refusal = await self._link_all(sub)
        except BaseException:
            await self._remove(sub)
            raise
        if refusal is not None:
            await self._remove(sub)
            return refusal
        sub.ready = True
        await self._check(sub)
        return SubscriptionCreated(sub, new=True)

    async def _link_all(self, sub: Subscription) -> StoreUnwritable | None:
        """Link all existing streams at their tails; the subscription itself is written last."""
        for path in sub.config.streams:
            info = await self._store.head(path, self._clock())
            sub.links[path] = _explicit_link(info, glob=False)
            self._explicit.setdefault(path, set()).add(sub)
        async for page in self._matching_streams(sub):
            for info in page:
                explicit = info.path in sub.links
                sub.links[info.path] = Link(info.tail, info.incarnation, explicit, glob=True)
        for paths in _batches(sub.links):
            links = {sub.link_key(path): encode_link(sub.links[path]) for path in paths}
            refusal = await self._store.put_documents(links)
            if refusal is not None:
                return refusal
            await asyncio.sleep(0)
        return await self._store.put_documents({MAIN + sub.id: sub.encode(sub.state)})

    async def _confirm(
        self, sub: Subscription, config: Config, base_url: str
    ) -> SubscriptionCreated | ConfigConflict | StoreUnwritable | None:
        if sub.deleted or not sub.ready:
            return None
        if sub.config.fingerprint() != config.fingerprint():
            return ConfigConflict(sub.id)
        change = await self._delivery.begin_change(sub)
        if change.state.phase == "dead":
            change.state = to_idle(change.state)
        sub.base_url = base_url
        refusal = await self._delivery.commit_change(change)
        return refusal or SubscriptionCreated(sub, new=False)

    async def delete(self, sub: Subscription) -> StoreUnwritable | SubscriptionNotFound | None:
        """Delete a subscription; its present worker is refused from now on."""
        return await sub.queue.run(lambda: self._delete(sub))

    async def _delete(self, sub: Subscription) -> StoreUnwritable | SubscriptionNotFound | None:
        if sub.deleted:
            return SubscriptionNotFound(sub.id)
        refusal = await self._store.put_documents({MAIN + sub.id: None})
        if refusal is not None:
            return refusal
        sub.cancel_timer()
        await self._remove(sub, self._store)
        return None

    async def _remove(self, sub: Subscription, store: Store | None = None) -> None:
        """Remove a subscription and its links, also their documents from a store, in slices.

        Its id is taken until the end. Documents that are left are removed by the next start.
        """
        sub.deleted = True
        self._globs.remove(sub)
        links = sub.links
        while links:
            paths = [links.popitem()[0] for _ in range(min(PAGE, len(links)))]
            if store is not None:
                await store.put_documents(dict.fromkeys(map(sub.link_key, paths)))
            for path in paths:
                self._drop_explicit(sub, path)
            await asyncio.sleep(0)  # the store may not have waited
        del self._by_id[sub.id]

    def _drop_explicit(self, sub: Subscription, path: str) -> None:
        holders = self._explicit.get(path)
        if holders is not None:
            holders.discard(sub)
            if not holders:
                del self._explicit[path]

    def _index(self, sub: Subscription) -> None:
        if sub.config.pattern is not None:
            self._globs.add(sub, sub.config.pattern)
        for path, link in sub.links.items():
            if link.explicit:
                self._explicit.setdefault(path, set()).add(sub)

    # Membership

    async def add_streams(
        self, sub: Subscription, paths: Iterable[str]
    ) -> StoreUnwritable | SubscriptionNotFound | None:
        """Link streams explicitly, at their tails (PROTOCOL 6.4)."""

        async def add() -> StoreUnwritable | SubscriptionNotFound | None:
            if sub.deleted:
                return SubscriptionNotFound(sub.id)
            change = await self._delivery.begin_change(sub)
            for path in paths:
                link = change.link(path)
                if link is None:
                    info = await self._store.head(path, self._clock())
                    link = _explicit_link(info, glob=sub.follows(path))
                change.set_link(path, link._replace(explicit=True))
                # Before the change is durable: an append in between must not be missed.
                self._explicit.setdefault(path, set()).add(sub)
            return await self._delivery.commit_change(change)

        return await sub.queue.run(add)

    async def remove_stream(
        self, sub: Subscription, path: str
    ) -> StoreUnwritable | SubscriptionNotFound | None:
        """Remove an explicit link; a link by the pattern remains."""

        async def remove() -> StoreUnwritable | SubscriptionNotFound | None:
            if sub.deleted:
                return SubscriptionNotFound(sub.id)
            change = await self._delivery.begin_change(sub)
            link = change.link(path)
            if link is not None and link.explicit:
                change.set_link(path, link._replace(explicit=False) if link.glob else None)
            refusal = await self._delivery.commit_change(change)
            if refusal is None:
                self._drop_explicit(sub, path)
            return refusal

        return await sub.queue.run(remove)

    # Changed streams

    def _observe(self) -> None:
        if self._unobserve is None:
            self._unobserve = self._store.observe(self._stream_changed)

    def _stream_changed(self, path: str) -> None:
        """Record a changed stream for the subscriptions that follow it; runs at every append."""
        matched = self._globs.match(path)
        explicit = self._explicit.get(path)
        if matched:
            for sub in matched:
                self._mark_changed(sub, path)
        if explicit:
            for sub in explicit:
                self._mark_changed(sub, path)

    def _mark_changed(self, sub: Subscription, path: str) -> None:
        sub.changed_paths.add(path)
        # During a wake nothing is done now: the stream is checked when the wake ends.
        if sub.state.phase == "idle" and not sub.check_queued and sub.ready and not sub.deleted:
            sub.check_queued = True
            sub.queue.submit(lambda: self._check(sub))

    async def _check(self, sub: Subscription) -> None:
        """Link new streams, and wake a worker if messages are pending."""
        sub.check_queued = False
        if sub.deleted:
            return
        change = await self._delivery.begin_change(sub)
        refusal = await self._delivery.commit_change(change)
        if refusal is not None:
            log.error("could not store a wake", extra={"id": sub.id, "reason": refusal.reason})
            self._delivery.schedule(sub, 1.0)

    async def _recover_all(self) -> None:
        for sub in list(self._by_id.values()):
            await sub.queue.run(partial(self._recover, sub))
            await asyncio.sleep(0)

    def _recover_soon(self, sub: Subscription) -> None:
        """Recover a subscription before the background task does, because it was requested."""
        if not sub.recovered:
            sub.queue.submit(lambda: self._recover(sub))

    async def _recover(self, sub: Subscription) -> None:
        """Find the streams that changed before the restart, then continue the delivery."""
        if sub.deleted or sub.recovered:
            return
        sub.recovered = True
        unseen = dict.fromkeys(sub.links)
        async for page in self._matching_streams(sub):
            for info in page:
                unseen.pop(info.path, None)
                link = sub.links.get(info.path)
                same = link is not None and link.incarnation == info.incarnation
                if link is None or not same or link.has_pending(info.tail):
                    sub.changed_paths.add(info.path)
        # The rest: explicit links that the pattern does not match, and deleted streams.
        sub.changed_paths.update(unseen)
        await self._check(sub)

    async def _matching_streams(self, sub: Subscription) -> AsyncIterator[list[StreamInfo]]:
        """List the streams that match the pattern, yielding to the loop between pages."""
        pattern = sub.config.pattern
        if pattern is None:
            return
        prefix, after = literal_prefix(pattern), ""
        while page := await self._store.list_streams(prefix, after, PAGE // 4, self._clock()):
            yield [info for info in page if sub.follows(info.path)]
            after = page[-1].path
            await asyncio.sleep(0)


def _explicit_link(info: StreamInfo | Missing, *, glob: bool) -> Link:
    """Link a stream at its tail, or at its beginning if it is created later."""
    if isinstance(info, StreamInfo):
        return Link(info.tail, info.incarnation, explicit=True, glob=glob)
    return Link(START, 0, explicit=True, glob=False)


def _batches(items: Iterable[str]) -> Iterator[list[str]]:
    """Split into batches that are written in one record."""
    rest = iter(list(items))
    while page := list(islice(rest, PAGE)):
        yield page
