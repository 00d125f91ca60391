"""`AsyncStreamDB`: the live local database for asyncio."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from headwater.client import AsyncFollowing, AsyncStream, Batch, Live
from headwater.errors import HeadwaterError, StateError, StateStopped, TxidTimeout
from headwater.state.backend import Backend
from headwater.state.database import Collections, PastState, open_backend
from headwater.state.engine import Engine, Hooks, Progress
from headwater.state.events import ChangeEvent
from headwater.state.fold import Incoming, MalformedPolicy
from headwater.state.history import as_of
from headwater.state.memory import MemoryBackend
from headwater.state.schemas import StreamState

AsyncSend = Callable[[list[ChangeEvent]], Awaitable[Any]]


class AsyncStreamDB(Collections):
    """A stream's state, kept up to date by a task; close it, or use it in `async with`.

    Reading needs no `await`: it is local. Callbacks run on the loop.
    """

    def __init__(
        self,
        stream: AsyncStream,
        state: StreamState | None = None,
        *,
        backend: Backend | str | Path | None = None,
        live: Live = "auto",
        malformed: MalformedPolicy = "quarantine",
        hooks: Hooks | None = None,
    ) -> None:
        """Open the backend; nothing is read before `preload`. See `StreamDB`."""
        self.stream = stream
        self._live: Live = live
        opened = open_backend(backend)
        # What may wait for a disk is done in a thread, so that the loop goes on meanwhile.
        self._in_thread = not isinstance(opened, MemoryBackend)
        self._engine = Engine(state, opened, hooks or Hooks(), malformed)
        self._changed = asyncio.Condition()
        self._following: AsyncFollowing | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def preload(
        self,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `StreamDB`
    ) -> Self:
        """Read to the stream's end, then stay live; returns once the end is reached."""
        if self._closing:
            raise StateStopped("it was closed. Open another one.")
        if self._task is None:
            info = await self.stream.head()
            self._engine.attach(self.stream.url, info.incarnation, info.content_type)
            self._engine.set_status("loading")
            self._task = asyncio.create_task(self._follow())
        try:
            async with asyncio.timeout(timeout):
                await self._loaded(on_progress)
        except TimeoutError:
            raise StateError(
                f"The state was not loaded within {timeout:g} seconds: it goes on loading; "
                "call preload() again to wait for it."
            ) from None
        if on_progress is not None:
            on_progress(self._engine.progress())
        status = self._engine.status
        if status.ended and status.condition != "closed":
            self._raise_ended()
        return self

    async def _loaded(self, on_progress: Callable[[Progress], None] | None) -> None:
        told = None
        async with self._changed:
            while self._engine.status.condition == "loading":
                progress = self._engine.progress()
                if on_progress is not None and progress != told:
                    told = progress
                    on_progress(progress)
                await self._changed.wait()

    async def await_txid(self, txid: str, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - as in `StreamDB`
        """Wait until a transaction is committed here; or raise `TxidTimeout`."""
        seen = asyncio.Event()
        if self._engine.await_txid(txid, seen.set):
            return
        try:
            if not self._engine.status.ended:
                async with asyncio.timeout(timeout):
                    await seen.wait()
        except TimeoutError:
            pass
        finally:
            self._engine.stop_waiting(txid, seen.set)
        if self._engine.has_seen(txid):
            return
        if self._engine.status.ended:
            self._raise_ended()
        raise TxidTimeout(txid, timeout)

    async def act(
        self,
        *events: ChangeEvent,
        send: AsyncSend | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109 - as in `StreamDB`
    ) -> str:
        """Do something optimistically: show it now, append it, and wait until it is confirmed."""
        txid, stamped = self._engine.act(events)
        try:
            if send is not None:
                await send(stamped)
            else:
                await self.stream.append_many(
                    [event.encode() for event in stamped], idempotent=True
                )
            await self.await_txid(txid, timeout)
        except BaseException:
            self._engine.roll_back(txid)
            raise
        return txid

    async def as_of(self, offset: str) -> PastState:
        """Give the state before an offset, or a position, by reading the stream up to it."""
        steps = as_of(offset, self._engine.state)
        batch: Batch | None = None
        while True:
            try:
                at = next(steps) if batch is None else steps.send(batch)
            except StopIteration as done:
                return PastState(self._engine.state, done.value)
            batch = await anext(self.stream.read(at).batches())

    async def restart(self) -> Self:
        """Forget everything and load the stream as it is now: after it was recreated, say."""
        await self._stop()
        self._engine.forget()
        self._engine.set_status("new")
        return await self.preload()

    async def close(self) -> None:
        """Stop following, and let go of the backend. Closing twice is harmless."""
        if self._closing:
            return
        self._closing = True
        await self._stop()
        if not self._engine.status.ended:
            self._engine.set_status("stopped")
        async with self._changed:
            self._changed.notify_all()
        self._engine.backend.close()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        if self._following is not None:
            self._following.stop()
        if task is not asyncio.current_task():
            await task

    async def _follow(self) -> None:
        try:
            following = self.stream.follow(self._engine.fold.offset, live=self._live)
            self._following = following
            async for batch in following:
                await self._take(batch)
            if following.closed:
                self._engine.set_status("closed")
            elif not self._closing:
                self._engine.set_status("stopped")
        except HeadwaterError as error:
            self._engine.end(error)
        except Exception as error:  # noqa: BLE001 - a task of its own has nobody to raise to
            self._engine.end(error)
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _take(self, batch: Batch) -> None:
        incoming = Incoming(
            batch.data, batch.start, batch.next_offset, batch.up_to_date, batch.skipped
        )
        if self._in_thread:
            outcome = await asyncio.to_thread(self._engine.take, incoming)
        else:
            outcome = self._engine.take(incoming)
        if batch.up_to_date and self._engine.status.condition == "loading":
            self._engine.set_status("live")
        self._engine.tell(outcome)
        async with self._changed:
            self._changed.notify_all()

    def _raise_ended(self) -> None:
        status = self._engine.status
        if status.error is not None:
            raise status.error
        raise StateStopped(f"it is {status.condition}.")
