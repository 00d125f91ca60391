"""A client of any Durable Streams server, synchronous and asynchronous.

    from headwater.client import Client

    with Client("http://127.0.0.1:4437") as client:
        stream = client.stream("jobs/7")
        stream.create()
        stream.append({"step": 1})
        for item in stream.read().items():      # ends at the present end of the stream
            print(item)
        for item in stream.follow().items():    # waits for more, until the stream is closed
            print(item)

`Client` blocks, `AsyncClient` is awaited; both have the same methods.

- A `Stream` is created, appended to, read, followed, forked, closed and deleted. Reading yields a
  `Batch` at a time, or items, text or bytes. A `Position` is where to resume.
- A `Producer` appends many items in the background, each exactly once. `append` returns a
  `Delivery`, and a `SavedProducerState` lets another process continue.
- `client.subscriptions` creates subscriptions, and a `Worker` processes their pending messages.
- `client.streams`, `client.splits` and `client.changes` are for readers of many or of long streams.
- Errors are subclasses of `headwater.errors.ClientError`. `Retry` controls repeated requests.

Libraries over the protocol use `Client.run` with a `Call`: a request and the interpretation of its
response.
"""
# The rules do no I/O: `_calls` has the requests and what their responses mean, `_reader` how a read
# advances and stays live, `_retry` when to try again, `_outbox` what a producer sends next, and
# `_operations` the order of steps. `_client` executes the steps.

import importlib
from typing import TYPE_CHECKING, Any, Final

from headwater.client._calls import (
    NOW,
    SPLIT_BYTES,
    START,
    Call,
    Changed,
    ListedStream,
    SplitPoints,
    join_messages,
)
from headwater.client._client import TIMEOUT, AsyncClient, Client
from headwater.client._error_mapping import error_from_response, unexpected_response
from headwater.client._http1 import Request, Response, is_url, origin_of, stream_url, with_query
from headwater.client._reader import Live, SseEvent, SseParser
from headwater.client._retry import NO_RETRY, Retry, is_transient
from headwater.client._stream import (
    AsyncFollowing,
    AsyncReading,
    AsyncStream,
    Following,
    Reading,
    Stream,
)
from headwater.client._subscriptions import (
    AsyncSubscriptions,
    Claim,
    SubscriptionCreated,
    Subscriptions,
    WakeStream,
)
from headwater.client._values import Appended, Batch, Created, Position, StreamInfo
from headwater.client._worker import AsyncWorker, Worker
from headwater.protocol.paths import DEFAULT_URL
from headwater.protocol.producers import ProducerClaim

if TYPE_CHECKING:
    from headwater.client._outbox import (
        AsyncDelivery,
        Delivery,
        ProducerOptions,
        SavedProducerState,
    )
    from headwater.client._producer import AsyncProducer, Producer

_LAZY: Final = {
    "AsyncDelivery": "headwater.client._outbox",
    "AsyncProducer": "headwater.client._producer",
    "Delivery": "headwater.client._outbox",
    "Producer": "headwater.client._producer",
    "ProducerOptions": "headwater.client._outbox",
    "SavedProducerState": "headwater.client._outbox",
}
"""Imported on first use: asyncio takes longer to import than all of the synchronous client."""

__all__ = [
    "DEFAULT_URL",
    "NOW",
    "NO_RETRY",
    "SPLIT_BYTES",
    "START",
    "TIMEOUT",
    "Appended",
    "AsyncClient",
    "AsyncDelivery",
    "AsyncFollowing",
    "AsyncProducer",
    "AsyncReading",
    "AsyncStream",
    "AsyncSubscriptions",
    "AsyncWorker",
    "Batch",
    "Call",
    "Changed",
    "Claim",
    "Client",
    "Created",
    "Delivery",
    "Following",
    "ListedStream",
    "Live",
    "Position",
    "Producer",
    "ProducerClaim",
    "ProducerOptions",
    "Reading",
    "Request",
    "Response",
    "Retry",
    "SavedProducerState",
    "SplitPoints",
    "SseEvent",
    "SseParser",
    "Stream",
    "StreamInfo",
    "SubscriptionCreated",
    "Subscriptions",
    "WakeStream",
    "Worker",
    "error_from_response",
    "is_transient",
    "is_url",
    "join_messages",
    "origin_of",
    "stream_url",
    "unexpected_response",
    "with_query",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
