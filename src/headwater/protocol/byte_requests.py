"""Rules that read stored bytes, as generators that request them.

Such a rule yields the ranges that it needs, `(start, end)`, and is sent their bytes. It does no
I/O, so the same rule is served from memory, from files in a thread, or from a database by an
asynchronous driver.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Buffer = bytes | bytearray | memoryview

T = TypeVar("T")
ByteRequests = Generator[tuple[int, int], Buffer, T]
"""A rule that requests ranges of a stream's bytes and returns a decision."""

Read = Callable[[int, int], Buffer]
"""Return the stored bytes of a short range, in one piece."""
AsyncRead = Callable[[int, int], Awaitable[Buffer]]


def serve(requests: ByteRequests[T], read: Read) -> T:
    """Run a rule with a function that reads bytes, and return its decision."""
    try:
        start, end = next(requests)
        while True:
            start, end = requests.send(read(start, end))
    except StopIteration as finished:
        decision: T = finished.value
        return decision


async def serve_async(requests: ByteRequests[T], read: AsyncRead) -> T:
    """Run a rule with a coroutine that reads bytes, and return its decision."""
    try:
        start, end = next(requests)
        while True:
            start, end = requests.send(await read(start, end))
    except StopIteration as finished:
        decision: T = finished.value
        return decision
