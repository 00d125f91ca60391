"""The outbox of an idempotent producer: what to send next, without I/O (PROTOCOL 5.2.1).

Items are collected into batches, each the body of one append with a sequence number of its own. Up
to `max_in_flight` batches are in flight at once, in order:

- The first batch of an epoch is sent alone. If a later one arrived before it, the server would
  refuse it for good, because a new epoch must start at 0.
- A batch that arrives before an earlier one is refused as a gap. It is sent again once all earlier
  ones are acknowledged. If it is refused once more, the gap can't be closed.
- A batch whose response was lost is sent again under the same number, by which the server
  recognises it.
- A batch that closes the stream waits for all others: after the close, the server refuses even
  repeated ones.

A batch is acknowledged as a whole, and its items with it.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec import Struct

from headwater.client import _calls
from headwater.client._calls import Call
from headwater.client._http1 import origin_of
from headwater.client._retry import Retry, was_not_executed
from headwater.client._values import Appended
from headwater.errors import (
    ClientError,
    ConnectionLost,
    ProducerFenced,
    ProducerGap,
    ProducerReused,
    Undelivered,
)
from headwater.protocol.producers import MAX_INTEGER, ProducerClaim

_LOG: Final = logging.getLogger("headwater.client")

_SETTLING: Final = threading.Lock()
"""Guards the moment between checking whether a batch is settled and adding a callback."""

OnFull = Literal["block", "raise"]


class ProducerOptions(TypedDict, total=False):
    """How a producer batches, how much it holds, and what it does when it is fenced."""

    max_batch_bytes: int
    """A batch is sent when it has this many bytes: 1 MiB unless set."""
    max_batch_items: int
    """A batch is sent when it has this many items: 10,000 unless set."""
    linger: float
    """Seconds that an item waits for others to share its append: 0.005 unless set."""
    max_in_flight: int
    """How many batches may be in flight: 5 unless set."""
    auto_claim: bool
    """Whether to take over with a greater epoch if a newer session is found: no unless set."""
    max_queue: int
    """How many items may wait for their acknowledgement: 100,000 unless set."""
    max_queue_bytes: int
    """How many bytes may wait for their acknowledgement: 64 MiB unless set."""
    on_full: OnFull
    """If the queue is full, `append` waits ('block') or raises QueueFull ('raise')."""


class OutboxOptions(Struct, frozen=True, kw_only=True):
    """The options of a producer, checked and complete."""

    max_batch_bytes: int = 1024 * 1024
    max_batch_items: int = 10_000
    linger: float = 0.005
    max_in_flight: int = 5
    auto_claim: bool = False
    max_queue: int = 100_000
    max_queue_bytes: int = 64 * 1024 * 1024
    on_full: OnFull = "block"

    def __post_init__(self) -> None:
        limits = ("max_batch_bytes", "max_batch_items", "max_in_flight", "max_queue")
        for name in (*limits, "max_queue_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} is not allowed: at least 1")
        if self.linger < 0:
            raise ValueError(f"linger={self.linger!r} is not allowed: at least 0 seconds")
        if self.on_full not in {"block", "raise"}:
            raise ValueError(f"on_full={self.on_full!r} is not allowed: block or raise")


class UnconfirmedBatch(Struct, frozen=True):
    """A batch that may have been sent, and is not acknowledged."""

    seq: int
    body: bytes
    items: int
    close: bool = False


class SavedProducerState(Struct, frozen=True):
    """The state of a producer, from which another process can continue.

    A restored producer first sends the unconfirmed batches under their old numbers, so that the
    server appends none of them twice.
    """

    producer_id: str
    epoch: int
    next_seq: int
    items: int
    """Items that the state covers: the input continues after them."""
    unconfirmed: tuple[UnconfirmedBatch, ...] = ()

    def to_bytes(self) -> bytes:
        """Encode the state."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "SavedProducerState":
        """Decode what `to_bytes` returned."""
        try:
            return _STATE.decode(data)
        except msgspec.DecodeError as error:
            raise ValueError(f"not the saved state of a producer: {error}") from None


_STATE: Final = msgspec.json.Decoder(SavedProducerState)


