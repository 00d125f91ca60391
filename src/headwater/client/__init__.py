"""A client of any Durable Streams server, synchronous and asynchronous.

The rules do no I/O: `_calls` holds requests and what their responses mean, `_reader` how a read
advances and stays live, `_retry` when to try again, `_outbox` what a producer sends next, and
`_operations` the order of steps. `Client` and `AsyncClient` do the steps.
"""

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
from headwater.client._client import DEFAULT_URL, TIMEOUT, AsyncClient, Client
from headwater.client._error_mapping import error_from_response, unexpected_response
from headwater.client._http1 import Request, Response, is_url, origin_of, stream_url, with_query
from headwater.client._reader import Event, SseParser, Live
from headwater.client._retry import NO_RETRY, Retry, is_transient
from headwater.client._stream import (
    AsyncFollowing,
    AsyncReading,
    AsyncStream,
    Following,
    Reading,
    Stream,
)
from headwater.client._subscriptions import Claim, SubscriptionCreated
from headwater.client._values import Appended, Batch, Created, Position, StreamInfo
from headwater.client._worker import AsyncWorker, Worker
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
    "AsyncWorker",
    "Batch",
    "Call",
    "Changed",
    "Claim",
    "Client",
    "Created",
    "Delivery",
    "Event",
    "SseParser",
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
    "Stream",
    "StreamInfo",
    "SubscriptionCreated",
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
