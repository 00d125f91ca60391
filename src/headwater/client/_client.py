"""The synchronous client: does the steps of `headwater.client._operations` by blocking."""

import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from headwater.client import _calls
from headwater.client._auth import AsyncValue, Auth, Value, as_header, dressed, make_dressing
from headwater.client._calls import (
    NOW,
    SPLIT_BYTES,
    START,
    Call,
    Changed,
    ListedStream,
    SplitPoints,
)
from headwater.client._http1 import ROOT, Request, Response, stream_url
from headwater.client._operations import (
    EVENT_PATIENCE,
    Open,
    Pause,
    Receive,
    Send,
    Shut,
    Step,
    carry_out,
    read_on,
)
from headwater.client._reader import Reader
from headwater.client._retry import Retry
from headwater.client._stream import AsyncStream, Stream
from headwater.client._subscriptions import AsyncSubscriptions, Subscriptions
from headwater.client._transport import Exchange, Scope, Timeouts, Transport
from headwater.client._values import Batch
from headwater.errors import ClientClosed, ClientError

if TYPE_CHECKING:
    import ssl

    from headwater.client._async_transport import AsyncScope

T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:4437"
TIMEOUT: Final = 30.0
LIVE_TIMEOUT: Final = 90.0


class Client:
    """A client of one stream server; close it, or use it in a `with` block.

    Streams live under `{base_url}{root}`. It may be used from several threads; `close` from another
    thread ends whatever waits, and a `follow` then ends without an error.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        headers: Mapping[str, Value] | None = None,
        params: Mapping[str, Value] | None = None,
        auth: Auth | None = None,
        retry: Retry | None = None,
        timeout: float = TIMEOUT,
        live_timeout: float = LIVE_TIMEOUT,
        event_patience: float = EVENT_PATIENCE,
        root: str = ROOT,
        tls: "ssl.SSLContext | None" = None,
        on_retry: Callable[[ClientError, float], None] | None = None,
    ) -> None:
        """Set up; nothing is connected yet.

        `headers` and `params` go with every request to this server; a value may be a function,
        which is called for each attempt. `auth` is a bearer token, a user with a password, or a
        function that gives a token. `timeout` is how long to wait for a connection or an answer,
        in seconds. `live_timeout` is the longest silence in a live read before it is asked for
        anew: longer than the server's own limits, which end a long-poll after about 30 seconds and
        SSE after about 60. An event stream that says nothing for `event_patience` seconds is held
        back by something, and long-poll is used instead. `on_retry` is told the error and the
        pause before each new attempt.
        """
        self.dressing = make_dressing(base_url, headers, params, auth)
        self.base_url = base_url
        self.root = root
        self.retry = retry or Retry()
        self.timeouts = Timeouts(timeout, live_timeout)
        self.event_patience = event_patience
        self.tls = tls
        self.on_retry = on_retry
        self._transport = Transport(self.timeouts, tls)
        self._closed = threading.Event()

    def stream(self, path: str, *, content_type: str | None = None) -> Stream:
        """Name a stream by its path, such as `chat/42`, or by a whole URL.

        A content type that is given here need not be asked for before the first append.
        """
        return Stream(self, stream_url(self.base_url, path, self.root), content_type)

    def streams(self, glob: str = "**") -> Iterator[ListedStream]:
        """List the streams whose paths match a glob, in the order of paths.

        In a glob a segment may be `*`, for any one, or `**`, for any number of segments.
        """
        after: str | None = ""
        while after is not None:
            page = self.run(_calls.streams(self.base_url, glob, after, root=self.root))
            yield from page.streams
            after = page.next

    def splits(
        self, path: str, start: str = START, end: str = NOW, *, size: int = SPLIT_BYTES
    ) -> list[str]:
        """Cut a range of a stream into pieces of about `size` bytes, at message boundaries.

        Gives the offsets from the beginning of the range to its end: one more than pieces.
        """
        offsets: list[str] = []
        going_on: str | None = start
        while going_on is not None:
            cut = self.split_page(path, going_on, end, size=size)
            offsets += cut.offsets[1:] if offsets else cut.offsets
            going_on = cut.next
        return offsets

    def split_page(
        self,
        path: str,
        start: str = START,
        end: str = NOW,
        *,
        size: int = SPLIT_BYTES,
        limit: int = _calls.PAGE,
    ) -> SplitPoints:
        """Return at most `limit` split points of a range, with the stream's metadata."""
        return self.run(_calls.splits(self.base_url, path, start, end, size, limit, root=self.root))

    def changes(self, *globs: str, after: str = "", wait: float = 20.0) -> Changed:
        """Wait until a stream changes that matches one of the globs, for at most `wait` seconds.

        Begin without a cursor, look at the streams, then ask for what changed after the cursor of
        the last answer: no change is missed.
        """
        return self.run(
            _calls.changes(self.base_url, globs or ("**",), after, wait, root=self.root)
        )

    @property
    def subscriptions(self) -> Subscriptions:
        """The subscriptions of the server."""
        return Subscriptions(self)

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
        steps = carry_out(call, self.retry, random.random)
        result: Any = None
        error: ClientError | None = None
        while True:
            try:
                step = steps.send(result) if error is None else steps.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            result, error = None, None
            try:
                result = self._do(step, None)
            except ClientError as failed:
                error = failed

    def read(self, reader: Reader, scope: Scope) -> Iterator[Batch]:
        """Catch up and perhaps stay live, until there is no more, or the scope is stopped."""
        steps = read_on(reader, self.retry, random.random, time.monotonic, self.event_patience)
        result: Any = None
        error: ClientError | None = None
        try:
            while not scope.stopped:
                try:
                    step = steps.send(result) if error is None else steps.throw(error)
                except StopIteration:
                    return
                result, error = None, None
                if isinstance(step, Batch):
                    yield step
                    continue
                try:
                    result = self._do_reading(step, scope)
                except ClientClosed:
                    return
                except ClientError as failed:
                    error = failed
        finally:
            scope.let_go()

    @contextmanager
    def opened(self, request: Request) -> Iterator[Exchange]:
        """Send a request, once, whose answer is taken as it comes, for as long as the block."""
        exchange = self._transport.start(self._dress(request))
        try:
            yield exchange
        finally:
            exchange.finish()

    def _do(self, step: Step, scope: Scope | None) -> Any:
        if isinstance(step, Send):
            return self._transport.send(self._dress(step.request), step.attempt, scope)
        if isinstance(step, Pause):
            return self._pause(step, scope)
        raise TypeError(f"{step} is a step of readers only")

    def _do_reading(self, step: Step, scope: Scope) -> Any:
        match step:
            case Open():
                exchange = self._transport.start(self._dress(step.request), 0, scope)
                if not exchange.head(step.patience):
                    return None
                if exchange.incoming.status == 200:
                    return exchange.incoming.head()
                exchange.whole()
                return exchange.incoming.answer()
            case Receive():
                return scope.exchange.take_more(step.patience)
            case Shut():
                return scope.let_go()
            case _:
                return self._do(step, scope)

    def _dress(self, request: Request) -> Request:
        dressing = self.dressing
        if not dressing.applies_to(request):
            return request
        headers = {name: _value(name, value) for name, value in dressing.headers.items()}
        params = {name: _value(name, value) for name, value in dressing.params.items()}
        return dressed(request, headers, params)

    def _pause(self, step: Pause, scope: Scope | None) -> None:
        if self.on_retry is not None:
            self.on_retry(step.error, step.seconds)
        if scope is not None:
            scope.wait(step.seconds)
        else:
            self._closed.wait(step.seconds)
        if self._closed.is_set():
            raise ClientClosed(step.error.url)


