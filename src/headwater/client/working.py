"""What a pull-wake worker does, without I/O (PROTOCOL 7.2, 7.3).

A worker claims what is pending, reads each stream behind its acked offset, hands the batches to a
function, and acks each one that it has returned from. An ack also extends the lease; while
the function takes long, heartbeats do.
"""

import socket
import uuid

from msgspec.structs import replace

from headwater.client import subscriptions as calls
from headwater.client.calls import Call
from headwater.client.messages import Answer
from headwater.client.subscriptions import Acked, Claim
from headwater.errors import (
    ClientError,
    LeaseLost,
    RequestRefused,
    StreamGone,
    StreamNotFound,
    StreamRecreated,
)

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

        def interpret(answer: Answer) -> Acked:
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
