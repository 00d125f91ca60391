"""Leases of workers: claim a wake, ack and extend it, release it (PROTOCOL 7)."""

from typing import Final

import msgspec

from headwater.protocol import subscriptions as rules
from headwater.protocol.offsets import MalformedOffset, Offset, parse_offset
from headwater.protocol.subscriptions import AlreadyClaimed, NothingPending, WakeFenced
from headwater.server.subscriptions.delivery import WakeDelivery, WakeSnapshot, advance
from headwater.server.subscriptions.refusals import BadAck, SubscriptionNotFound
from headwater.server.subscriptions.subscription import Subscription, SubscriptionChange
from headwater.storage.refusals import StoreUnwritable
from headwater.storage.store import Store, StreamInfo

MAX_WORKER: Final = 255


class Ack(msgspec.Struct, frozen=True):
    """The offset up to which a stream was processed."""

    stream: str
    offset: str


class AckRequest(msgspec.Struct, frozen=True):
    """The body of an ack, a callback or a release."""

    wake_id: str
    generation: int
    acks: list[Ack] = []
    done: bool = False


class Claimed(msgspec.Struct, frozen=True):
    """The worker holds the lease."""

    wake_id: str
    generation: int
    token: str
    snapshot: WakeSnapshot


class Acked(msgspec.Struct, frozen=True):
    """The acks are durable; `next_wake` if more messages are already pending."""

    next_wake: bool
    token: str | None
    """A new token, unless the worker is done."""


LeaseRefusal = (
    SubscriptionNotFound | StoreUnwritable | WakeFenced | BadAck | AlreadyClaimed | NothingPending
)


class Leases:
    """Grants, extends and ends the leases of all subscriptions."""

    def __init__(self, store: Store, delivery: WakeDelivery) -> None:
        self._store = store
        self._delivery = delivery

    async def claim(self, sub: Subscription, worker: str) -> Claimed | LeaseRefusal:
        """Grant the lease to a worker, unless another worker holds it."""
        return await sub.queue.run(lambda: self._claim(sub, worker))

    async def _claim(self, sub: Subscription, worker: str) -> Claimed | LeaseRefusal:
        if sub.deleted:
            return SubscriptionNotFound(sub.id)
        delivery = self._delivery
        now = delivery.clock()
        if sub.state.phase == "leased" and not rules.lease_is_over(sub.state, now):
            return AlreadyClaimed(sub.state.holder, sub.state.generation)
        change = await delivery.begin_change(sub)
        pending = next(change.pending(), None) is not None
        state = rules.claim(
            sub.config, change.state, worker, delivery.new_wake_id(), now, pending=pending
        )
        if not isinstance(state, rules.State):
            if isinstance(state, NothingPending) and change.state.phase in {"due", "waking"}:
                # Nothing is pending any more. The wake must end, or the next append causes none.
                change.state = rules.to_idle(change.state)
            return await delivery.commit_change(change) or state
        change.state = state
        refusal = await delivery.commit_change(change)
        if refusal is not None:
            return refusal
        token = delivery.token(sub, state)
        return Claimed(
            state.wake_id, state.generation, token, delivery.snapshot(SubscriptionChange(sub))
        )

    async def ack(
        self, sub: Subscription, token_generation: int, request: AckRequest
    ) -> Acked | LeaseRefusal:
        """Apply acks, and extend or end the lease."""
        return await sub.queue.run(lambda: self._ack(sub, token_generation, request))

    async def _ack(
        self, sub: Subscription, token_generation: int, request: AckRequest
    ) -> Acked | LeaseRefusal:
        delivery = self._delivery
        now = delivery.clock()
        fenced = self._fence(sub, token_generation, request, now)
        if fenced is not None:
            return fenced
        # The same time as above: a lease that ended in between would be extended without its wake.
        change = await delivery.begin_change(sub, now)
        for ack in request.acks:
            bad = await self._apply_ack(change, ack)
            if bad is not None:
                sub.changed_paths |= change.checked_paths
                return bad
        if request.done:
            change.state = rules.to_idle(change.state)
        else:
            change.state = rules.extend(sub.config, change.state, delivery.clock())
        next_wake = request.done and next(change.pending(), None) is not None
        refusal = await delivery.commit_change(change)
        if refusal is not None:
            return refusal
        return Acked(next_wake, None if request.done else delivery.token(sub, change.state))

    async def release(
        self, sub: Subscription, token_generation: int, request: AckRequest
    ) -> LeaseRefusal | None:
        """End the lease without acking."""

        async def release() -> LeaseRefusal | None:
            fenced = self._fence(sub, token_generation, request, self._delivery.clock())
            if fenced is not None:
                return fenced
            change = await self._delivery.begin_change(sub)
            change.state = rules.to_idle(change.state)
            return await self._delivery.commit_change(change)

        return await sub.queue.run(release)

    def _fence(
        self, sub: Subscription, token_generation: int, request: AckRequest, now: float
    ) -> SubscriptionNotFound | WakeFenced | None:
        if sub.deleted:
            return SubscriptionNotFound(sub.id)
        return rules.fence(sub.state, token_generation, request.generation, request.wake_id, now)

    async def _apply_ack(self, change: SubscriptionChange, ack: Ack) -> BadAck | None:
        offset = parse_offset(ack.offset)
        if isinstance(offset, MalformedOffset):
            return BadAck(ack.stream, f"'{offset.text[:100]}' is not an offset")
        path = ack.stream.strip("/")
        info = await self._store.head(path, self._delivery.clock())
        link = change.link(path)
        # A stream that was deleted, or replaced by another one at its path, needs no ack.
        if link is not None and isinstance(info, StreamInfo) and _belongs_to(offset, info):
            if offset > info.tail:
                return BadAck(ack.stream, f"{offset} is past its end, {info.tail}")
            advance(change, path, offset)
        return None


def _belongs_to(offset: Offset, info: StreamInfo) -> bool:
    """Return whether an offset belongs to the present stream or to what it inherited."""
    return offset.epoch == info.incarnation or info.config.origin is not None
