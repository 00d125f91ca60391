"""Pull-wake workers (PROTOCOL 7.2, 7.3).

A worker claims pending work, reads each stream from its acked offset, passes the batches to a
function, and acks each batch after the function has returned. Each ack extends the lease, and so do
heartbeats while the function runs.
"""

import socket
import threading
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from headwater.client import _calls, _subscriptions
from headwater.client._calls import Call
from headwater.client._http1 import Response
from headwater.client._operations import Advance, Asynchronous, Invoke, Steps, operation
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

_HEARTBEATS_PER_LEASE: Final = 3

_DELETED: Final = (StreamNotFound, StreamGone, StreamRecreated)
"""Raised by reading a claimed stream that was deleted, or replaced by another one at its path.

Such a stream is skipped without an ack: the server has dropped its offset, and wakes a worker for
the new stream.
"""


class Lease:
    """A claim that is being worked on."""

    def __init__(self, base_url: str, root: str, subscription: str, claim: Claim) -> None:
        self._base_url = base_url
        self._root = root
        self._subscription = subscription
        self._claim = claim

    @property
    def pending(self) -> list[tuple[str, str]]:
        """The streams with pending data, each with the offset to read from."""
        return [(one.path, one.acked_offset) for one in self._claim.streams if one.has_pending]

    @property
    def heartbeat_seconds(self) -> float:
        """The time between two heartbeats."""
        return self._claim.lease_ttl_ms / 1000 / _HEARTBEATS_PER_LEASE

    def ack(self, offsets: dict[str, str], *, done: bool = False) -> Call[Acked]:
        """Acknowledge offsets; without any, this is a heartbeat."""
        call = _subscriptions.ack(
            self._base_url, self._subscription, self._claim, offsets, done=done, root=self._root
        )

        def interpret(response: Response) -> Acked:
            acked = call.interpret(response)
            if acked.token:  # the older one expires, however long the work takes
                self._claim = replace(self._claim, token=acked.token)
            return acked

        return Call(call.request, interpret)

    def release(self) -> Call[None]:
        """Release the lease: another worker gets what was not acked."""
        return _subscriptions.release(
            self._base_url, self._subscription, self._claim, root=self._root
        )


class WorkerOperations:
    """The work on one subscription, for both kinds of clients."""

    client: "Client | AsyncClient"

    def __init__(self, subscription: str, handle: Callable[[str, Batch], Any], name: str) -> None:
        self._subscription = subscription
        self._handle = handle
        self._name = name
        self._stopped = False
        self._following: Following | AsyncFollowing | None = None

    @operation
    def run(self) -> Steps[None]:
        """Work until `stop` is called or the wake stream is closed."""
        client = self.client
        show = _subscriptions.show(client.base_url, self._subscription, root=client.root)
        description = yield from client._steps(show)
        wakes = client.stream(description["wake_stream"])
        end = yield from client._steps(_calls.head(wakes.url))
        # The tail of the wake stream is read before work is claimed, so that no wake is missed.
        self._following = wakes.follow(end.next_offset)
        batches = self._following.batches()
        yield from self._run_once()
        while not self._stopped:
            batch: Batch | None = yield Advance(batches)
            if batch is None:
                return
            if not batch.empty:
                yield from self._run_once()

    @operation
    def run_once(self) -> Steps[int]:
        """Do the pending work; returns the number of acked batches."""
        return (yield from self._run_once())

    def stop(self) -> None:
        """End after the batch that is being handled."""
        self._stopped = True
        if self._following is not None:
            self._following.stop()

    def _run_once(self) -> Steps[int]:
        count = 0
        client = self.client
        while not self._stopped:
            call = _subscriptions.claim(
                client.base_url, self._subscription, self._name, root=client.root
            )
            claim = yield from client._steps(call)
            if claim is None:
                break
            with suppress(LeaseLost):  # another worker has it now
                lease = Lease(client.base_url, client.root, self._subscription, claim)
                count += yield from self._work(lease)
        return count

    def _work(self, lease: Lease) -> Steps[int]:
        count = 0
        stop_heartbeat = self._start_heartbeat(lease)
        try:
            for path, offset in lease.pending:
                count += yield from self._process(lease, path, offset)
            yield from self._ack(lease, {}, done=True)
        except BaseException as error:
            if not isinstance(error, LeaseLost):
                with suppress(ClientError):
                    yield from self.client._steps(lease.release())
            raise
        finally:
            yield Invoke(stop_heartbeat)
        return count

    def _process(self, lease: Lease, path: str, offset: str) -> Steps[int]:
        """Handle and ack the batches of a claimed stream up to its end, or its deletion."""
        count = 0
        batches = self.client.stream(path).read(offset).batches()
        while True:
            try:
                batch: Batch | None = yield Advance(batches)
            except _DELETED:
                return count
            if batch is None:
                return count
            if not batch.empty:
                yield Invoke(self._handle, (path, batch))
                yield from self._ack(lease, {path: batch.next_offset})
                count += 1

    def _ack(self, lease: Lease, offsets: dict[str, str], *, done: bool = False) -> Steps[None]:
        try:
            yield from self.client._steps(lease.ack(offsets, done=done))
        except ClientError as error:
            if isinstance(error, RequestRefused) and error.status in {401, 409, 410}:
                raise LeaseLost(error.url, error.status) from error
            raise

    def _start_heartbeat(self, lease: Lease) -> Callable[[], object]:
        """Extend a lease in the background; returns the function that stops it."""
        raise NotImplementedError


class Worker(WorkerOperations):
    """Processes the pending messages of a subscription; any number of workers may share it.

    `handle` is called with a stream's path and a batch; the batch is acked when it returns. If it
    raises, the claim is released and the error propagates from `run`. After a crash or a lost lease
    a batch is handled again, so `handle` must tolerate repetition.
    """

    client: "Client"

    def __init__(
        self,
        client: "Client",
        subscription: str,
        handle: Callable[[str, Batch], object],
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(subscription, handle, name or _worker_name())
        self.client = client

    def _start_heartbeat(self, lease: Lease) -> Callable[[], object]:
        done = threading.Event()

        def beat() -> None:
            while not done.wait(lease.heartbeat_seconds):
                with suppress(ClientError):  # the next ack reports what is wrong
                    self.client.run(lease.ack({}))

        heart = threading.Thread(target=beat, daemon=True)
        heart.start()

        def stop() -> None:
            done.set()
            heart.join()

        return stop


class AsyncWorker(WorkerOperations, Asynchronous):
    """`Worker` with awaitable methods; `handle` is a coroutine function."""

    client: "AsyncClient"

    def __init__(
        self,
        client: "AsyncClient",
        subscription: str,
        handle: Callable[[str, Batch], Awaitable[object]],
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(subscription, handle, name or _worker_name())
        self.client = client

    def _start_heartbeat(self, lease: Lease) -> Callable[[], object]:
        import asyncio

        async def beat() -> None:
            while True:
                await asyncio.sleep(lease.heartbeat_seconds)
                with suppress(ClientError):  # the next ack reports what is wrong
                    await self.client.run(lease.ack({}))

        heart = asyncio.create_task(beat())

        async def stop() -> None:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)

        return stop


def _worker_name() -> str:
    """Return a name that identifies this worker to operators."""
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
