"""A pull-wake worker that blocks: claims, heartbeats, hands batches to a function, and acks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from headwater.client import subscriptions as calls
from headwater.client.reading import Following
from headwater.client.values import Batch
from headwater.client.working import DELETED, Lease, as_lost_lease, worker_name
from headwater.errors import ClientError, LeaseLost

if TYPE_CHECKING:
    from headwater.client.client import Client


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
                    self._ack(lease, {path: batch.offset})
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
