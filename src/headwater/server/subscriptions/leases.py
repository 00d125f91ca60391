"""What workers do with a wake: claim it, ack, stay alive, let go (PROTOCOL 7)."""

from typing import Final

import msgspec

from headwater.protocol import subscriptions as rules
from headwater.protocol.offsets import MalformedOffset, Offset, parse_offset
from headwater.protocol.subscriptions import AlreadyClaimed, Fenced, NothingPending
from headwater.server.subscriptions.delivery import Snapshot, Waking, advance
from headwater.server.subscriptions.registry import NoSubscription
from headwater.server.subscriptions.subscription import Draft, Subscription
from headwater.storage.refusals import StoreUnwritable
from headwater.storage.store import Store, StreamInfo

MAX_WORKER: Final = 255


class Ack(msgspec.Struct, frozen=True):
    """How far a stream was processed."""

    stream: str
    offset: str


class WorkRequest(msgspec.Struct, frozen=True):
    """What a worker sends back for a wake."""

    wake_id: str
    generation: int
    acks: list[Ack] = []
    done: bool = False


class BadAck(msgspec.Struct, frozen=True):
    """An ack names no position of its stream."""

    stream: str
    reason: str


class Claimed(msgspec.Struct, frozen=True):
    """The worker has the lease."""

    wake_id: str
    generation: int
    token: str
    snapshot: Snapshot


class Acked(msgspec.Struct, frozen=True):
    """The acks hold; whether there is another wake already."""

    next_wake: bool
    token: str | None
    """A fresh one, where the worker goes on."""


Refusal = NoSubscription | StoreUnwritable | Fenced | BadAck | AlreadyClaimed | NothingPending


class Working:
    """Serves the workers of all subscriptions."""

    def __init__(self, store: Store, waking: Waking) -> None:
        self._store = store
        self._waking = waking

    async def claim(self, sub: Subscription, worker: str) -> Claimed | Refusal:
        """Give a worker the lease, if nobody has it."""
        return await sub.turns.run(lambda: self._claim(sub, worker))

    async def _claim(self, sub: Subscription, worker: str) -> Claimed | Refusal:
        if sub.deleted:
            return NoSubscription(sub.id)
        waking = self._waking
        now = waking.clock()
        if sub.state.phase == "leased" and not rules.lease_is_over(sub.state, now):
            return AlreadyClaimed(sub.state.holder, sub.state.generation)
        draft = await waking.settled(sub)
        pending = next(draft.pending(), None) is not None
        state = rules.claim(
            sub.config, draft.state, worker, waking.new_wake_id(), now, pending=pending
        )
        if not isinstance(state, rules.State):
            if isinstance(state, NothingPending) and draft.state.phase in {"due", "waking"}:
                # What it was for is gone. Left as it is, nobody would be told of the next append.
                draft.state = rules.to_idle(draft.state)
            return await waking.go_on(draft) or state
        draft.state = state
        refusal = await waking.go_on(draft)
        if refusal is not None:
            return refusal
        token = waking.token(sub, state)
        return Claimed(state.wake_id, state.generation, token, waking.snapshot(Draft(sub)))

    async def ack(
        self, sub: Subscription, token_generation: int, request: WorkRequest
    ) -> Acked | Refusal:
        """Take acks, and extend the lease or end it."""
        return await sub.turns.run(lambda: self._ack(sub, token_generation, request))

    async def _ack(
        self, sub: Subscription, token_generation: int, request: WorkRequest
    ) -> Acked | Refusal:
        waking = self._waking
        now = waking.clock()
        fenced = self._fence(sub, token_generation, request, now)
        if fenced is not None:
            return fenced
        # At the same time: a lease that ended in between would be extended without its wake.
        draft = await waking.settled(sub, now)
        for ack in request.acks:
            bad = await self._take(draft, ack)
            if bad is not None:
                sub.moved |= draft.settled
                return bad
        if request.done:
            draft.state = rules.to_idle(draft.state)
        else:
            draft.state = rules.extend(sub.config, draft.state, waking.clock())
        next_wake = request.done and next(draft.pending(), None) is not None
        refusal = await waking.go_on(draft)
        if refusal is not None:
            return refusal
        return Acked(next_wake, None if request.done else waking.token(sub, draft.state))

    async def release(
        self, sub: Subscription, token_generation: int, request: WorkRequest
    ) -> Refusal | None:
        """Let go of the lease without acking."""

        async def release() -> Refusal | None:
            fenced = self._fence(sub, token_generation, request, self._waking.clock())
            if fenced is not None:
                return fenced
            draft = await self._waking.settled(sub)
            draft.state = rules.to_idle(draft.state)
            return await self._waking.go_on(draft)

        return await sub.turns.run(release)

    def _fence(
        self, sub: Subscription, token_generation: int, request: WorkRequest, now: float
    ) -> NoSubscription | Fenced | None:
        if sub.deleted:
            return NoSubscription(sub.id)
        return rules.fence(sub.state, token_generation, request.generation, request.wake_id, now)

    async def _take(self, draft: Draft, ack: Ack) -> BadAck | None:
        offset = parse_offset(ack.offset)
        if isinstance(offset, MalformedOffset):
            return BadAck(ack.stream, f"'{offset.text[:100]}' is not an offset")
        path = ack.stream.strip("/")
        info = await self._store.head(path, self._waking.clock())
        link = draft.link(path)
        # A stream that is gone, or followed by another one at its path, needs no ack any more.
        if link is not None and isinstance(info, StreamInfo) and _is_of(offset, info):
            if offset > info.tail:
                return BadAck(ack.stream, f"{offset} lies behind its end, {info.tail}")
            advance(draft, path, offset)
        return None


def _is_of(offset: Offset, info: StreamInfo) -> bool:
    """Tell whether an offset belongs to the present stream, or to what it inherited."""
    return offset.epoch == info.incarnation or info.config.origin is not None
