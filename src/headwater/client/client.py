"""The synchronous client: runs calls over the transport, again where that is safe."""

import random
import threading
from collections.abc import Callable, Iterator
from typing import Final, Self, TypeVar

from headwater.client.calls import Call
from headwater.client.following import Reader
from headwater.client.messages import origin_of, stream_url
from headwater.client.retry import Retry
from headwater.client.stream import Stream
from headwater.client.transport import Transport
from headwater.client.values import Chunk
from headwater.errors import ClientClosed, ClientError, ConnectionLost

T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:4437"


class Client:
    """A client of one stream server; close it, or use it in a `with` block.

    Streams live under `{base_url}/v1/stream/`. It may be used from several threads; `close` from
    another thread ends whatever waits, and a `follow` then ends without an error.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        retry: Retry | None = None,
        timeout: float = 30.0,
        live_timeout: float = 90.0,
        on_retry: Callable[[ClientError, float], None] | None = None,
    ) -> None:
        """Set up; nothing is connected yet.

        `timeout` is how long to wait for a connection or an answer, in seconds. `live_timeout` is
        the longest silence in a live read before it is asked for anew: longer than the server's
        own limits, which end a long-poll after about 30 seconds and SSE after about 60. `on_retry`
        is told the error and the pause before each new attempt.
        """
        origin_of(base_url)  # fails now rather than at the first request
        self.base_url = base_url
        self.retry = retry or Retry()
        self._on_retry = on_retry
        self._transport = Transport(timeout, live_timeout)
        self._closed = threading.Event()

    def stream(self, path: str) -> Stream:
        """Name a stream by its path, such as `chat/42`, or by a whole URL."""
        return Stream(self, stream_url(self.base_url, path))

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, call: Call[T]) -> T:
        """Carry out a call; what is safe to repeat is repeated."""
        attempt = 0
        while True:
            try:
                return call.interpret(self._transport.send(call.request, attempt))
            except ClientError as error:
                if not call.request.repeatable:
                    raise
                self._pause(error, attempt)
            attempt += 1

    def follow(self, reader: Reader) -> Iterator[Chunk]:
        """Catch up, then stay live, until the stream is closed or the client is."""
        try:
            while not reader.closed:
                if reader.streams:
                    yield from self._follow_events(reader)
                else:
                    chunk = self.run(reader.call())
                    if chunk is not None:
                        yield chunk
        except ClientClosed:
            return

    def _follow_events(self, reader: Reader) -> Iterator[Chunk]:
        """Follow through SSE, one connection after another."""
        attempt = 0
        while not reader.closed:
            request = reader.events_request()
            try:
                with self._transport.open(request) as (answer, pieces):
                    events = reader.open_events(answer)
                    for piece in pieces:
                        yield from events.feed(piece)
                        # Only what has told a position is progress; else an endless loop of
                        # connections that end at once would never be given up.
                        attempt = 0 if events.told else attempt
                if events.told:
                    continue
                reason = "it ended before it told anything"
                error: ClientError = ConnectionLost(request.url, origin_of(request.url), reason)
            except ClientError as failed:
                error = failed
            self._pause(error, attempt)
            attempt += 1

    def _pause(self, error: ClientError, attempt: int) -> None:
        """Wait before the next attempt, or raise where there is none."""
        delay = self.retry.delay(error, attempt, random.random())
        if delay is None:
            raise error
        if self._on_retry is not None:
            self._on_retry(error, delay)
        if self._closed.wait(delay):
            raise ClientClosed(error.url)
