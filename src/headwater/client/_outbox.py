"""What an idempotent producer sends next, without I/O (PROTOCOL 5.2.1).

Items are filled into parcels, each the body of one append with a sequence number of its own. Up to
`max_in_flight` parcels are under way at once, in order:

- The first parcel of an epoch goes alone: until the server knows the epoch, another one arriving
  before it would be refused for good.
- A parcel that overtook another is refused with the number that the server expects. It goes again
  once all before it are acknowledged; refused once more, the gap can't heal.
- A parcel whose answer was lost goes again under the same number; the server knows it by that.
- A parcel that closes the stream waits for all others: behind the closing one, the server no
  longer recognises those that it knows.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from headwater.client import _calls
from headwater.client._calls import Call
from headwater.client._http1 import origin_of
from headwater.client._retry import Retry, was_not_done
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

_LOG = logging.getLogger("headwater.client")
_SETTLING = threading.Lock()
"""Guards the short moment between looking whether a parcel is settled and waiting for it."""


class Parcel:
    """The items of one append."""

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
        "overtook",
        "sent_alone",
        "seq",
        "settled",
        "size",
        "was_sent",
    )

    def __init__(self, due: float) -> None:
        self.due = due
        """When it is sent even if it is not full."""
        self.messages: list[bytes] = []
        self.size = 0
        self.count = 0
        self.seq = -1
        self.body: bytes | None = None
        self.close = False
        self.was_sent = False
        self.sent_alone = False
        """Whether all before it were acknowledged when it was sent."""
        self.overtook = False
        """Whether it once came to the server before another."""
        self.in_doubt = False
        """Whether it may have been appended although no answer said so."""
        self.failures = 0
        self.not_before = 0.0
        self.settled = False
        self._result: Appended | None = None
        self._error: ClientError | None = None
        self._callbacks: list[Callable[[], object]] = []

    def settle(self, result: Appended | None, error: ClientError | None) -> None:
        """Decide what became of it, and tell everyone who waits."""
        with _SETTLING:
            self._result, self._error, self.settled = result, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _tell(callback)

    def when_settled(self, callback: Callable[[], object]) -> None:
        """Call back once it is decided, which may be at once."""
        with _SETTLING:
            if not self.settled:
                self._callbacks.append(callback)
                return
        _tell(callback)

    def outcome(self) -> Appended:
        """Give the acknowledgement, or raise what went wrong."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise LookupError("it is not decided yet")
        return self._result

    def error(self) -> ClientError | None:
        """Give what went wrong."""
        return self._error


