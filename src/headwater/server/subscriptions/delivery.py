"""Delivery of wakes: from a changed stream to a worker, with retries and the end of leases.

All methods that change a subscription run in its queue. Webhook calls run in tasks of their own,
and queue a job with their outcome.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from headwater.protocol import subscriptions as rules
from headwater.protocol.lifecycle import Append
from headwater.protocol.offsets import START, Offset
from headwater.protocol.subscriptions import Link, beginning
from headwater.server.problems import problem_of
from headwater.server.subscriptions.addresses import WebhookRules, check_url
from headwater.server.subscriptions.keys import SigningKeys
from headwater.server.subscriptions.refusals import WebhookRejected
from headwater.server.subscriptions.subscription import Subscription, SubscriptionChange
from headwater.server.subscriptions.tokens import Claims, mint
from headwater.server.subscriptions.webhooks import CallFailed, WebhookClient, WebhookResponse
from headwater.storage.refusals import StoreUnwritable
from headwater.storage.store import Appended, Store, StreamInfo

log: Final = logging.getLogger("headwater.subscriptions")

MAX_LISTED: Final = 1000
"""Streams listed in one wake; the next wake lists the others."""
_CHECKED_AT_ONCE: Final = 256
"""Streams that are checked in one turn of the loop, if the store need not wait for them."""
_TOKEN_SECONDS: Final = 24 * 3600
_MAX_ERROR: Final = 300


class StreamStatus(msgspec.Struct, frozen=True):
    """A stream in the body of a wake."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


class WakeSnapshot(NamedTuple):
    """The streams listed in a wake, and the tails of those with pending messages at that time."""

    streams: list[StreamStatus]
    tails: dict[str, Offset]


class _WebhookReply(msgspec.Struct):
    """The response body of a webhook."""

    done: bool = False


