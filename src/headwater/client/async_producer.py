"""The asynchronous producer."""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from headwater.client import calls
from headwater.client.deliveries import AsyncDelivery
from headwater.client.producing import OnFull, Outbox, ProducerOptions, ProducerState, start_state
from headwater.client.pump import Pump, Save
from headwater.client.values import Appended
from headwater.errors import ProducerClosed, QueueFull

if TYPE_CHECKING:
    from headwater.client.async_stream import AsyncStream

_DEFAULTS: Final = ProducerOptions()


class AsyncProducer:
    """`Producer` for one event loop: the same options, with awaitable methods."""

    def __init__(
        self,
        stream: "AsyncStream",
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
        """Set up; nothing is sent yet. The options are those of `Producer`."""
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
        self._stream = stream
        self._state = start_state(producer_id, epoch, state)
        self._options = options
        self._save = save
        self._outbox: Outbox | None = None
        self._pump: Pump | None = None
        self._encode: Callable[[object], bytes] = calls.encoder("")
        self._starting = asyncio.Lock()
        self._changed: asyncio.Event = asyncio.Event()
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
        """The epoch it writes with, which grows when it claims."""
        return self._outbox.epoch if self._outbox is not None else self._state.epoch

    async def append(
        self, item: Any, *, callback: Callable[[AsyncDelivery], object] | None = None
    ) -> AsyncDelivery:
        """Take an item, waiting for room; await what it gives to wait for the acknowledgement."""
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
        parcel, news = outbox.add(message, time.monotonic)
        if news:
            self._pumping.wake()
        delivery = AsyncDelivery(parcel)
        if callback is not None:
            delivery.add_done_callback(callback)
        return delivery

    async def flush(self) -> None:
        """Wait until everything is acknowledged; raises where something failed."""
        outbox = self._outbox or await self._started()
        outbox.hurry()
        self._pumping.wake()
        while not outbox.empty and outbox.failed is None:
            await self._change()
        if outbox.failed is not None:
            raise outbox.failed

    async def close(self, *, close_stream: bool = False) -> Appended | None:
        """Flush and end; with `close_stream`, the last batch closes the stream in the same step.

        Gives the acknowledgement of the closing, where there was one.
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
            await self._pumping.stop()

    async def abandon(self) -> None:
        """End without sending what still waits: its deliveries fail."""
        self._closed = True
        if self._pump is not None:
            await self._pump.stop()

    def state(self) -> ProducerState:
        """Say where it stands, to be restored by `state=` of another producer."""
        return self._outbox.state() if self._outbox is not None else self._state

    @property
    def _pumping(self) -> Pump:
        if self._pump is None:
            raise RuntimeError("the producer has not been started")
        return self._pump

    async def _started(self) -> Outbox:
        async with self._starting:
            if self._outbox is None:
                content_type = await self._stream.content_type()
                self._encode = calls.encoder(content_type)
                outbox = Outbox(self._stream.url, content_type, self._state, self._options)
                self._pump = Pump(
                    self._stream.client, outbox, save=self._save, on_change=self._tell
                )
                self._outbox = outbox
            return self._outbox

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
