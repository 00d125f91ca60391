"""Producers: exactly-once appends in the background, many items per request.

A `Sender` sends the batches of an outbox on an event loop. `AsyncProducer` uses the caller's loop,
`Producer` a thread with a loop of its own.
"""

import asyncio
import atexit
import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from headwater.client import _calls
from headwater.client._client import AsyncClient
from headwater.client._outbox import (
    AsyncDelivery,
    Delivery,
    Outbox,
    OutboxOptions,
    OutgoingBatch,
    ProducerOptions,
    SavedProducerState,
    start_state,
)
from headwater.client._values import Appended
from headwater.errors import ClientError, ProducerClosed, QueueFull

if TYPE_CHECKING:
    from headwater.client._stream import AsyncStream, Stream

_EXIT_SECONDS: Final = 10.0
_LOG: Final = logging.getLogger("headwater.client")

Save = Callable[[SavedProducerState], object]


class Sender:
    """Sends the batches of an outbox; `lock` guards the outbox if other threads fill it."""

    def __init__(
        self,
        client: AsyncClient,
        outbox: Outbox,
        *,
        lock: AbstractContextManager[object] | None = None,
        save: Save | None = None,
        on_change: Callable[[], object] = bool,
    ) -> None:
        self._client = client
        self._outbox = outbox
        self._lock = lock if lock is not None else nullcontext()
        self._save = save
        self._saving = asyncio.Lock()
        # The greatest epoch and number of which a state was saved; a restored state was saved.
        self._saved = (outbox.epoch, outbox.next_seq - 1)
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] = self._loop.create_task(self._run())

    def wake(self) -> None:
        """Send what is due; call it in the thread of the loop."""
        self._wake.set()

    def wake_threadsafe(self) -> None:
        """Send what is due; may be called in any thread."""
        self._loop.call_soon_threadsafe(self._wake.set)

    async def stop(self) -> None:
        """Stop sending; items that are not acknowledged fail."""
        self._task.cancel()
        for task in list(self._sending):
            task.cancel()
        await asyncio.gather(self._task, *self._sending, return_exceptions=True)
        with self._lock:
            self._outbox.fail(ProducerClosed(self._outbox.url))
        self._on_change()

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                with self._lock:
                    batch = self._outbox.next(time.monotonic())
                    wake_at = self._outbox.wake_at() if batch is None else None
                if batch is not None:
                    task = self._loop.create_task(self._send(batch))
                    self._sending.add(task)
                    task.add_done_callback(self._sending.discard)
                elif wake_at is None:
                    await self._wake.wait()
                else:
                    await self._wait_until(wake_at)
        except Exception as error:  # noqa: BLE001 - reported to everything that waits
            self._give_up(error)

    async def _wait_until(self, when: float) -> None:
        handle = self._loop.call_later(when - time.monotonic(), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            handle.cancel()

    async def _send(self, batch: OutgoingBatch) -> None:
        outbox = self._outbox
        try:
            if self._save is not None:
                await self._save_state(batch, self._save)
            with self._lock:
                if batch.settled:
                    return  # it failed before it was sent
                call = outbox.call(batch)
            try:
                response = await self._client._send(call.request, batch.failures)
                appended = call.interpret(response)
            except ClientError as failed:
                error: ClientError | None = failed
            else:
                with self._lock:
                    error = outbox.acknowledged(batch, appended)
            if error is not None:
                retry = self._client.retry
                with self._lock:
                    pause = outbox.refused(batch, error, retry, random.random(), time.monotonic())
                if pause is not None and self._client.on_retry:
                    self._client.on_retry(error, pause)
        except Exception as error:  # noqa: BLE001 - reported to everything that waits
            self._give_up(error)
        self._wake.set()
        self._on_change()

    async def _save_state(self, batch: OutgoingBatch, save: Save) -> None:
        """Save the state before a batch is first sent, in another thread, one state at a time."""
        outbox = self._outbox
        async with self._saving:
            number = (outbox.epoch, batch.seq)
            with self._lock:
                # A state taken after a failure would no longer contain the failed batches.
                if batch.settled or number <= self._saved:
                    return
                state = outbox.state(batch)
            await self._call_in_thread(save, state)
            self._saved = number

    async def _call_in_thread(self, save: Save, state: SavedProducerState) -> None:
        try:
            saving = self._loop.run_in_executor(None, save, state)
        except RuntimeError:
            save(state)  # the interpreter is exiting and refuses new work for threads
            return
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            # No state may be saved after the producer has ended.
            await asyncio.gather(saving, return_exceptions=True)
            raise

    def _give_up(self, error: Exception) -> None:
        failed = error
        if not isinstance(failed, ClientError):
            failed = ProducerClosed(self._outbox.url, f"it failed ({error!r})")
            failed.__cause__ = error
        with self._lock:
            self._outbox.fail(failed)
        self._on_change()


class Producer:
    """Appends items exactly once, in order, many per request; use it in a `with` block.

    `append` queues an item and returns its `Delivery`; items are sent in the background. Failures
    are reported by the deliveries, by the next call, and by `flush` and `close`. Several threads
    may share a producer.
    """

    def __init__(
        self,
        stream: "Stream",
        producer_id: str,
        *,
        epoch: int = 0,
        state: SavedProducerState | None = None,
        save: Save | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Start a producer; the stream's content type is requested unless it is known.

        `producer_id` identifies the writer across restarts, `epoch` its session: a greater one
        fences smaller ones. `state` is a saved state to continue from. `save` is called with the
        state before each batch is first sent, so that a killed process can be resumed without
        duplicates. It may block: it runs in another thread, for one state at a time.

        A batch is sent when it has `max_batch_bytes` or `max_batch_items`, or after `linger`
        seconds. At most `max_in_flight` batches are sent at once. With `auto_claim`, a producer
        that is fenced takes over again with a greater epoch. `max_queue` and `max_queue_bytes`
        limit the items that are not acknowledged; `on_full` is 'block' if `append` waits at a
        limit, or 'raise'. `ProducerOptions` lists the defaults.
        """
        self._options = OutboxOptions(**options)
        content_type = stream.content_type()
        self._encode = _calls.encoder(content_type)
        self._outbox = Outbox(
            stream.url, content_type, start_state(producer_id, epoch, state), self._options
        )
        # Reentrant: callbacks run under it and may append.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._save = save
        self._saving: threading.Thread | None = None
        self._client = stream.client
        self._sender: Sender
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
        """The epoch of the appends, which `auto_claim` may increase."""
        return self._outbox.epoch

    def append(
        self, item: Any, *, callback: Callable[[Delivery], object] | None = None
    ) -> Delivery:
        """Queue an item, waiting while the queue is full; the delivery is its future."""
        outbox = self._outbox
        message = self._encode(item)
        with self._lock:
            if outbox.failed is not None or self._closed or outbox.full:
                self._wait_for_queue()
            batch, wake = outbox.add(message, time.monotonic)
        if wake:
            self._sender.wake_threadsafe()
        delivery = Delivery(batch)
        if callback is not None:
            delivery.add_done_callback(callback)
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every item is acknowledged; raises if one has failed."""
        until = None if timeout is None else time.monotonic() + timeout
        outbox = self._outbox
        with self._lock:
            outbox.flush()
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

        Returns the acknowledgement of the close, if there was one.
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
        """End without sending the queued items: their deliveries fail."""
        with self._lock:
            self._closed = True
        atexit.unregister(self._at_exit)
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            if not self._is_own_thread():
                self._thread.join()

    def state(self) -> SavedProducerState:
        """Return the state, from which another producer continues if it is passed as `state`."""
        with self._lock:
            state = self._outbox.state()
            self._wake()
        return state

    def _wait_for_queue(self) -> None:
        outbox = self._outbox
        while True:
            if outbox.failed is not None:
                raise outbox.failed
            if self._closed:
                raise ProducerClosed(outbox.url)
            if not outbox.full:
                return
            # A callback that waits would block the thread that it waits for.
            if self._options.on_full == "raise" or self._is_own_thread():
                raise QueueFull(outbox.url, outbox.waiting_items, outbox.waiting_bytes)
            self._changed.wait()

    def _is_own_thread(self) -> bool:
        """Return whether this is a callback of the producer, or its `save`."""
        return threading.current_thread() in {self._thread, self._saving}

    def _save_state(self, state: SavedProducerState) -> None:
        self._saving = threading.current_thread()
        try:
            if self._save is not None:
                self._save(state)
        finally:
            self._saving = None

    def _wake(self) -> None:
        if self._thread.is_alive():
            self._sender.wake_threadsafe()

    def _run(self, started: threading.Event) -> None:
        loop = _new_loop()
        try:
            loop.run_until_complete(self._main(loop, started))
        finally:
            loop.close()

    async def _main(self, loop: asyncio.AbstractEventLoop, started: threading.Event) -> None:
        client = self._client
        async with AsyncClient(
            client.base_url,
            headers=client.defaults.headers,
            params=client.defaults.params,
            retry=client.retry,
            timeout=client.timeouts.plain,
            tls=client.tls,
            on_retry=client.on_retry,
        ) as sending:
            self._loop, self._ending = loop, asyncio.Event()
            self._sender = Sender(
                sending,
                self._outbox,
                lock=self._lock,
                save=self._save_state if self._save is not None else None,
                on_change=self._notify,
            )
            started.set()
            await self._ending.wait()
            await self._sender.stop()

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify_all()

    def _at_exit(self) -> None:
        """Send the accepted items of a producer that the program did not close."""
        try:
            self.close(timeout=_EXIT_SECONDS)
        except (ClientError, TimeoutError):
            _LOG.exception("A producer that was not closed could not send all its items")


class AsyncProducer:
    """`Producer` with awaitable methods, on the caller's event loop."""

    def __init__(
        self,
        stream: "AsyncStream",
        producer_id: str,
        *,
        epoch: int = 0,
        state: SavedProducerState | None = None,
        save: Save | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Create a producer; nothing is sent yet. The options are those of `Producer`."""
        self._options = OutboxOptions(**options)
        self._stream = stream
        self._state = start_state(producer_id, epoch, state)
        self._save = save
        self._outbox: Outbox | None = None
        self._sender: Sender | None = None
        self._encode: Callable[[object], bytes] = _calls.encoder("")
        self._starting = asyncio.Lock()
        self._changed = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abandon()

    @property
    def epoch(self) -> int:
        """The epoch of the appends, which `auto_claim` may increase."""
        return self._outbox.epoch if self._outbox is not None else self._state.epoch

    async def append(
        self, item: Any, *, callback: Callable[[AsyncDelivery], object] | None = None
    ) -> AsyncDelivery:
        """Queue an item, waiting while the queue is full; await the delivery for its result."""
        outbox = self._outbox or await self._started()
        if self._closed:
            raise ProducerClosed(outbox.url)
        message = self._encode(item)
        while outbox.full and outbox.failed is None:
            if self._options.on_full == "raise":
                raise QueueFull(outbox.url, outbox.waiting_items, outbox.waiting_bytes)
            await self._change()
        if outbox.failed is not None:
            raise outbox.failed
        batch, wake = outbox.add(message, time.monotonic)
        if wake:
            self._running_sender.wake()
        delivery = AsyncDelivery(batch)
        if callback is not None:
            delivery.add_done_callback(callback)
        return delivery

    async def flush(self) -> None:
        """Wait until every item is acknowledged; raises if one has failed."""
        outbox = self._outbox or await self._started()
        outbox.flush()
        self._running_sender.wake()
        while not outbox.empty and outbox.failed is None:
            await self._change()
        if outbox.failed is not None:
            raise outbox.failed

    async def close(self, *, close_stream: bool = False) -> Appended | None:
        """Flush and end; with `close_stream`, the last batch closes the stream in the same step.

        Returns the acknowledgement of the close, if there was one.
        """
        if self._closed:
            return None
        outbox = self._outbox or await self._started()
        self._closed = True
        try:
            if outbox.failed is not None:
                raise outbox.failed
            last = AsyncDelivery(outbox.close_stream()) if close_stream else None
            await self.flush()
            return await last if last is not None else None
        finally:
            await self._running_sender.stop()

    async def abandon(self) -> None:
        """End without sending the queued items: their deliveries fail."""
        self._closed = True
        if self._sender is not None:
            await self._sender.stop()

    def state(self) -> SavedProducerState:
        """Return the state, from which another producer continues if it is passed as `state`."""
        return self._outbox.state() if self._outbox is not None else self._state

    @property
    def _running_sender(self) -> Sender:
        if self._sender is None:
            raise RuntimeError("the producer has not been started")
        return self._sender

    async def _started(self) -> Outbox:
        async with self._starting:
            if self._outbox is None:
                content_type = await self._stream.content_type()
                self._encode = _calls.encoder(content_type)
                outbox = Outbox(self._stream.url, content_type, self._state, self._options)
                self._sender = Sender(
                    self._stream.client, outbox, save=self._save, on_change=self._changed.set
                )
                self._outbox = outbox
            return self._outbox

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