class WakeDelivery:
    """Wakes the workers of all subscriptions."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        jitter: Callable[[], float],
        keys: SigningKeys,
        webhooks: WebhookClient,
        url_rules: WebhookRules,
        *,
        attempts: int,
        concurrency: int,
    ) -> None:
        self._store = store
        self.clock = clock
        self._jitter = jitter
        self.keys = keys
        self._webhooks = webhooks
        self._url_rules = url_rules
        self._attempts = attempts
        self._slots = asyncio.Semaphore(concurrency)
        self._calls: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def stop(self) -> None:
        """Cancel the calls in flight; they are repeated after the next start."""
        self._stopped = True
        for task in tuple(self._calls):
            task.cancel()
        if self._calls:
            await asyncio.wait(tuple(self._calls))

    # A change, from beginning to end

    async def begin_change(self, sub: Subscription, now: float | None = None) -> SubscriptionChange:
        """Begin a change that includes everything that has happened to the streams.

        A caller that has already checked the lease passes the time of that check.
        """
        change = SubscriptionChange(sub)
        now = self.clock() if now is None else now
        change.checked_paths, sub.changed_paths = sub.changed_paths, set()
        for count, path in enumerate(change.checked_paths, 1):
            if count % _CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            link = change.link(path)
            glob = sub.follows(path)
            if link is None and not glob:
                continue
            info = await self._store.head(path, now)
            if isinstance(info, StreamInfo):
                if link is None or link.incarnation != info.incarnation:
                    explicit = link is not None and link.explicit
                    acked = beginning(info.config.origin)
                    change.set_link(path, Link(acked, info.incarnation, explicit, glob))
                sub.tails[path] = info.tail
            elif link is not None:
                # A stream created later at this path is linked at its beginning.
                change.set_link(
                    path, Link(START, 0, explicit=True, glob=False) if link.explicit else None
                )
                sub.tails.pop(path, None)
        if rules.lease_is_over(change.state, now):
            change.state = rules.to_idle(change.state)
        return change

    async def commit_change(self, change: SubscriptionChange) -> StoreUnwritable | None:
        """Commit a change; a worker is woken if messages are pending and no wake is in flight."""
        sub = change.sub
        if change.state.phase == "idle" and next(change.pending(), None) is not None:
            change.state = rules.wake(change.state, self.new_wake_id(), self.clock())
        refusal = await change.commit(self._store)
        if refusal is None:
            await self._write_wake_event(sub)
        self._set_timer(sub)
        return refusal

    @staticmethod
    def new_wake_id() -> str:
        return "w_" + secrets.token_urlsafe(15)

    def token(self, sub: Subscription, state: rules.State) -> str:
        """Return the token of a wake."""
        exp = int(self.clock() + sub.config.lease_seconds + _TOKEN_SECONDS)
        return mint(self.keys.secret, Claims(sub.id, state.wake_id, state.generation, exp))

    # Timers

    def schedule(self, sub: Subscription, seconds: float) -> None:
        """Check a subscription again after a delay."""
        sub.cancel_timer()
        if not sub.deleted and not self._stopped:
            loop = asyncio.get_running_loop()
            sub.timer = loop.call_later(seconds, self._timer_fired, sub)

    def _set_timer(self, sub: Subscription) -> None:
        due = rules.deadline(sub.state)
        # The outcome of a call in flight sets the timer again.
        calling = sub.wake_in_flight != "" and sub.wake_in_flight == sub.state.wake_id
        if sub.deleted or due is None or calling:
            sub.cancel_timer()
        else:
            self.schedule(sub, max(0.0, due - self.clock()))

    def _timer_fired(self, sub: Subscription) -> None:
        sub.timer = None
        sub.queue.submit(lambda: self._run_due(sub))

    async def _run_due(self, sub: Subscription) -> None:
        if sub.deleted:
            return
        state = sub.state
        if state.phase == "due" and sub.config.type == "webhook":
            if state.next_attempt_at <= self.clock() and sub.wake_in_flight != state.wake_id:
                self._start_call(sub)
            else:
                self._set_timer(sub)
            return
        refusal = await self.commit_change(await self.begin_change(sub))
        if refusal is not None:
            self.schedule(sub, 1.0)

    # Pull-wake: events in the wake stream

    async def _write_wake_event(self, sub: Subscription) -> None:
        """Append the wake event that is due.

        Its delivery is not stored: after a restart the event is appended again, which makes workers
        send one more claim.
        """
        state, wake_stream = sub.state, sub.config.wake_stream
        now = self.clock()
        if wake_stream is None or state.phase != "due" or state.next_attempt_at > now:
            return
        event = {
            "type": "wake",
            "subscription_id": sub.id,
            "stream": next(SubscriptionChange(sub).pending(), ""),
            "generation": state.generation,
            "ts": int(now * 1000),
        }
        request = Append("application/json", msgspec.json.encode(event))
        outcome = await self._store.append(wake_stream, request, now)
        if isinstance(outcome, Appended):
            sub.state = rules.delivered(sub.config, state, state.wake_id, now) or state
        else:
            await self._record_failure(sub, state.wake_id, problem_of(outcome).detail)

    # Webhooks

    def _start_call(self, sub: Subscription) -> None:
        if not self._stopped:
            sub.wake_in_flight = sub.state.wake_id
            task = asyncio.get_running_loop().create_task(self._deliver(sub, sub.wake_in_flight))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _deliver(self, sub: Subscription, wake_id: str) -> None:
        """Call a webhook with a wake, and record the outcome."""
        try:
            async with self._slots:
                prepared = await sub.queue.run(lambda: self._prepare_call(sub, wake_id))
                if prepared is None:
                    return
                snapshot, body = prepared
                started = self.clock()
                outcome = await self._call_webhook(sub, body)
            await sub.queue.run(
                lambda: self._record_outcome(sub, wake_id, snapshot, started, outcome)
            )
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("webhook delivery failed", extra={"id": sub.id})
        finally:
            if sub.wake_in_flight == wake_id:
                sub.wake_in_flight = ""
                if not self._stopped:
                    self._set_timer(sub)

    async def _prepare_call(
        self, sub: Subscription, wake_id: str
    ) -> tuple[WakeSnapshot, bytes] | None:
        state = sub.state
        if sub.deleted or state.phase != "due" or state.wake_id != wake_id:
            return None
        change = await self.begin_change(sub)
        if await change.commit(self._store) is not None:
            return None
        snapshot = self.snapshot(change)
        body = {
            "subscription_id": sub.id,
            "wake_id": wake_id,
            "generation": state.generation,
            "streams": snapshot.streams,
            "callback_url": f"{sub.base_url}__ds/subscriptions/{quote(sub.id, safe='')}/callback",
            "callback_token": self.token(sub, state),
        }
        return snapshot, msgspec.json.encode(body)

    async def _call_webhook(self, sub: Subscription, body: bytes) -> WebhookResponse | CallFailed:
        target = check_url(sub.config.webhook_url or "", self._url_rules)
        if isinstance(target, WebhookRejected):
            return CallFailed(f"the webhook may not be called: {target.reason}")
        headers = {
            "Content-Type": "application/json",
            "Webhook-Signature": self.keys.current.sign(body, self.clock()),
        }
        return await self._webhooks.post(target, headers, body, sub.config.lease_seconds)

    async def _record_outcome(
        self,
        sub: Subscription,
        wake_id: str,
        snapshot: WakeSnapshot,
        started: float,
        outcome: WebhookResponse | CallFailed,
    ) -> None:
        sub.wake_in_flight = ""
        if sub.deleted:
            return
        if isinstance(outcome, CallFailed) or not 200 <= outcome.status < 300:
            reason = (
                outcome.reason
                if isinstance(outcome, CallFailed)
                else f"the webhook responded with status {outcome.status}"
            )
            await self._record_failure(sub, wake_id, reason)
            self._set_timer(sub)
            return
        change = await self.begin_change(sub)
        state = rules.delivered(sub.config, change.state, wake_id, started)
        if state is not None:
            change.state = state
            if _is_done(outcome.body):
                for path, tail in snapshot.tails.items():
                    advance(change, path, tail)
                change.state = rules.to_idle(state)
        refusal = await self.commit_change(change)
        if refusal is not None:
            self.schedule(sub, 1.0)

    async def _record_failure(self, sub: Subscription, wake_id: str, reason: str) -> None:
        change = SubscriptionChange(sub)
        now, jitter = self.clock(), self._jitter()
        state = rules.failed(
            change.state, wake_id, reason[:_MAX_ERROR], now, jitter, self._attempts
        )
        if state is None:
            return
        change.state = state
        log.warning(
            "wake not delivered",
            extra={
                "id": sub.id,
                "generation": state.generation,
                "attempts": state.attempts,
                "status": rules.status(state),
                "reason": reason[:_MAX_ERROR],
            },
        )
        if await change.commit(self._store) is not None:
            sub.state = state  # not durable, but the retry must still wait

    def snapshot(self, change: SubscriptionChange) -> WakeSnapshot:
        """List the streams of a wake, those with pending messages first, up to the limit."""
        sub = change.sub
        streams: list[StreamStatus] = []
        tails: dict[str, Offset] = {}
        for path in sorted(change.pending())[:MAX_LISTED]:
            link = sub.links[path]
            tails[path] = sub.tails[path]
            streams.append(
                StreamStatus(path, link.type, str(link.acked), str(tails[path]), has_pending=True)
            )
        for path, link in sub.links.items():
            if len(streams) >= MAX_LISTED:
                break
            if path not in tails:
                at = str(link.acked)
                streams.append(StreamStatus(path, link.type, at, at, has_pending=False))
        return WakeSnapshot(streams, tails)


def advance(change: SubscriptionChange, path: str, offset: Offset) -> None:
    """Move the acked offset of a link forward; it never moves back."""
    link = change.link(path)
    if link is not None and link.acked < offset:
        change.set_link(path, link._replace(acked=offset))


def _is_done(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_WebhookReply).done
    except msgspec.DecodeError:
        return False  # any body is accepted: the webhook calls back when it is done