class OutgoingBatch:
    """One append of a producer: filled, sent once or more, and settled."""

    __slots__ = (
        "_callbacks",
        "_error",
        "_result",
        "body",
        "close",
        "count",
        "due",
        "failures",
        "in_doubt",
        "messages",
        "not_before",
        "out_of_order",
        "sent_alone",
        "seq",
        "settled",
        "size",
        "was_sent",
    )

    def __init__(self, due: float) -> None:
        self.due = due
        """The time at which it is sent even if it is not full."""
        self.messages: list[bytes] = []
        self.size = 0
        self.count = 0
        self.seq = -1
        self.body: bytes | None = None
        self.close = False
        self.was_sent = False
        self.sent_alone = False
        """Whether all earlier ones were acknowledged when it was sent."""
        self.out_of_order = False
        """Whether it has arrived at the server before an earlier one."""
        self.in_doubt = False
        """Whether it may have been appended although no acknowledgement arrived."""
        self.failures = 0
        self.not_before = 0.0
        self.settled = False
        self._result: Appended | None = None
        self._error: ClientError | None = None
        self._callbacks: list[Callable[[], object]] = []

    def settle(self, result: Appended | None, error: ClientError | None) -> None:
        """Record the result and run the callbacks."""
        with _SETTLING:
            self._result, self._error, self.settled = result, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _run_callback(callback)

    def when_settled(self, callback: Callable[[], object]) -> None:
        """Run a callback once it is settled: now, if it already is."""
        with _SETTLING:
            if not self.settled:
                self._callbacks.append(callback)
                return
        _run_callback(callback)

    def outcome(self) -> Appended:
        """Return the acknowledgement, or raise the error."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise LookupError("the batch is not settled yet")
        return self._result

    def error(self) -> ClientError | None:
        """Return the error, if there is one."""
        return self._error


def _run_callback(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - a user's callback must not stop the producer
        _LOG.exception("A callback of a producer failed")


class Delivery:
    """A future for one item: done when it is acknowledged or has failed."""

    __slots__ = ("_batch",)

    def __init__(self, batch: OutgoingBatch) -> None:
        self._batch = batch

    def done(self) -> bool:
        """Return whether the item was acknowledged or has failed."""
        return self._batch.settled

    def result(self, timeout: float | None = None) -> Appended:
        """Wait for the acknowledgement; raises the item's error, or TimeoutError."""
        if not self._batch.settled:
            settled = threading.Event()
            self._batch.when_settled(settled.set)
            if not settled.wait(timeout):
                raise TimeoutError(f"no acknowledgement within {timeout} seconds")
        return self._batch.outcome()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait, and return the item's error or None."""
        try:
            self.result(timeout)
        except ClientError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[["Delivery"], object]) -> None:
        """Run a callback once the item is done, in the producer's thread."""
        self._batch.when_settled(lambda: callback(self))


class AsyncDelivery:
    """`Delivery` for `await`."""

    __slots__ = ("_batch",)

    def __init__(self, batch: OutgoingBatch) -> None:
        self._batch = batch

    def done(self) -> bool:
        """Return whether the item was acknowledged or has failed."""
        return self._batch.settled

    def __await__(self) -> Generator[Any, None, Appended]:
        return self._wait().__await__()

    def add_done_callback(self, callback: Callable[["AsyncDelivery"], object]) -> None:
        """Run a callback once the item is done."""
        self._batch.when_settled(lambda: callback(self))

    async def _wait(self) -> Appended:
        if not self._batch.settled:
            settled = asyncio.Event()
            self._batch.when_settled(settled.set)
            await settled.wait()
        return self._batch.outcome()


