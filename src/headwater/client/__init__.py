"""A client of any Durable Streams server, synchronous and asynchronous.

The rules do no I/O: `calls` makes requests and reads answers, `following` decides how to stay live,
`sse` parses events, `retry` says when to try again, `producing` numbers and batches what a producer
sends, and `steps` puts them in order. `Client` and `AsyncClient` carry the steps out.
"""

from headwater.client.async_client import AsyncClient
from headwater.client.async_stream import AsyncStream
from headwater.client.calls import NOW, START
from headwater.client.client import DEFAULT_URL, Client
from headwater.client.following import Live
from headwater.client.reading import AsyncFollowing, AsyncReading, Following, Reading
from headwater.client.retry import NO_RETRY, Retry
from headwater.client.stream import Stream
from headwater.client.values import Appended, Batch, Created, Position, StreamInfo
from headwater.protocol.producers import ProducerClaim

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
