"""One subscription in memory, how it is written down, and a change of it that is not durable yet.

A subscription is one small document with its configuration and state, and one for each link: an ack
that moves one stream of a hundred thousand writes one line. A change writes all that it touches as
one record, and is seen once that is durable.
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
"""Links that are written, or dropped, at once."""


class StoredSubscription(msgspec.Struct, frozen=True):
    """A subscription as it is stored, without its links."""

    config: Config
    state: State
    created_at: float
    base_url: str
    """Where clients reach the streams: callback URLs begin with it."""


_decode_subscription: Final = msgspec.json.Decoder(StoredSubscription).decode
_decode_link: Final = msgspec.json.Decoder(tuple[int, int, int, bool, bool]).decode


def encode_link(link: Link) -> bytes:
    """Write a link."""
    return msgspec.json.encode((*link.acked, link.incarnation, link.explicit, link.glob))


def decode_link(raw: bytes) -> Link:
    """Read a link."""
    epoch, byte, incarnation, explicit, glob = _decode_link(raw)
    return Link(Offset(epoch, byte), incarnation, explicit, glob)


class Subscription:
    """A subscription as it is; only its own turns change it."""

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
        """Where streams end that have something pending."""
        self.changed_paths: set[str] = set()
        """Streams that have changed since they were last looked at."""
        self.check_queued = False
        """A turn that looks at them is on its way."""
        self.ready = False
        """It exists: everything that makes it up is durable."""
        self.recovered = False
        """What has moved before a restart was looked for."""
        self.deleted = False
        self.wake_in_flight = ""
        """The wake that is being delivered right now."""
        self.timer: asyncio.TimerHandle | None = None
        self.queue = SerialQueue()

    def follows(self, path: str) -> bool:
        """Tell whether the pattern takes a stream in; wake events must not wake again."""
        pattern = self.config.pattern
        return pattern is not None and path != self.config.wake_stream and matches(pattern, path)

    def encode(self, state: State) -> bytes:
        """Write it down."""
        return msgspec.json.encode(
            StoredSubscription(self.config, state, self.created_at, self.base_url)
        )

    def link_key(self, path: str) -> str:
        """Name the document of a link; an id holds no slash."""
        return f"{LINKS}{self.id}/{path}"

    def cancel_timer(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class SubscriptionChange:
    """A change of one subscription: made up in one turn, then durable and seen, or neither."""

    __slots__ = ("_links", "checked_paths", "state", "sub")

    def __init__(self, sub: Subscription) -> None:
        self.sub = sub
        self.state = sub.state
        self._links: dict[str, Link | None] = {}
        self.checked_paths: set[str] = set()
        """What was looked at for it, and has to be looked at again if it fails."""

    @property
    def changes_links(self) -> bool:
        return bool(self._links)

    def link(self, path: str) -> Link | None:
        """Give a link as it would be."""
        return self._links[path] if path in self._links else self.sub.links.get(path)

    def set_link(self, path: str, link: Link | None) -> None:
        """Change a link, or drop it."""
        if self.sub.links.get(path) != link:
            self._links[path] = link
        else:
            self._links.pop(path, None)

    def pending(self) -> Iterator[str]:
        """Give the streams that something is pending for."""
        for path, tail in self.sub.tails.items():
            link = self.link(path)
            if link is not None and link.has_pending(tail):
                yield path

    async def commit(self, store: Store) -> StoreUnwritable | None:
        """Make it durable, then let it be seen."""
        sub = self.sub
        documents: dict[str, bytes | None] = {
            sub.link_key(path): None if link is None else encode_link(link)
            for path, link in self._links.items()
        }
        if self.state != sub.state:
            documents[MAIN + sub.id] = sub.encode(self.state)
        if documents:
            refusal = await store.keep(documents)
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
    """Bring subscriptions back; gives as well the keys of links that belong to none.

    A subscription is written after its links and dropped before them, so a crash may leave some.
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
