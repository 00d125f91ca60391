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
from headwater.client.reading import AsyncFollowing, AsyncReading, Following, Reading
from headwater.client.retry import NO_RETRY, Retry
from headwater.client.stream import Stream
from headwater.client.values import Appended, Batch, Created, Position, StreamInfo
from headwater.protocol.producers import ProducerClaim

if TYPE_CHECKING:
    from headwater.client.async_client import AsyncClient
    from headwater.client.async_stream import AsyncStream

_ASYNC: Final = {
    "AsyncClient": "headwater.client.async_client",
    "AsyncStream": "headwater.client.async_stream",
}
"""Loaded when asked for: asyncio takes longer to import than all of the synchronous client."""

__all__ = [
    "DEFAULT_URL",
    "NOW",
    "NO_RETRY",
    "START",
    "Appended",
    "AsyncClient",
    "AsyncFollowing",
    "AsyncReading",
    "AsyncStream",
    "Batch",
    "Client",
    "Created",
    "Following",
    "Live",
    "Position",
    "ProducerClaim",
    "Reading",
    "Retry",
    "Stream",
    "StreamInfo",
]


def __getattr__(name: str) -> Any:
    if name not in _ASYNC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ASYNC[name]), name)
