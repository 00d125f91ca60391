"""The synchronous producer: the same pump, in a thread of its own."""

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from headwater.client import calls
from headwater.client.async_client import AsyncClient
from headwater.client.deliveries import Delivery
from headwater.client.producing import OnFull, Outbox, ProducerOptions, ProducerState, start_state
from headwater.client.pump import Pump, Save
from headwater.client.values import Appended
from headwater.errors import ClientError, ProducerClosed, QueueFull

if TYPE_CHECKING:
    from headwater.client.stream import Stream

_DEFAULTS: Final = ProducerOptions()
_EXIT_SECONDS: Final = 10.0
_LOG: Final = logging.getLogger("headwater.client")


class Producer:
    """Appends items exactly once, in order, many of them to one request; use it in a `with` block.

    `append` takes an item and gives its `Delivery`; sending goes on in the background. What fails
    is told by the deliveries, by the next call, and by `flush` and `close`. Any number of threads
    may share it.
    """

    def __init__(
        self,
        stream: "Stream",
        producer_id: str,
        *,
        epoch: int = 0,
        state: ProducerState | None = None,
        save: Save | None = None,
        max_batch_bytes: int = _DEFAULTS.max_batch_bytes,
        max_batch_items: int = _DEFAULTS.max_batch_items,
        linger: float = _DEFAULTS.linger,
        max_in_flight: int = _DEFAULTS.max_in_flight,
        auto_claim: bool = False,
        max_queue: int = _DEFAULTS.max_queue,
        max_queue_bytes: int = _DEFAULTS.max_queue_bytes,
        on_full: OnFull = "block",
    ) -> None:
        """Begin; the stream's content type is asked for where it is not known yet.

        `producer_id` names the writer across restarts, `epoch` its session: a greater one takes
        over from a smaller one. `state` goes on where a saved one stood. `save` is called with the
        state before each batch is first sent, so that a killed process can be resumed without a
        duplicate; it may block, since it runs in a thread of its own, for one state after the
        other. Batches are cut at `max_batch_bytes`, `max_batch_items` or after `linger` seconds.
        With `auto_claim` a stale epoch is answered by taking a greater one. `max_queue` and
        `max_queue_bytes` bound what is not acknowledged; `on_full` says whether `append` then
        waits or raises.
        """
        options = ProducerOptions(
            max_batch_bytes=max_batch_bytes,
            max_batch_items=max_batch_items,
            linger=linger,
            max_in_flight=max_in_flight,
            auto_claim=auto_claim,
            max_queue=max_queue,
            max_queue_bytes=max_queue_bytes,
            on_full=on_full,
        )
        content_type = stream.content_type()
        self._encode = calls.encoder(content_type)
        self._options = options
        self._outbox = Outbox(
            stream.url, content_type, start_state(producer_id, epoch, state), options
        )
        # Callbacks run under it and may append in turn.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._save = save
        self._saving: threading.Thread | None = None
        self._client = stream.client
        self._pump: Pump
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Event
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name=f"producer {producer_id}", daemon=True
        )
        self._thread.start()
        started.wait()
        atexit.register(self._at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    @property
    def epoch(self) -> int:
        """The epoch it writes with, which grows when it claims."""
        return self._outbox.epoch

    def append(
        self, item: Any, *, callback: Callable[[Delivery], object] | None = None
    ) -> Delivery:
        """Take an item, waiting for room; the delivery tells when it is acknowledged."""
        outbox = self._outbox
        message = self._encode(item)
        with self._lock:
            if outbox.failed is not None or self._closed or outbox.full:
                self._wait_for_room()
            parcel, news = outbox.add(message, time.monotonic)
        if news:
            self._pump.wake_from_elsewhere()
        delivery = Delivery(parcel)
        if callback is not None:
            delivery.add_done_callback(callback)
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything is acknowledged; raises where something failed."""
        until = None if timeout is None else time.monotonic() + timeout
        outbox = self._outbox
        with self._lock:
            outbox.hurry()
            self._wake()
            while not outbox.empty and outbox.failed is None:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"{outbox.waiting_items} items are not acknowledged yet")
                self._changed.wait(left)
            if outbox.failed is not None:
                raise outbox.failed

    def close(self, *, close_stream: bool = False, timeout: float | None = None) -> Appended | None:
        """Flush and end; with `close_stream`, the last batch closes the stream in the same step.

        Gives the acknowledgement of the closing, where there was one.
        """
        with self._lock:
            if self._closed:
                return None
            self._closed = True
            failed = self._outbox.failed
            closing = close_stream and failed is None
            last = Delivery(self._outbox.close_stream()) if closing else None
        try:
            self.flush(timeout)
            return last.result(timeout) if last is not None else None
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End without sending what still waits: its deliveries fail."""
        with self._lock:
            self._closed = True
        atexit.unregister(self._at_exit)
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            if not self._is_own_thread():
                self._thread.join()

    def state(self) -> ProducerState:
        """Say where it stands, to be restored by `state=` of another producer."""
        with self._lock:
            state = self._outbox.state()
            self._wake()
        return state

    def _wait_for_room(self) -> None:
        outbox = self._outbox
        while True:
            if outbox.failed is not None:
                raise outbox.failed
            if self._closed:
                raise ProducerClosed(outbox.url)
            if not outbox.full:
                return
            # A callback would wait for itself.
            if self._options.on_full == "raise" or self._is_own_thread():
                raise QueueFull(outbox.url, outbox.waiting_items, outbox.waiting_bytes)
            self._changed.wait()

    def _is_own_thread(self) -> bool:
        """Return whether this is a callback of the producer, or its `save`."""
        return threading.current_thread() in {self._thread, self._saving}

    def _save_state(self, state: ProducerState) -> None:
        self._saving = threading.current_thread()
        try:
            if self._save is not None:
                self._save(state)
        finally:
            self._saving = None

    def _wake(self) -> None:
        if self._thread.is_alive():
            self._pump.wake_from_elsewhere()

    def _run(self, started: threading.Event) -> None:
        loop = _new_loop()
        try:
            loop.run_until_complete(self._main(loop, started))
        finally:
            loop.close()

    async def _main(self, loop: asyncio.AbstractEventLoop, started: threading.Event) -> None:
        client = self._client
        dressing = client.dressing
        async with AsyncClient(
            client.base_url,
            headers=dressing.headers,
            params=dressing.params,
            retry=client.retry,
            timeout=client.timeouts.usual,
            tls=client.tls,
            on_retry=client.on_retry,
        ) as sender:
            self._loop, self._ending = loop, asyncio.Event()
            self._pump = Pump(
                sender,
                self._outbox,
                lock=self._lock,
                save=self._save_state if self._save is not None else None,
                on_change=self._tell,
            )
            started.set()
            await self._ending.wait()
            await self._pump.stop()

    def _tell(self) -> None:
        with self._lock:
            self._changed.notify_all()

    def _at_exit(self) -> None:
        """Send what a program that forgot to close still has: it was accepted, after all."""
        try:
            self.close(timeout=_EXIT_SECONDS)
        except (ClientError, TimeoutError):
            _LOG.exception("A producer that was not closed could not send all it had")


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
