"""A pull-wake worker in an event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from headwater.client import subscriptions as calls
from headwater.client.reading import AsyncFollowing
from headwater.client.values import Batch
from headwater.client.working import DELETED, Lease, as_lost_lease, worker_name
from headwater.errors import ClientError, LeaseLost

if TYPE_CHECKING:
    from headwater.client.async_client import AsyncClient


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
        heart = asyncio.create_task(self._beat(lease))
        try:
            for path, offset in lease.pending:
                async for batch in self._pending(path, offset):
                    await self._handle(path, batch)
                    await self._ack(lease, {path: batch.offset})
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
        while True:
            await asyncio.sleep(lease.heartbeat_seconds)
            with suppress(ClientError):  # the next ack will tell what is wrong
                await self._client.run(lease.ack({}))
