"""The steps that behaviours of a store are told in: do something, and have its result or fail."""

import asyncio
import json
from typing import Any, Final, TypeVar

from headwater.protocol.expiry import Expiry
from headwater.protocol.forks import ForkRequest
from headwater.protocol.framing import render
from headwater.protocol.lifecycle import Append, Create
from headwater.protocol.offsets import START, Now, Offset
from headwater.protocol.producers import ProducerClaim
from headwater.storage.store import Appended, Chunk, Created, Store, StreamInfo

T0: Final = 1_800_000_000.0
JSON: Final = "application/json"
TEXT: Final = "text/plain"
BINARY: Final = "application/octet-stream"
PLENTY: Final = 1 << 30

Wanted = TypeVar("Wanted")


def expect(kind: type[Wanted], outcome: object) -> Wanted:
    """Fail with the outcome in sight where it is not of the kind wanted."""
    assert isinstance(outcome, kind), f"expected {kind.__name__}, got {outcome!r}"
    return outcome


async def notified() -> None:
    """Wait until the watchers of everything that was acknowledged have been called."""
    for _ in range(3):  # turns of the loop: the acknowledgement, the calls, and what they scheduled
        await asyncio.sleep(0)


async def create(
    store: Store,
    path: str = "s",
    content_type: str | None = JSON,
    body: bytes = b"",
    *,
    expiry: Expiry | None = None,
    close: bool = False,
    now: float = T0,
) -> StreamInfo:
    """Create a stream that must be new."""
    request = Create(content_type, expiry or Expiry(), body, close)
    created = expect(Created, await store.create(path, request, now))
    assert created.new
    return created.info


async def fork(
    store: Store,
    path: str,
    source: str,
    offset: Offset | None = None,
    sub_offset: int = 0,
    *,
    content_type: str | None = None,
    body: bytes = b"",
    expiry: Expiry | None = None,
    now: float = T0,
) -> StreamInfo:
    """Make a fork that must be new."""
    request = fork_of(source, offset, sub_offset, content_type, body, expiry)
    created = expect(Created, await store.create(path, request, now))
    assert created.new
    return created.info


def fork_of(
    source: str,
    offset: Offset | None = None,
    sub_offset: int = 0,
    content_type: str | None = None,
    body: bytes = b"",
    expiry: Expiry | None = None,
) -> Create:
    """Write the request for a fork."""
    wanted = ForkRequest(source, offset, sub_offset)
    return Create(content_type, expiry or Expiry(), body, fork=wanted)


async def append(
    store: Store,
    path: str = "s",
    body: bytes = b"1",
    content_type: str = JSON,
    *,
    close: bool = False,
    seq: str | None = None,
    producer: ProducerClaim | None = None,
    now: float = T0,
) -> Appended:
    """Append, which must succeed."""
    request = Append(content_type, body, close, seq, producer)
    return expect(Appended, await store.append(path, request, now))


async def close(store: Store, path: str = "s", now: float = T0) -> Appended:
    """Close a stream without a last message."""
    return expect(Appended, await store.append(path, Append(close=True), now))


async def read(
    store: Store,
    path: str = "s",
    start: Offset | Now = START,
    limit: int = PLENTY,
    now: float = T0,
) -> Chunk:
    """Read, which must succeed."""
    return expect(Chunk, await store.read(path, start, limit, now))


async def head(store: Store, path: str = "s", now: float = T0) -> StreamInfo:
    """Look at a stream that must exist."""
    return expect(StreamInfo, await store.head(path, now))


def _joined(chunk: Chunk) -> list[bytes]:
    return [chunk.joined()] if chunk.parts else []


def body_of(chunk: Chunk) -> bytes:
    """Give what a client would get."""
    return b"".join(render([chunk.joined()] if chunk.parts else [], chunk.info.config.media_type))


def messages_of(chunk: Chunk) -> list[Any]:
    """Give the messages of a JSON chunk, as a client would see them."""
    found = json.loads(body_of(chunk))
    assert isinstance(found, list)
    return found


async def messages(
    store: Store, path: str = "s", start: Offset = START, now: float = T0
) -> list[Any]:
    """Give all messages of a JSON stream from a position on."""
    return messages_of(await read(store, path, start, now=now))


async def content(store: Store, path: str = "s", start: Offset = START, now: float = T0) -> bytes:
    """Give all bytes of a stream from a position on."""
    return body_of(await read(store, path, start, now=now))


async def pages(store: Store, path: str, limit: int, now: float = T0) -> list[Chunk]:
    """Read a stream to its tail, a chunk at a time."""
    found = [await read(store, path, START, limit, now)]
    while not found[-1].up_to_date:
        found.append(await read(store, path, found[-1].end, limit, now))
        assert found[-1].end > found[-1].start
    return found