def _value(name: str, value: Any) -> str:
    return as_header(name, value() if callable(value) else value)


# The asynchronous client: does the steps of `headwater.client._operations` by awaiting.


class AsyncClient:
    """A client of one stream server for one event loop; use it in an `async with` block.

    It is `Client` with awaitable methods. Functions that give header values may be asynchronous.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        headers: Mapping[str, AsyncValue] | None = None,
        params: Mapping[str, AsyncValue] | None = None,
        auth: Auth | None = None,
        retry: Retry | None = None,
        timeout: float = TIMEOUT,
        live_timeout: float = LIVE_TIMEOUT,
        event_patience: float = EVENT_PATIENCE,
        root: str = ROOT,
        tls: "ssl.SSLContext | None" = None,
        on_retry: Callable[[ClientError, float], None] | None = None,
    ) -> None:
        """Set up; nothing is connected yet. The options are those of `Client`."""
        self.dressing = make_dressing(base_url, headers, params, auth)
        self.base_url = base_url
        self.root = root
        self.retry = retry or Retry()
        self.timeouts = Timeouts(timeout, live_timeout)
        self.event_patience = event_patience
        self.tls = tls
        self.on_retry = on_retry
        from headwater.client._async_transport import AsyncTransport

        self._transport = AsyncTransport(self.timeouts, tls)

    def stream(self, path: str, *, content_type: str | None = None) -> AsyncStream:
        """Name a stream by its path, such as `chat/42`, or by a whole URL."""
        return AsyncStream(self, stream_url(self.base_url, path, self.root), content_type)

    async def streams(self, glob: str = "**") -> AsyncIterator[ListedStream]:
        """List the streams whose paths match a glob, in the order of paths.

        In a glob a segment may be `*`, for any one, or `**`, for any number of segments.
        """
        after: str | None = ""
        while after is not None:
            page = await self.run(_calls.streams(self.base_url, glob, after, root=self.root))
            for listed in page.streams:
                yield listed
            after = page.next

    async def splits(
        self, path: str, start: str = START, end: str = NOW, *, size: int = SPLIT_BYTES
    ) -> list[str]:
        """Cut a range of a stream into pieces of about `size` bytes, at message boundaries.

        Gives the offsets from the beginning of the range to its end: one more than pieces.
        """
        offsets: list[str] = []
        going_on: str | None = start
        while going_on is not None:
            cut = await self.split_page(path, going_on, end, size=size)
            offsets += cut.offsets[1:] if offsets else cut.offsets
            going_on = cut.next
        return offsets

    async def split_page(
        self,
        path: str,
        start: str = START,
        end: str = NOW,
        *,
        size: int = SPLIT_BYTES,
        limit: int = _calls.PAGE,
    ) -> SplitPoints:
        """Return at most `limit` split points of a range, with the stream's metadata."""
        return await self.run(
            _calls.splits(self.base_url, path, start, end, size, limit, root=self.root)
        )

    async def changes(self, *globs: str, after: str = "", wait: float = 20.0) -> Changed:
        """Wait until a stream changes that matches one of the globs, for at most `wait` seconds.

        Begin without a cursor, look at the streams, then ask for what changed after the cursor of
        the last answer: no change is missed.
        """
        return await self.run(
            _calls.changes(self.base_url, globs or ("**",), after, wait, root=self.root)
        )

    @property
    def subscriptions(self) -> AsyncSubscriptions:
        """The subscriptions of the server."""
        return AsyncSubscriptions(self)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, request: Request, attempt: int = 0) -> Response:
        """Send a request once."""
        return await self._transport.send(await self._dress(request), attempt)

    async def run(self, call: Call[T]) -> T:
        """Carry out a call; what is safe to repeat is repeated."""
        steps = carry_out(call, self.retry, random.random)
        result: Any = None
        error: ClientError | None = None
        while True:
            try:
                step = steps.send(result) if error is None else steps.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            result, error = None, None
            try:
                result = await self._do(step)
            except ClientError as failed:
                error = failed

    async def read(self, reader: Reader, scope: "AsyncScope") -> AsyncIterator[Batch]:
        """Catch up and perhaps stay live, until there is no more, or the scope is stopped."""
        steps = read_on(reader, self.retry, random.random, time.monotonic, self.event_patience)
        scope.enter()
        result: Any = None
        error: ClientError | None = None
        try:
            while not scope.stopped:
                try:
                    step = steps.send(result) if error is None else steps.throw(error)
                except StopIteration:
                    return
                result, error = None, None
                if isinstance(step, Batch):
                    yield step
                    continue
                try:
                    result = await self._do_reading(step, scope)
                except ClientClosed:
                    return
                except ClientError as failed:
                    error = failed
        finally:
            scope.let_go()

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Send):
            return await self.send(step.request, step.attempt)
        if isinstance(step, Pause):
            return await self._pause(step, None)
        raise TypeError(f"{step} is a step of readers only")

    async def _do_reading(self, step: Step, scope: "AsyncScope") -> Any:
        match step:
            case Send():
                request = await self._dress(step.request)
                exchange = scope.hold(await self._transport.start(request, step.attempt))
                try:
                    await exchange.whole()
                    return exchange.incoming.answer()
                finally:
                    scope.let_go()
            case Pause():
                return await self._pause(step, scope)
            case Open():
                request = await self._dress(step.request)
                exchange = scope.hold(await self._transport.start(request))
                if not await exchange.head(step.patience):
                    return None
                if exchange.incoming.status == 200:
                    return exchange.incoming.head()
                await exchange.whole()
                return exchange.incoming.answer()
            case Receive():
                return await scope.exchange.take_more(step.patience)
            case Shut():
                return scope.let_go()

    async def _dress(self, request: Request) -> Request:
        dressing = self.dressing
        if not dressing.applies_to(request):
            return request
        headers = {
            name: await _async_value(name, value) for name, value in dressing.headers.items()
        }
        params = {name: await _async_value(name, value) for name, value in dressing.params.items()}
        return dressed(request, headers, params)

    async def _pause(self, step: Pause, scope: "AsyncScope | None") -> None:
        if self.on_retry is not None:
            self.on_retry(step.error, step.seconds)
        if scope is not None:
            await scope.wait(step.seconds)
        else:
            import asyncio

            await asyncio.sleep(step.seconds)
        if self._transport.closed:
            raise ClientClosed(step.error.url)


async def _async_value(name: str, value: Any) -> str:
    given = value() if callable(value) else value
    if isinstance(given, Awaitable):
        given = await given
    return as_header(name, given)
