"""What a pull-wake worker does, without I/O (PROTOCOL 7.2, 7.3).

A worker claims what is pending, reads each stream behind its acked offset, hands the batches to a
function, and acks each one that it has returned from. An ack also extends the lease; while
the function takes long, heartbeats do.
"""

import socket
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headwater.client import _subscriptions as calls
from headwater.client._calls import Call
from headwater.client._http1 import Response
from headwater.client._stream import AsyncFollowing, Following
from headwater.client._subscriptions import Acked, Claim
from headwater.client._values import Batch
from headwater.errors import (
    ClientError,
    LeaseLost,
    RequestRefused,
    StreamGone,
    StreamNotFound,
    StreamRecreated,
)

if TYPE_CHECKING:
    from headwater.client._client import AsyncClient, Client

HEARTBEATS_PER_LEASE = 3

DELETED = (StreamNotFound, StreamGone, StreamRecreated)
"""What reading a claimed stream raises once it is deleted, or another one is at its path.

Such a stream is skipped without an ack: the server has dropped its offset, and wakes a worker for
the new one from its beginning.
"""


def worker_name() -> str:
    """Name this worker so that an operator finds it."""
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


class Lease:
    """A claim that is being worked on."""

    def __init__(self, base_url: str, root: str, subscription: str, claim: Claim) -> None:
        self._base_url = base_url
        self._root = root
        self._subscription = subscription
        self._claim = claim

    @property
    def pending(self) -> list[tuple[str, str]]:
        """The streams with something to do, each with the offset to read behind."""
        return [(one.path, one.acked_offset) for one in self._claim.streams if one.has_pending]

    @property
    def heartbeat_seconds(self) -> float:
        """How often to say that the work goes on."""
        return self._claim.lease_ttl_ms / 1000 / HEARTBEATS_PER_LEASE

    def ack(self, offsets: dict[str, str], *, done: bool = False) -> Call[Acked]:
        """Say how far streams were processed; without any it is a heartbeat."""
        call = calls.ack(
            self._base_url, self._subscription, self._claim, offsets, done=done, root=self._root
        )

        def interpret(answer: Response) -> Acked:
            acked = call.interpret(answer)
            if acked.token:  # the older one expires, however long the work goes on
                self._claim = replace(self._claim, token=acked.token)
            return acked

        return Call(call.request, interpret)

    def release(self) -> Call[None]:
        """Let go of what was not acked: another worker gets it."""
        return calls.release(self._base_url, self._subscription, self._claim, root=self._root)


def as_lost_lease(error: ClientError) -> ClientError:
    """Tell a lease that went to another worker from other refusals."""
    if isinstance(error, RequestRefused) and error.status in {401, 409, 410}:
        return LeaseLost(error.url, error.status)
    return error


# A pull-wake worker that blocks: claims, heartbeats, hands batches to a function, and acks.


