"""What moves a producer's parcels: sends them, hears the answers, and waits in between."""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from headwater.client.deliveries import Parcel
from headwater.client.producing import Outbox, ProducerState
from headwater.errors import ClientError, ProducerClosed

if TYPE_CHECKING:
    from headwater.client.async_client import AsyncClient

Save = Callable[[ProducerState], object]


class Pump:
    """Runs in one event loop; `lock` guards the outbox where another thread fills it."""

    def __init__(
        self,
        client: "AsyncClient",
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
        # The greatest epoch and number of which a state was saved; one that was restored has been.
        self._saved = (outbox.epoch, outbox.next_seq - 1)
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] = self._loop.create_task(self._run())

    def wake(self) -> None:
        """Look again whether there is something to send; from the loop's own thread."""
        self._wake.set()

    def wake_from_elsewhere(self) -> None:
        """Look again, from any thread."""
        self._loop.call_soon_threadsafe(self._wake.set)

    async def stop(self) -> None:
        """Stop sending; what is not acknowledged is given up."""
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
                    parcel = self._outbox.next(time.monotonic())
                    wake_at = self._outbox.wake_at() if parcel is None else None
                if parcel is not None:
                    task = self._loop.create_task(self._send(parcel))
                    self._sending.add(task)
                    task.add_done_callback(self._sending.discard)
                elif wake_at is None:
                    await self._wake.wait()
                else:
                    await self._wait_until(wake_at)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, whatever it was
            self._give_up(error)

    async def _wait_until(self, when: float) -> None:
        handle = self._loop.call_later(when - time.monotonic(), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            handle.cancel()

    async def _send(self, parcel: Parcel) -> None:
        outbox = self._outbox
        try:
            if self._save is not None:
                await self._save_state(parcel, self._save)
            with self._lock:
                if parcel.settled:
                    return  # given up before it was sent
                call = outbox.call(parcel)
            try:
                answer = await self._client.send(call.request, parcel.failures)
                appended = call.interpret(answer)
            except ClientError as failed:
                error: ClientError | None = failed
            else:
                with self._lock:
                    error = outbox.acknowledged(parcel, appended)
            if error is not None:
                retry = self._client.retry
                jitter = random.random()
                pause = retry.delay(error, parcel.failures, jitter)
                if pause is not None and self._client.on_retry:
                    self._client.on_retry(error, pause)
                with self._lock:
                    outbox.refused(parcel, error, retry, jitter, time.monotonic())
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)
        self._wake.set()
        self._on_change()

    async def _save_state(self, parcel: Parcel, save: Save) -> None:
        """Save the state before a parcel is first sent, in another thread, one state at a time."""
        outbox = self._outbox
        async with self._saving:
            number = (outbox.epoch, parcel.seq)
            with self._lock:
                # A state that was taken after a failure would no longer hold what was given up.
                if parcel.settled or number <= self._saved:
                    return
                state = outbox.state(parcel)
            await self._call_in_thread(save, state)
            self._saved = number

    async def _call_in_thread(self, save: Save, state: ProducerState) -> None:
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