class Outbox:
    """The batches of one producer, from the first item to the last acknowledgement."""

    def __init__(
        self, url: str, content_type: str, state: SavedProducerState, options: OutboxOptions
    ) -> None:
        check_claim(state.producer_id, state.epoch)
        self.url = url
        self.options = options
        self.producer_id = state.producer_id
        self.epoch = state.epoch
        self.next_seq = state.next_seq
        self.failed: ClientError | None = None
        """Why nothing more is sent, or None."""
        self.waiting_items = 0
        self.waiting_bytes = 0
        self._content_type = content_type
        self._items = state.items
        self._filling: OutgoingBatch | None = None
        self._ready: deque[OutgoingBatch] = deque()
        self._in_flight: dict[int, OutgoingBatch] = {}
        self._known = False
        """Whether the server has acknowledged a batch of this epoch."""
        self._fenced: ProducerFenced | None = None
        self._restore(state)

    @property
    def full(self) -> bool:
        """Whether the queue is at one of its limits."""
        options = self.options
        return (
            self.waiting_items >= options.max_queue or self.waiting_bytes >= options.max_queue_bytes
        )

    @property
    def empty(self) -> bool:
        """Whether every item was acknowledged or has failed."""
        return self._filling is None and not self._ready and not self._in_flight

    def add(self, message: bytes, clock: Callable[[], float]) -> tuple[OutgoingBatch, bool]:
        """Add an item; returns its batch, and whether the sender must be woken."""
        batch = self._filling
        size = len(message)
        wake = False
        if batch is not None and batch.size + size > self.options.max_batch_bytes:
            self._complete()
            batch, wake = None, True
        if batch is None:
            batch = self._filling = OutgoingBatch(clock() + self.options.linger)
            wake = True
        batch.messages.append(message)
        batch.size += size + 1
        self.waiting_items += 1
        self.waiting_bytes += size
        if (
            len(batch.messages) >= self.options.max_batch_items
            or batch.size >= self.options.max_batch_bytes
        ):
            self._complete()
            wake = True
        return batch, wake

    def flush(self) -> None:
        """Send the items collected so far without waiting for more."""
        if self._filling is not None:
            self._complete()

    def close_stream(self) -> OutgoingBatch:
        """Close the stream with the last batch, or with an empty one if all were sent."""
        self.flush()
        if self._ready and not self._ready[-1].was_sent:
            last = self._ready[-1]
        else:
            last = self._filling = OutgoingBatch(0.0)
            self._complete()
        last.close = True
        return last

    def next(self, now: float) -> OutgoingBatch | None:
        """Return the next batch to send now; it counts as in flight."""
        if self.failed is not None or self._fenced is not None or not self._may_send:
            return None
        if self._filling is not None and not self._ready and now >= self._filling.due:
            self._complete()  # not earlier: until it may be sent, more items can be added
        if not self._ready:
            return None
        batch = self._ready[0]
        alone = batch.out_of_order or batch.close
        if (alone and self._in_flight) or now < batch.not_before:
            return None
        self._ready.popleft()
        self._in_flight[batch.seq] = batch
        batch.was_sent = True
        batch.sent_alone = len(self._in_flight) == 1
        return batch

    def wake_at(self) -> float | None:
        """Return when `next` may return a batch without another event, or None."""
        if self.failed is not None or self._fenced is not None:
            return None
        if self._ready:
            return self._ready[0].not_before if not self._in_flight else None
        return self._filling.due if self._filling is not None and self._may_send else None

    @property
    def _may_send(self) -> bool:
        return len(self._in_flight) < (self.options.max_in_flight if self._known else 1)

    def call(self, batch: OutgoingBatch) -> Call[Appended]:
        """Return the append of a batch."""
        claim = ProducerClaim(self.producer_id, self.epoch, batch.seq)
        if batch.body is None:
            batch.body = _calls.join_messages(batch.messages, self._content_type)
        body = batch.body if batch.count else b""
        return _calls.append(
            self.url, body, content_type=self._content_type, producer=claim, close=batch.close
        )

    def acknowledged(self, batch: OutgoingBatch, appended: Appended) -> ClientError | None:
        """Accept an acknowledgement; returns an error if it can't belong to this batch."""
        if self._in_flight.get(batch.seq) is not batch:
            return None  # it failed in the meantime
        number = appended.producer_seq
        if number is not None and number < batch.seq:
            return self._foreign_response()
        # A close without data is always answered like a duplicate.
        if appended.duplicate and batch.count and not batch.in_doubt:
            return ProducerReused(
                f"Number {batch.seq} of producer {self.producer_id!r} in epoch {self.epoch} was "
                f"used before at {self.url}, so this batch was not appended: another process has "
                "the same id and epoch, or the saved state is too old.",
                url=self.url,
                status=204,
                code="producer-reused",
            )
        self._known = True
        del self._in_flight[batch.seq]
        self._release(batch)
        batch.settle(appended, None)
        self._claim_if_quiet()
        return None

    def refused(
        self, batch: OutgoingBatch, error: ClientError, retry: Retry, jitter: float, now: float
    ) -> float | None:
        """Accept a failed attempt; returns the pause before the next one after this error.

        None means that the batch is sent again for another reason, or that it and all later ones
        have failed.
        """
        if self._in_flight.get(batch.seq) is not batch:
            return None
        if isinstance(error, ProducerGap):
            if error.received not in {None, batch.seq}:
                error = self._foreign_response()
            elif not batch.sent_alone:
                del self._in_flight[batch.seq]
                batch.out_of_order = True
                self._put_back(batch)
                return None
        if isinstance(error, ProducerFenced):
            self._fence(batch, error)
            return None
        batch.in_doubt = batch.in_doubt or (_leaves_doubt(error) and not was_not_executed(error))
        delay = retry.delay(error, batch.failures, jitter)
        if delay is None:
            self.fail(error, batch)
            return None
        batch.failures += 1
        batch.not_before = now + delay
        del self._in_flight[batch.seq]
        self._put_back(batch)
        return delay

    def fail(self, error: ClientError, batch: OutgoingBatch | None = None) -> None:
        """Fail a batch and all later ones, or all batches."""
        self.failed = self.failed or error
        if self._filling is not None:
            self._complete()
        first = batch.seq if batch is not None else -1
        lost = [one for one in self._in_flight.values() if one.seq >= first]
        lost += self._ready
        self._ready.clear()
        for one in sorted(lost, key=lambda one: one.seq):
            self._in_flight.pop(one.seq, None)
            self._release(one)
            if one is batch:
                one.settle(None, error)
            else:
                undelivered = Undelivered(self.url, str(error))
                undelivered.__cause__ = error
                one.settle(None, undelivered)

    def state(self, upto: OutgoingBatch | None = None) -> SavedProducerState:
        """Return the producer's state up to a batch, or up to the last item."""
        if upto is None:
            self.flush()
        pending = sorted([*self._in_flight.values(), *self._ready], key=lambda one: one.seq)
        covered = [one for one in pending if upto is None or one.seq <= upto.seq]
        left_out = sum(one.count for one in pending[len(covered) :])
        unconfirmed = []
        for one in covered:
            body = self.call(one).request.body
            unconfirmed.append(UnconfirmedBatch(one.seq, body, one.count, one.close))
        next_seq = covered[-1].seq + 1 if covered else self.next_seq
        items = self._items - left_out
        return SavedProducerState(self.producer_id, self.epoch, next_seq, items, tuple(unconfirmed))

    def _complete(self) -> None:
        """Number the batch that is being filled, and make it ready to be sent."""
        batch = self._filling
        if batch is None:
            return
        self._filling = None
        batch.count = len(batch.messages)
        batch.seq = self.next_seq
        self.next_seq += 1
        self._items += batch.count
        self._ready.append(batch)

    def _put_back(self, batch: OutgoingBatch) -> None:
        """Put a batch before all later ones."""
        at = sum(one.seq < batch.seq for one in self._ready)
        self._ready.insert(at, batch)
        self._claim_if_quiet()

    def _release(self, batch: OutgoingBatch) -> None:
        self.waiting_items -= batch.count
        self.waiting_bytes -= batch.size - batch.count
        batch.messages = []
        batch.body = None

    def _foreign_response(self) -> ConnectionLost:
        reason = "the response belongs to another request"
        return ConnectionLost(self.url, origin_of(self.url), reason)

    def _fence(self, batch: OutgoingBatch, error: ProducerFenced) -> None:
        doubtful = batch.in_doubt or any(one.in_doubt for one in self._ready)
        if not self.options.auto_claim or error.current_epoch is None or doubtful:
            # A batch in doubt may have been appended before the other session took over: under
            # another epoch it could be appended twice.
            self.fail(error, batch)
            return
        self._fenced = error
        del self._in_flight[batch.seq]
        self._put_back(batch)

    def _claim_if_quiet(self) -> None:
        """Take over with a greater epoch, once nothing of the old one is in flight."""
        if self._fenced is None or self._in_flight:
            return
        fenced, self._fenced = self._fenced, None
        if any(batch.in_doubt for batch in self._ready):
            self.fail(fenced)
            return
        self.epoch = max(fenced.current_epoch or 0, self.epoch) + 1
        self._known = False
        for number, batch in enumerate(self._ready):
            batch.seq, batch.out_of_order = number, False
        self.next_seq = len(self._ready)

    def _restore(self, state: SavedProducerState) -> None:
        for one in state.unconfirmed:
            batch = OutgoingBatch(0.0)
            batch.seq, batch.count, batch.close = one.seq, one.items, one.close
            batch.body, batch.size = one.body, len(one.body)
            batch.in_doubt = batch.was_sent = True
            self.waiting_items += batch.count
            self.waiting_bytes += batch.size - batch.count
            self._ready.append(batch)


def start_state(
    producer_id: str, epoch: int, saved: SavedProducerState | None
) -> SavedProducerState:
    """Return the state of a new session, or a saved state if it belongs to this producer."""
    if saved is None:
        check_claim(producer_id, epoch)
        return SavedProducerState(producer_id, epoch, 0, 0)
    if saved.producer_id != producer_id or epoch not in {0, saved.epoch}:
        raise ValueError(
            f"the saved state is of producer {saved.producer_id!r} in epoch {saved.epoch}, "
            f"not of {producer_id!r} in epoch {epoch}"
        )
    return saved


def check_claim(producer_id: str, epoch: int) -> None:
    """Raise ValueError for a producer that every server would refuse."""
    if not producer_id or not producer_id.isascii() or not producer_id.isprintable():
        raise ValueError(f"producer_id={producer_id!r} is not allowed: printable ASCII, not empty")
    if not 0 <= epoch <= MAX_INTEGER:
        raise ValueError(f"epoch={epoch!r} is not allowed: from 0 to 2^53-1")


def _leaves_doubt(error: ClientError) -> bool:
    """Return whether a request may have been executed although it failed."""
    return error.status is None or error.status >= 500
