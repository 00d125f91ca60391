"""A client of any Durable Streams server, synchronous and asynchronous.

The rules do no I/O: `calls` makes requests and reads answers, `following` decides how to stay live,
`sse` parses events, `retry` says when to try again, `producing` numbers and batches what a producer
sends, and `steps` puts them in order. `Client` and `AsyncClient` carry the steps out.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from headwater.client.calls import NOW, START
from headwater.client.client import DEFAULT_URL, Client
from headwater.client.following import Live
from headwater.client.listings import Changed, ListedStream
from headwater.client.reading import AsyncFollowing, AsyncReading, Following, Reading
from headwater.client.retry import NO_RETRY, Retry
from headwater.client.stream import Stream
from headwater.client.values import Appended, Batch, Created, Position, StreamInfo
from headwater.client.worker import Worker
from headwater.protocol.producers import ProducerClaim

if TYPE_CHECKING:
    from headwater.client.async_client import AsyncClient
    from headwater.client.async_producer import AsyncProducer
    from headwater.client.async_stream import AsyncStream
    from headwater.client.async_worker import AsyncWorker
    from headwater.client.deliveries import AsyncDelivery, Delivery
    from headwater.client.producer import Producer
    from headwater.client.producing import ProducerState

_ASYNC: Final = {
    "AsyncClient": "headwater.client.async_client",
    "AsyncDelivery": "headwater.client.deliveries",
    "AsyncProducer": "headwater.client.async_producer",
    "AsyncStream": "headwater.client.async_stream",
    "AsyncWorker": "headwater.client.async_worker",
    "Delivery": "headwater.client.deliveries",
    "Producer": "headwater.client.producer",
    "ProducerState": "headwater.client.producing",
}
"""Loaded when asked for: asyncio takes longer to import than all of the synchronous client."""

__all__ = [
    "DEFAULT_URL",
    "NOW",
    "NO_RETRY",
    "START",
    "Appended",
    "AsyncClient",
    "AsyncDelivery",
    "AsyncFollowing",
    "AsyncProducer",
    "AsyncReading",
    "AsyncStream",
    "AsyncWorker",
    "Batch",
    "Changed",
    "Client",
    "Created",
    "Delivery",
    "Following",
    "ListedStream",
    "Live",
    "Position",
    "Producer",
    "ProducerClaim",
    "ProducerState",
    "Reading",
    "Retry",
    "Stream",
    "StreamInfo",
    "Worker",
]


def __getattr__(name: str) -> Any:
    if name not in _ASYNC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ASYNC[name]), name)
