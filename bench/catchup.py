"""Reading a long stream from its start until the server says the reader is up to date (R1).

The bodies are counted, not kept: at gigabytes per second a copy of each would be measured too.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from bench.measure import Effort, Measurement, Stopwatch, no_garbage_collection
from bench.wire import Client, WireError, build_request, find_header, is_chunked

_BUFFER_SIZE = 1024 * 1024
# A server may cut a read into many responses, but a loop that never ends is a defect.
_MAX_RESPONSES = 10_000


class ChunkCounter:
    """Follows chunked framing through arbitrarily cut pieces and counts the payload."""

    __slots__ = ("_last", "_line", "_skip", "done", "payload")

    def __init__(self) -> None:
        self.payload = 0
        self.done = False
        self._skip = 0
        self._last = False
        self._line = b""

    def feed(self, piece: memoryview) -> None:
        """Take the next bytes of the body."""
        at = 0
        while at < len(piece) and not self.done:
            if self._skip:
                step = min(self._skip, len(piece) - at)
                self._skip -= step
                at += step
                self.done = self._last and not self._skip
            else:
                at += self._read_size(bytes(piece[at : at + 32]))

    def _read_size(self, peek: bytes) -> int:
        newline = peek.find(b"\n")
        if newline < 0:
            self._line += peek
            return len(peek)
        size = int(self._line + peek[:newline], 16)
        self._line = b""
        self.payload += size
        # The chunk and the line end behind it; the last chunk is empty.
        self._skip = size + 2
        self._last = size == 0
        return newline + 1


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What one response of a catch-up read said, and how long its body was."""

    payload: int
    next_offset: str
    up_to_date: bool


def count_response(client: Client, buffer: bytearray) -> CatchUp:
    """Receive one response, keeping only its head and the length of its body."""
    view = memoryview(buffer)
    count = client.receive_into(buffer)
    body_at = buffer.find(b"\r\n\r\n", 0, count) + 4
    if body_at < 4:
        raise WireError("the response head did not arrive in one piece")
    head = bytes(buffer[:body_at])
    if head[9:10] != b"2":
        raise WireError(f"a read was answered with status {head[9:12].decode('latin-1')}")
    if is_chunked(head):
        chunks = ChunkCounter()
        chunks.feed(view[body_at:count])
        while not chunks.done:
            chunks.feed(view[: client.receive_into(buffer)])
        payload = chunks.payload
    else:
        length = find_header(head, "Content-Length")
        if length is None:
            raise WireError("a read has neither Content-Length nor chunked framing")
        payload = int(length)
        missing = payload - (count - body_at)
        while missing > 0:
            missing -= client.receive_into(buffer)
    next_offset = find_header(head, "Stream-Next-Offset")
    if next_offset is None:
        raise WireError("a read was answered without Stream-Next-Offset")
    return CatchUp(payload, next_offset, find_header(head, "Stream-Up-To-Date") == "true")


def read_through(client: Client, name: str, buffer: bytearray) -> int:
    """Read a stream from its start to its tail and return the length of all bodies."""
    offset, payload = "-1", 0
    for _ in range(_MAX_RESPONSES):
        client.send(build_request("GET", client.port, f"{name}?offset={offset}"))
        part = count_response(client, buffer)
        payload += part.payload
        if part.up_to_date:
            return payload
        offset = part.next_offset
    raise WireError(f"not up to date after {_MAX_RESPONSES} responses")


def count_messages(client: Client, name: str) -> int:
    """Read a JSON stream through, parse all of it, and return how many messages it holds."""
    offset, messages = "-1", 0
    for _ in range(_MAX_RESPONSES):
        request = build_request("GET", client.port, f"{name}?offset={offset}")
        response = client.expect_ok(request)
        messages += len(json.loads(response.body))
        if response.header("Stream-Up-To-Date") == "true":
            return messages
        offset = response.header("Stream-Next-Offset") or offset
    raise WireError(f"not up to date after {_MAX_RESPONSES} responses")


def read_repeatedly(port: int, name: str, stream_bytes: int, effort: Effort) -> Measurement:
    """Return the MB/s at which one connection reads a stream of known size again and again."""
    buffer = bytearray(_BUFFER_SIZE)
    with Client(port) as client, no_garbage_collection():
        payload = read_through(client, name, buffer)
        if payload < stream_bytes:
            raise WireError(f"a stream of {stream_bytes} bytes was read as only {payload}")
        warm_until = time.perf_counter() + effort.warmup
        while time.perf_counter() < warm_until:
            read_through(client, name, buffer)
        reads = 0
        watch = Stopwatch()
        while watch.elapsed() < effort.seconds:
            if read_through(client, name, buffer) != payload:
                raise WireError("two reads of one unchanged stream differ in length")
            reads += 1
        elapsed, cpu = watch.elapsed(), watch.generator_cpu()
    # The stream's own size, so that no server gains by a more verbose framing.
    return Measurement(reads * stream_bytes / 1e6 / elapsed, (), cpu)