class Worker:
    """Does the work of one subscription; any number of workers share it.

    `handle` gets a stream's path and a batch, and what it returns from is acked. If it raises, the
    claim is released and the error goes on to whoever runs the worker. A batch may be handed over
    again, after a crash or a lost lease, so the work has to bear that.
    """

    def __init__(
        self,
        client: "Client",
        subscription: str,
        handle: Callable[[str, Batch], object],
        *,
        name: str | None = None,
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._handle = handle
        self._name = name or worker_name()
        self._stopped = threading.Event()
        self._following: Following | None = None

    def run(self) -> None:
        """Work until stopped, or until the wake stream is closed."""
        description = self._client.subscriptions.show(self._subscription)
        wakes = self._client.stream(description["wake_stream"])
        # First where to wait, then what there is: nothing in between is missed.
        self._following = following = wakes.follow(wakes.head().next_offset)
        self.run_once()
        for batch in following:
            if self._stopped.is_set():
                return
            if not batch.empty:
                self.run_once()

    def run_once(self) -> int:
        """Do what is pending now; gives how many batches were acked."""
        count = 0
        client = self._client
        while not self._stopped.is_set():
            claim = client.run(
                calls.claim(client.base_url, self._subscription, self._name, root=client.root)
            )
            if claim is None:
                break
            with suppress(LeaseLost):  # another worker has it now
                lease = Lease(client.base_url, client.root, self._subscription, claim)
                count += self._work(lease)
        return count

    def stop(self) -> None:
        """End after the batch that is being handled, from any thread."""
        self._stopped.set()
        if self._following is not None:
            self._following.stop()

    def _work(self, lease: Lease) -> int:
        count = 0
        done = threading.Event()
        heart = threading.Thread(target=self._beat, args=(lease, done), daemon=True)
        heart.start()
        try:
            for path, offset in lease.pending:
                for batch in self._pending(path, offset):
                    self._handle(path, batch)
                    self._ack(lease, {path: batch.next_offset})
                    count += 1
            self._ack(lease, {}, done=True)
        except BaseException as error:
            if not isinstance(error, LeaseLost):
                with suppress(ClientError):
                    self._client.run(lease.release())
            raise
        finally:
            done.set()
            heart.join()
        return count

    def _pending(self, path: str, offset: str) -> Iterator[Batch]:
        """Read a claimed stream up to its end, or for as long as it is there."""
        with suppress(*DELETED):
            for batch in self._client.stream(path).read(offset):
                if not batch.empty:
                    yield batch

    def _ack(self, lease: Lease, offsets: dict[str, str], *, done: bool = False) -> None:
        try:
            self._client.run(lease.ack(offsets, done=done))
        except ClientError as error:
            raise as_lost_lease(error) from error

    def _beat(self, lease: Lease, done: threading.Event) -> None:
        while not done.wait(lease.heartbeat_seconds):
            with suppress(ClientError):  # the next ack will tell what is wrong
                self._client.run(lease.ack({}))


# A pull-wake worker in an event loop.


class AsyncWorker:
    """`Worker`, awaited; `handle` is a coroutine function."""

    def __init__(
        self,
        client: "AsyncClient",
        subscription: str,
        handle: Callable[[str, Batch], Awaitable[object]],
        *,
        name: str | None = None,
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._handle = handle
        self._name = name or worker_name()
        self._stopped = False
        self._following: AsyncFollowing | None = None

    async def run(self) -> None:
        """Work until stopped, or until the wake stream is closed."""
        description = await self._client.subscriptions.show(self._subscription)
        wakes = self._client.stream(description["wake_stream"])
        # First where to wait, then what there is: nothing in between is missed.
        self._following = following = wakes.follow((await wakes.head()).next_offset)
        await self.run_once()
        async for batch in following:
            if self._stopped:
                return
            if not batch.empty:
                await self.run_once()

    async def run_once(self) -> int:
        """Do what is pending now; gives how many batches were acked."""
        count = 0
        client = self._client
        while not self._stopped:
            claim = await client.run(
                calls.claim(client.base_url, self._subscription, self._name, root=client.root)
            )
            if claim is None:
                break
            with suppress(LeaseLost):  # another worker has it now
                lease = Lease(client.base_url, client.root, self._subscription, claim)
                count += await self._work(lease)
        return count

    def stop(self) -> None:
        """End after the batch that is being handled."""
        self._stopped = True
        if self._following is not None:
            self._following.stop()

    async def _work(self, lease: Lease) -> int:
        count = 0
        import asyncio

        heart = asyncio.create_task(self._beat(lease))
        try:
            for path, offset in lease.pending:
                async for batch in self._pending(path, offset):
                    await self._handle(path, batch)
                    await self._ack(lease, {path: batch.next_offset})
                    count += 1
            await self._ack(lease, {}, done=True)
        except BaseException as error:
            if not isinstance(error, LeaseLost):
                with suppress(ClientError):
                    await self._client.run(lease.release())
            raise
        finally:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)
        return count

    async def _pending(self, path: str, offset: str) -> AsyncIterator[Batch]:
        """Read a claimed stream up to its end, or for as long as it is there."""
        with suppress(*DELETED):
            async for batch in self._client.stream(path).read(offset):
                if not batch.empty:
                    yield batch

    async def _ack(self, lease: Lease, offsets: dict[str, str], *, done: bool = False) -> None:
        try:
            await self._client.run(lease.ack(offsets, done=done))
        except ClientError as error:
            raise as_lost_lease(error) from error

    async def _beat(self, lease: Lease) -> None:
        import asyncio

        while True:
            await asyncio.sleep(lease.heartbeat_seconds)
            with suppress(ClientError):  # the next ack will tell what is wrong
                await self._client.run(lease.ack({}))