def _tell(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - a user's callback must not stop the producer
        _LOG.exception("A callback of a producer failed")


class Delivery:
    """The future of one item: settled when the server has acknowledged it, or it has failed."""

    __slots__ = ("_parcel",)

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def done(self) -> bool:
        """Tell whether it is decided."""
        return self._parcel.settled

    def result(self, timeout: float | None = None) -> Appended:
        """Wait for the acknowledgement; raises what went wrong, or TimeoutError."""
        if not self._parcel.settled:
            settled = threading.Event()
            self._parcel.when_settled(settled.set)
            if not settled.wait(timeout):
                raise TimeoutError(f"no acknowledgement within {timeout} seconds")
        return self._parcel.outcome()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait, and give what went wrong or None."""
        try:
            self.result(timeout)
        except ClientError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[["Delivery"], object]) -> None:
        """Call back once it is decided, in the producer's thread."""
        self._parcel.when_settled(lambda: callback(self))


class AsyncDelivery:
    """The same for `await`."""

    __slots__ = ("_parcel",)

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def done(self) -> bool:
        """Tell whether it is decided."""
        return self._parcel.settled

    def __await__(self) -> Generator[Any, None, Appended]:
        return self._wait().__await__()

    def add_done_callback(self, callback: Callable[["AsyncDelivery"], object]) -> None:
        """Call back once it is decided."""
        self._parcel.when_settled(lambda: callback(self))

    async def _wait(self) -> Appended:
        if not self._parcel.settled:
            settled = asyncio.Event()
            self._parcel.when_settled(settled.set)
            await settled.wait()
        return self._parcel.outcome()


OnFull = Literal["block", "raise"]


class ProducerOptions(Struct, frozen=True, kw_only=True):
    """How a producer batches, how much it holds, and what it does when it is fenced."""

    max_batch_bytes: int = 1024 * 1024
    max_batch_items: int = 10_000
    linger: float = 0.005
    """Seconds that an item may wait for others to share its append."""
    max_in_flight: int = 5
    auto_claim: bool = False
    """Whether to take over with a greater epoch where another session is in the way."""
    max_queue: int = 100_000
    """How many items may wait for their acknowledgement."""
    max_queue_bytes: int = 64 * 1024 * 1024
    on_full: OnFull = "block"

    def __post_init__(self) -> None:
        limits = ("max_batch_bytes", "max_batch_items", "max_in_flight", "max_queue")
        for name in (*limits, "max_queue_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} can't be used: at least 1")
        if self.linger < 0:
            raise ValueError(f"linger={self.linger!r} can't be used: seconds, 0 or more")
        if self.on_full not in {"block", "raise"}:
            raise ValueError(f"on_full={self.on_full!r} can't be used: block or raise")


class Unconfirmed(Struct, frozen=True):
    """A batch that was perhaps sent, and whose answer has not come."""

    seq: int
    body: bytes
    items: int
    close: bool = False


class ProducerState(Struct, frozen=True):
    """Where a producer stands: kept somewhere safe, another process goes on from here.

    A restored producer first sends what is unconfirmed, under its old numbers, so that the server
    appends none of it twice.
    """

    producer_id: str
    epoch: int
    next_seq: int
    items: int
    """How many items it covers, so that the input can be resumed behind them."""
    unconfirmed: tuple[Unconfirmed, ...] = ()

    def to_bytes(self) -> bytes:
        """Write it down."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "ProducerState":
        """Read what `to_bytes` wrote."""
        try:
            return _STATE.decode(data)
        except msgspec.DecodeError as error:
            raise ValueError(f"that is no saved state of a producer: {error}") from None


_STATE: Final = msgspec.json.Decoder(ProducerState)


class Outbox:
    """The parcels of one producer, from the first item to the last acknowledgement."""

    def __init__(
        self, url: str, content_type: str, state: ProducerState, options: ProducerOptions
    ) -> None:
        check_claim(state.producer_id, state.epoch)
        self.url = url
        self.options = options
        self.producer_id = state.producer_id
        self.epoch = state.epoch
        self.next_seq = state.next_seq
        self.failed: ClientError | None = None
        """Why nothing more is sent, once that is so."""
        self.waiting_items = 0
        self.waiting_bytes = 0
        self._content_type = content_type
        self._items = state.items
        self._filling: Parcel | None = None
        self._ready: deque[Parcel] = deque()
        self._flying: dict[int, Parcel] = {}
        self._known = False
        """Whether the server has acknowledged something of this epoch."""
        self._fenced: ProducerFenced | None = None
        self._restore(state)

    @property
    def full(self) -> bool:
        """Whether nothing more may be added now."""
        options = self.options
        return (
            self.waiting_items >= options.max_queue or self.waiting_bytes >= options.max_queue_bytes
        )

    @property
    def empty(self) -> bool:
        """Whether everything is acknowledged or given up."""
        return self._filling is None and not self._ready and not self._flying

    def add(self, message: bytes, clock: Callable[[], float]) -> tuple[Parcel, bool]:
        """Take an item; gives its parcel, and whether the sender has to look again."""
        parcel = self._filling
        size = len(message)
        news = False
        if parcel is not None and parcel.size + size > self.options.max_batch_bytes:
            self._cut()
            parcel, news = None, True
        if parcel is None:
            parcel = self._filling = Parcel(clock() + self.options.linger)
            news = True
        parcel.messages.append(message)
        parcel.size += size + 1
        self.waiting_items += 1
        self.waiting_bytes += size
        if (
            len(parcel.messages) >= self.options.max_batch_items
            or parcel.size >= self.options.max_batch_bytes
        ):
            self._cut()
            news = True
        return parcel, news

    def hurry(self) -> None:
        """Send what there is without waiting for more."""
        if self._filling is not None:
            self._cut()

    def close_stream(self) -> Parcel:
        """Close the stream with the last parcel, or with one of its own where all are under way."""
        self.hurry()
        if self._ready and not self._ready[-1].was_sent:
            last = self._ready[-1]
        else:
            last = self._filling = Parcel(0.0)
            self._cut()
        last.close = True
        return last

    def next(self, now: float) -> Parcel | None:
        """Give the next parcel to send now; it counts as under way."""
        if self.failed is not None or self._fenced is not None or not self._has_room:
            return None
        if self._filling is not None and not self._ready and now >= self._filling.due:
            self._cut()  # only now: while there is no room, more can be filled in
        if not self._ready:
            return None
        parcel = self._ready[0]
        alone = parcel.overtook or parcel.close
        if (alone and self._flying) or now < parcel.not_before:
            return None
        self._ready.popleft()
        self._flying[parcel.seq] = parcel
        parcel.was_sent = True
        parcel.sent_alone = len(self._flying) == 1
        return parcel

    def wake_at(self) -> float | None:
        """Say when `next` may give more without anything else happening."""
        if self.failed is not None or self._fenced is not None:
            return None
        if self._ready:
            return self._ready[0].not_before if not self._flying else None
        return self._filling.due if self._filling is not None and self._has_room else None

    @property
    def _has_room(self) -> bool:
        return len(self._flying) < (self.options.max_in_flight if self._known else 1)

    def call(self, parcel: Parcel) -> Call[Appended]:
        """Make the append of a parcel."""
        claim = ProducerClaim(self.producer_id, self.epoch, parcel.seq)
        if parcel.body is None:
            parcel.body = _calls.join_messages(parcel.messages, self._content_type)
        body = parcel.body if parcel.count else b""
        return _calls.append(
            self.url, body, content_type=self._content_type, producer=claim, close=parcel.close
        )

    def acknowledged(self, parcel: Parcel, appended: Appended) -> ClientError | None:
        """Take an acknowledgement; gives an error where it can't be one of this parcel."""
        if self._flying.get(parcel.seq) is not parcel:
            return None  # given up meanwhile
        number = appended.producer_seq
        if number is not None and number < parcel.seq:
            return ConnectionLost(self.url, origin_of(self.url), "it answered another request")
        # Closing without data is always answered like a duplicate.
        if appended.duplicate and parcel.count and not parcel.in_doubt:
            return ProducerReused(
                f"Number {parcel.seq} of producer {self.producer_id!r} in epoch {self.epoch} was "
                f"used before at {self.url}, so this batch was not appended: another process has "
                "the same id and epoch, or the saved state is too old.",
                url=self.url,
                status=204,
                code="producer-reused",
            )
        self._known = True
        del self._flying[parcel.seq]
        self._release(parcel)
        parcel.settle(appended, None)
        self._claim_if_quiet()
        return None

    def refused(
        self, parcel: Parcel, error: ClientError, retry: Retry, jitter: float, now: float
    ) -> None:
        """Take a failure: the parcel goes again, or it and all behind it are given up."""
        if self._flying.get(parcel.seq) is not parcel:
            return
        if isinstance(error, ProducerGap):
            if error.received not in {None, parcel.seq}:
                error = ConnectionLost(self.url, origin_of(self.url), "it answered another request")
            elif not parcel.sent_alone:
                del self._flying[parcel.seq]
                parcel.overtook = True
                self._put_back(parcel)
                return
        if isinstance(error, ProducerFenced):
            self._fence(parcel, error)
            return
        parcel.in_doubt = parcel.in_doubt or (_leaves_doubt(error) and not was_not_done(error))
        delay = retry.delay(error, parcel.failures, jitter)
        if delay is None:
            self.fail(error, parcel)
            return
        parcel.failures += 1
        parcel.not_before = now + delay
        del self._flying[parcel.seq]
        self._put_back(parcel)

    def fail(self, error: ClientError, parcel: Parcel | None = None) -> None:
        """Give up a parcel and all behind it, or everything."""
        self.failed = self.failed or error
        if self._filling is not None:
            self._cut()
        first = parcel.seq if parcel is not None else -1
        lost = [one for one in self._flying.values() if one.seq >= first]
        lost += self._ready
        self._ready.clear()
        for one in sorted(lost, key=lambda one: one.seq):
            self._flying.pop(one.seq, None)
            self._release(one)
            if one is parcel:
                one.settle(None, error)
            else:
                undelivered = Undelivered(self.url, str(error))
                undelivered.__cause__ = error
                one.settle(None, undelivered)

    def state(self, upto: Parcel | None = None) -> ProducerState:
        """Say where the producer stands, with everything up to a parcel or else all there is."""
        if upto is None:
            self.hurry()
        pending = sorted([*self._flying.values(), *self._ready], key=lambda one: one.seq)
        kept = [one for one in pending if upto is None or one.seq <= upto.seq]
        left_out = sum(one.count for one in pending[len(kept) :])
        unconfirmed = []
        for one in kept:
            body = self.call(one).request.body
            unconfirmed.append(Unconfirmed(one.seq, body, one.count, one.close))
        next_seq = kept[-1].seq + 1 if kept else self.next_seq
        items = self._items - left_out
        return ProducerState(self.producer_id, self.epoch, next_seq, items, tuple(unconfirmed))

    def _cut(self) -> None:
        parcel = self._filling
        if parcel is None:
            return
        self._filling = None
        parcel.count = len(parcel.messages)
        parcel.seq = self.next_seq
        self.next_seq += 1
        self._items += parcel.count
        self._ready.append(parcel)

    def _put_back(self, parcel: Parcel) -> None:
        """Put a parcel before all that come behind it."""
        at = sum(one.seq < parcel.seq for one in self._ready)
        self._ready.insert(at, parcel)
        self._claim_if_quiet()

    def _release(self, parcel: Parcel) -> None:
        self.waiting_items -= parcel.count
        self.waiting_bytes -= parcel.size - parcel.count
        parcel.messages = []
        parcel.body = None

    def _fence(self, parcel: Parcel, error: ProducerFenced) -> None:
        doubtful = parcel.in_doubt or any(one.in_doubt for one in self._ready)
        if not self.options.auto_claim or error.current_epoch is None or doubtful:
            # What may have been appended before the other took over must not be sent anew.
            self.fail(error, parcel)
            return
        self._fenced = error
        del self._flying[parcel.seq]
        self._put_back(parcel)

    def _claim_if_quiet(self) -> None:
        """Take over with a greater epoch, once nothing of the old one is under way."""
        if self._fenced is None or self._flying:
            return
        fenced, self._fenced = self._fenced, None
        if any(parcel.in_doubt for parcel in self._ready):
            self.fail(fenced)
            return
        self.epoch = max(fenced.current_epoch or 0, self.epoch) + 1
        self._known = False
        for number, parcel in enumerate(self._ready):
            parcel.seq, parcel.overtook = number, False
        self.next_seq = len(self._ready)

    def _restore(self, state: ProducerState) -> None:
        for one in state.unconfirmed:
            parcel = Parcel(0.0)
            parcel.seq, parcel.count, parcel.close = one.seq, one.items, one.close
            parcel.body, parcel.size = one.body, len(one.body)
            parcel.in_doubt = parcel.was_sent = True
            self.waiting_items += parcel.count
            self.waiting_bytes += parcel.size - parcel.count
            self._ready.append(parcel)


def start_state(producer_id: str, epoch: int, saved: ProducerState | None) -> ProducerState:
    """Begin a session, or go on with a saved one."""
    if saved is None:
        check_claim(producer_id, epoch)
        return ProducerState(producer_id, epoch, 0, 0)
    if saved.producer_id != producer_id or epoch not in {0, saved.epoch}:
        raise ValueError(
            f"the saved state is of producer {saved.producer_id!r} in epoch {saved.epoch}, "
            f"not of {producer_id!r} in epoch {epoch}"
        )
    return saved


def check_claim(producer_id: str, epoch: int) -> None:
    """Refuse a producer that no server would take."""
    if not producer_id or not producer_id.isascii() or not producer_id.isprintable():
        raise ValueError(f"producer_id={producer_id!r} can't be used: printable ASCII, not empty")
    if not 0 <= epoch <= MAX_INTEGER:
        raise ValueError(f"epoch={epoch!r} can't be used: from 0 to 2^53-1")


def _leaves_doubt(error: ClientError) -> bool:
    """Tell whether a request may have been carried out although it failed."""
    return error.status is None or error.status >= 500
