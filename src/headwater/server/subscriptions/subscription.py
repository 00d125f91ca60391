"""A subscription in memory, its encoding, and changes that become visible once they are durable.

A subscription is stored as one small document with its configuration and state, and one document
for each link, so that an ack for one stream of a hundred thousand writes one link. A change writes
all its documents in one record, and becomes visible when the record is durable.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from headwater.protocol.globs import matches
from headwater.protocol.offsets import Offset
from headwater.protocol.subscriptions import Config, Link, State
from headwater.server.subscriptions.serial_queue import SerialQueue
from headwater.storage.refusals import StoreUnwritable
from headwater.storage.store import Store

MAIN: Final = "subscription/"
LINKS: Final = "link/"
PAGE: Final = 1000
"""Links that are written or deleted in one record."""


class StoredSubscription(msgspec.Struct, frozen=True):
    """The stored document of a subscription, without its links."""

    config: Config
    state: State
    created_at: float
    base_url: str
    """The URL under which clients reach the streams; callback URLs begin with it."""


_decode_subscription: Final = msgspec.json.Decoder(StoredSubscription).decode
_decode_link: Final = msgspec.json.Decoder(tuple[int, int, int, bool, bool]).decode


def encode_link(link: Link) -> bytes:
    """Encode a link."""
    return msgspec.json.encode((*link.acked, link.incarnation, link.explicit, link.glob))


def decode_link(raw: bytes) -> Link:
    """Decode a link."""
    epoch, byte, incarnation, explicit, glob = _decode_link(raw)
    return Link(Offset(epoch, byte), incarnation, explicit, glob)


class Subscription:
    """A subscription; only jobs in its own queue change it."""

    __slots__ = (
        "base_url",
        "changed_paths",
        "check_queued",
        "config",
        "created_at",
        "deleted",
        "id",
        "links",
        "queue",
        "ready",
        "recovered",
        "state",
        "tails",
        "timer",
        "wake_in_flight",
    )

    def __init__(self, subscription_id: str, stored: StoredSubscription) -> None:
        self.id = subscription_id
        self.config = stored.config
        self.state = stored.state
        self.created_at = stored.created_at
        self.base_url = stored.base_url
        self.links: dict[str, Link] = {}
        self.tails: dict[str, Offset] = {}
        """The tails of the streams with pending messages."""
        self.changed_paths: set[str] = set()
        """Streams that have changed since they were last checked."""
        self.check_queued = False
        """A job that checks `changed_paths` is in the queue."""
        self.ready = False
        """The subscription and its first links are durable."""
        self.recovered = False
        """The streams were compared with the links since the server started."""
        self.deleted = False
        self.wake_in_flight = ""
        """The id of the wake whose webhook call is in flight, or empty."""
        self.timer: asyncio.TimerHandle | None = None
        self.queue = SerialQueue()

    def follows(self, path: str) -> bool:
        """Return whether the pattern matches a stream; a wake event must not cause another wake."""
        pattern = self.config.pattern
        return pattern is not None and path != self.config.wake_stream and matches(pattern, path)

    def encode(self, state: State) -> bytes:
        """Encode the subscription with a state."""
        return msgspec.json.encode(
            StoredSubscription(self.config, state, self.created_at, self.base_url)
        )

    def link_key(self, path: str) -> str:
        """Return the key of a link's document; an id contains no slash."""
        return f"{LINKS}{self.id}/{path}"

    def cancel_timer(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class SubscriptionChange:
    """A change of one subscription, prepared in one job, then applied as a whole or not at all."""

    __slots__ = ("_links", "checked_paths", "state", "sub")

    def __init__(self, sub: Subscription) -> None:
        self.sub = sub
        self.state = sub.state
        self._links: dict[str, Link | None] = {}
        self.checked_paths: set[str] = set()
        """Streams that were checked for this change; they must be checked again if it fails."""

    def link(self, path: str) -> Link | None:
        """Return a link as it will be after the change."""
        return self._links[path] if path in self._links else self.sub.links.get(path)

    def set_link(self, path: str, link: Link | None) -> None:
        """Change a link, or remove it with None."""
        if self.sub.links.get(path) != link:
            self._links[path] = link
        else:
            self._links.pop(path, None)

    def pending(self) -> Iterator[str]:
        """Yield the streams with pending messages."""
        for path, tail in self.sub.tails.items():
            link = self.link(path)
            if link is not None and link.has_pending(tail):
                yield path

    async def commit(self, store: Store) -> StoreUnwritable | None:
        """Store the change, then make it visible."""
        sub = self.sub
        documents: dict[str, bytes | None] = {
            sub.link_key(path): None if link is None else encode_link(link)
            for path, link in self._links.items()
        }
        if self.state != sub.state:
            documents[MAIN + sub.id] = sub.encode(self.state)
        if documents:
            refusal = await store.put_documents(documents)
            if refusal is not None:
                sub.changed_paths |= self.checked_paths
                return refusal
        for path, link in self._links.items():
            if link is None:
                sub.links.pop(path, None)
            else:
                sub.links[path] = link
        sub.state = self.state
        for path in self._links.keys() | self.checked_paths:
            link = sub.links.get(path)
            if path in sub.tails and not (link and link.has_pending(sub.tails[path])):
                del sub.tails[path]
        return None


def load(
    main: dict[str, bytes], links: dict[str, bytes]
) -> tuple[dict[str, Subscription], list[str]]:
    """Decode all subscriptions; also return the keys of links without a subscription.

    A subscription is written after its links and deleted before them, so a crash may leave links.
    """
    found = {
        key.removeprefix(MAIN): Subscription(key.removeprefix(MAIN), _decode_subscription(raw))
        for key, raw in main.items()
    }
    orphans = []
    for key, raw in links.items():
        owner, _, path = key.removeprefix(LINKS).partition("/")
        if owner in found:
            found[owner].links[path] = decode_link(raw)
        else:
            orphans.append(key)
    return found, orphans
