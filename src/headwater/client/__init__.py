"""A client of any Durable Streams server.

The rules do no I/O: `calls` makes requests and reads answers, `following` decides how to stay live,
`sse` parses events, `retry` says when to try again. `transport` carries the bytes, and `Client`
puts them together.
"""

from headwater.client.calls import NOW, START
from headwater.client.client import DEFAULT_URL, Client
from headwater.client.retry import NO_RETRY, Retry
from headwater.client.stream import Stream
from headwater.client.values import Appended, Chunk, Created, StreamInfo
from headwater.protocol.producers import ProducerClaim

__all__ = [
    "DEFAULT_URL",
    "NOW",
    "NO_RETRY",
    "START",
    "Appended",
    "Chunk",
    "Client",
    "Created",
    "ProducerClaim",
    "Retry",
    "Stream",
    "StreamInfo",
]
