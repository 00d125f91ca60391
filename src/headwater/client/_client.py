"""The two clients, which execute the steps of all operations: one blocks, the other awaits."""

import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from headwater.client import _calls
from headwater.client._auth import (
    AsyncValue,
    Auth,
    Value,
    check_value,
    make_defaults,
    with_defaults,
)
from headwater.client._calls import (
    NOW,
    SPLIT_BYTES,
    START,
    Call,
    Changed,
    ListedStream,
    SplitPoints,
)
from headwater.client._http1 import Request, Response, stream_url
from headwater.client._operations import (
    EVENT_PATIENCE,
    Advance,
    Asynchronous,
    Close,
    Invoke,
    Items,
    Open,
    Pause,
    Receive,
    Send,
    Step,
    Steps,
    listing,
    operation,
    read_stream,
    run_call,
)
from headwater.client._reader import Reader
from headwater.client._retry import Retry
from headwater.client._stream import AsyncStream, Stream
from headwater.client._subscriptions import AsyncSubscriptions, Subscriptions
from headwater.client._transport import Exchange, Scope, Timeouts, Transport
from headwater.client._values import Batch
from headwater.errors import ClientClosed, ClientError
from headwater.protocol.paths import DEFAULT_ROOT, DEFAULT_URL

if TYPE_CHECKING:
    import ssl

    from headwater.client._async_transport import AsyncScope

T = TypeVar("T")
V = TypeVar("V")

TIMEOUT: Final = 30.0
LIVE_TIMEOUT: Final = 90.0


class BaseClient(Generic[V]):
    """The options and operations of both clients; `V` is what a header's value may be."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        headers: Mapping[str, V] | None = None,
        params: Mapping[str, V] | None = None,
        auth: Auth | None = None,
        retry: Retry | None = None,
        timeout: float = TIMEOUT,
        live_timeout: float = LIVE_TIMEOUT,
        event_patience: float = EVENT_PATIENCE,
        root: str = DEFAULT_ROOT,
        tls: "ssl.SSLContext | None" = None,
        on_retry: Callable[[ClientError, float], None] | None = None,
    ) -> None:
        """Create a client; it connects with the first request.

        `headers` and `params` are added to every request to this server; a value may be a function,
        which is called for each attempt. `auth` is a bearer token, a tuple of user and password, or
        a function that returns a token. `timeout` is how many seconds to wait for a connection or a
        response. A live read that receives nothing for `live_timeout` seconds is requested again;
        servers end a long-poll after about 30 seconds, and an event stream after about 60. An event
        stream that sends nothing within `event_patience` seconds is being buffered by a proxy, and
        is replaced by long-poll. `on_retry` is called before each further attempt, with the error
        and the seconds until then.
        """
        self.defaults = make_defaults(base_url, headers, params, auth)
        self.base_url = base_url
        self.root = root
        self.retry = retry or Retry()
        self.timeouts = Timeouts(timeout, live_timeout)
        self.event_patience = event_patience
        self.tls = tls
        self.on_retry = on_retry
        self._set_up()

    def _set_up(self) -> None:
        """Create the transport."""
        raise NotImplementedError

    def _steps(self, call: Call[T]) -> Steps[T]:
        """Return the steps of a call; requests that are safe to repeat are repeated."""
        return run_call(call, self.retry, random.random)

    def _read_steps(self, reader: Reader) -> Items[Batch]:
        """Return the steps and batches of a read."""
        return read_stream(reader, self.retry, random.random, time.monotonic, self.event_patience)

    @listing
    def streams(self, glob: str = "**") -> Items[ListedStream]:
        """List the streams whose paths match a glob, in the order of paths.

        A segment of the glob may be `*`, for any one segment, or `**`, for any number of them.
        """
        after: str | None = ""
        while after is not None:
            call = _calls.streams(self.base_url, glob, after, root=self.root)
            page = yield from self._steps(call)
            yield from page.streams
            after = page.next

    @operation
    def splits(
        self, path: str, start: str = START, end: str = NOW, *, size: int = SPLIT_BYTES
    ) -> Steps[list[str]]:
        """Split a range of a stream into pieces of about `size` bytes, at message boundaries.

        Returns the offsets from the beginning of the range to its end: one more than pieces.
        """
        offsets: list[str] = []
        next_start: str | None = start
        while next_start is not None:
            call = _calls.splits(self.base_url, path, next_start, end, size, root=self.root)
            page = yield from self._steps(call)
            offsets += page.offsets[1:] if offsets else page.offsets
            next_start = page.next
        return offsets

    @operation
    def split_page(
        self,
        path: str,
        start: str = START,
        end: str = NOW,
        *,
        size: int = SPLIT_BYTES,
        limit: int = _calls.PAGE,
    ) -> Steps[SplitPoints]:
        """Return at most `limit` split points of a range, with the stream's metadata."""
        call = _calls.splits(self.base_url, path, start, end, size, limit, root=self.root)
        return (yield from self._steps(call))

    @operation
    def changes(self, *globs: str, after: str = "", wait: float = 20.0) -> Steps[Changed]:
        """Wait up to `wait` seconds until a stream that matches one of the globs changes.

        Call it once without a cursor and read the streams; then pass the cursor of each result to
        the next call, so that no change is missed.
        """
        call = _calls.changes(self.base_url, globs or ("**",), after, wait, root=self.root)
        return (yield from self._steps(call))


class Client(BaseClient[Value]):
    """A client of one stream server; close it, or use it in a `with` block.

    Paths of streams are relative to `{base_url}{root}`. Several threads may share a client. `close`
    ends the requests in other threads; a `follow` then ends without an error.
    """

    def _set_up(self) -> None:
        self._transport = Transport(self.timeouts, self.tls)
        self._closed = threading.Event()

    @property
    def client(self) -> "Client":
        """The client itself, which executes the steps of its operations."""
        return self

    @property
    def subscriptions(self) -> Subscriptions:
        """The subscriptions of the server."""
        return Subscriptions(self)

    def stream(self, path: str, *, content_type: str | None = None) -> Stream:
        """Return a stream by its path, such as `chat/42`, or by its whole URL; sends no request.

        Pass the content type if it is known: otherwise it is requested before the first append.
        """
        return Stream(self, stream_url(self.base_url, path, self.root), content_type)

    def run(self, call: Call[T]) -> T:
        """Send a call and return its result; a request that is safe to repeat is repeated."""
        return self._perform(self._steps(call))

    def _read(self, reader: Reader, scope: Scope) -> Iterator[Batch]:
        """Iterate over the batches of a read, until it ends or the scope is stopped."""
        return self._iterate(self._read_steps(reader), scope)

    @contextmanager
    def opened(self, request: Request) -> Iterator[Exchange]:
        """Send a request once; the block receives the response as it arrives."""
        exchange = self._transport.start(self._with_defaults(request))
        try:
            yield exchange
        finally:
            exchange.finish()

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_lock(self) -> threading.Lock:
        """Return a lock of the kind that an `Invoke` step can acquire."""
        return threading.Lock()

    def _perform(self, steps: Steps[T]) -> T:
        """Execute the steps of an operation and return its result."""
        resume: Callable[[Any], Step] = steps.send
        result: Any = None
        while True:
            try:
                step = resume(result)
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                resume, result = steps.send, self._do(step, None)
            except BaseException as error:  # noqa: BLE001 - raised again by the operation
                resume, result = steps.throw, error

    def _iterate(self, steps: Items[T], scope: Scope | None = None) -> Iterator[T]:
        """Execute the steps of an operation and yield its items.

        With a scope, it ends without an error when the scope is stopped or the client is closed.
        """
        resume: Callable[[Any], Step | T] = steps.send
        result: Any = None
        try:
            while scope is None or not scope.stopped:
                try:
                    step = resume(result)
                except StopIteration:
                    return
                resume, result = steps.send, None
                if not isinstance(step, Step):
                    yield step
                    continue
                try:
                    result = self._do(step, scope)
                except ClientError as error:
                    if scope is not None and isinstance(error, ClientClosed):
                        return
                    resume, result = steps.throw, error
        finally:
            if scope is not None:
                scope.release()

    def _do(self, step: Step, scope: Scope | None) -> Any:
        match step:
            case Send():
                request = self._with_defaults(step.request)
                return self._transport.send(request, step.attempt, scope)
            case Pause():
                return self._pause(step, scope)
            case Invoke():
                return step.function(*step.args)
            case Advance():
                return next(step.batches, None)
        if scope is None:
            raise TypeError(f"{step} is a step of reads only")
        match step:
            case Open():
                request = self._with_defaults(step.request)
                return self._transport.start(request, 0, scope).open(step.patience)
            case Receive():
                return scope.exchange.receive_more(step.patience)
            case Close():
                return scope.release()
        raise TypeError(f"{step} is not a step")

    def _with_defaults(self, request: Request) -> Request:
        defaults = self.defaults
        if not defaults.applies_to(request):
            return request
        headers = {name: _resolve(name, value) for name, value in defaults.headers.items()}
        params = {name: _resolve(name, value) for name, value in defaults.params.items()}
        return with_defaults(request, headers, params)

    def _pause(self, step: Pause, scope: Scope | None) -> None:
        if self.on_retry is not None:
            self.on_retry(step.error, step.seconds)
        if scope is not None:
            scope.wait(step.seconds)
        else:
            self._closed.wait(step.seconds)
        if self._closed.is_set():
            raise ClientClosed(step.error.url)


class AsyncClient(BaseClient[AsyncValue], Asynchronous):
    """`Client` with awaitable methods, for one event loop; use it in an `async with` block.

    Functions for headers, parameters and tokens may be coroutine functions.
    """

    def _set_up(self) -> None:
        from headwater.client._async_transport import AsyncTransport

        self._transport = AsyncTransport(self.timeouts, self.tls)

    @property
    def client(self) -> "AsyncClient":
        """The client itself, which executes the steps of its operations."""
        return self

    @property
    def subscriptions(self) -> AsyncSubscriptions:
        """The subscriptions of the server."""
        return AsyncSubscriptions(self)

    def stream(self, path: str, *, content_type: str | None = None) -> AsyncStream:
        """Return a stream by its path, such as `chat/42`, or by its whole URL; sends no request.

        Pass the content type if it is known: otherwise it is requested before the first append.
        """
        return AsyncStream(self, stream_url(self.base_url, path, self.root), content_type)

    async def run(self, call: Call[T]) -> T:
        """Send a call and return its result; a request that is safe to repeat is repeated."""
        return await self._perform(self._steps(call))

    def _read(self, reader: Reader, scope: "AsyncScope") -> AsyncIterator[Batch]:
        """Iterate over the batches of a read, until it ends or the scope is stopped."""
        return self._iterate(self._read_steps(reader), scope)

    async def _send(self, request: Request, attempt: int = 0) -> Response:
        """Send a request once."""
        return await self._transport.send(await self._with_defaults(request), attempt)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _make_lock(self) -> Any:
        """Return a lock of the kind that an `Invoke` step can acquire."""
        import asyncio

        return asyncio.Lock()

    def _make_scope(self) -> "AsyncScope":
        """Return the scope of a read."""
        from headwater.client._async_transport import AsyncScope

        return AsyncScope()

    async def _perform(self, steps: Steps[T]) -> T:
        """Execute the steps of an operation and return its result."""
        resume: Callable[[Any], Step] = steps.send
        result: Any = None
        while True:
            try:
                step = resume(result)
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                resume, result = steps.send, await self._do(step, None)
            except BaseException as error:  # noqa: BLE001 - raised again by the operation
                resume, result = steps.throw, error

    async def _iterate(
        self, steps: Items[T], scope: "AsyncScope | None" = None
    ) -> AsyncIterator[T]:
        """Execute the steps of an operation and yield its items.

        With a scope, it ends without an error when the scope is stopped or the client is closed.
        """
        if scope is not None:
            scope.enter()
        resume: Callable[[Any], Step | T] = steps.send
        result: Any = None
        try:
            while scope is None or not scope.stopped:
                try:
                    step = resume(result)
                except StopIteration:
                    return
                resume, result = steps.send, None
                if not isinstance(step, Step):
                    yield step
                    continue
                try:
                    result = await self._do(step, scope)
                except ClientError as error:
                    if scope is not None and isinstance(error, ClientClosed):
                        return
                    resume, result = steps.throw, error
        finally:
            if scope is not None:
                scope.release()

    async def _do(self, step: Step, scope: "AsyncScope | None") -> Any:
        match step:
            case Send():
                request = await self._with_defaults(step.request)
                return await self._transport.send(request, step.attempt, scope)
            case Pause():
                return await self._pause(step, scope)
            case Invoke():
                return await step.function(*step.args)
            case Advance():
                return await anext(step.batches, None)
        if scope is None:
            raise TypeError(f"{step} is a step of reads only")
        match step:
            case Open():
                request = await self._with_defaults(step.request)
                exchange = await self._transport.start(request, 0, scope)
                return await exchange.open(step.patience)
            case Receive():
                return await scope.exchange.receive_more(step.patience)
            case Close():
                return scope.release()
        raise TypeError(f"{step} is not a step")

    async def _with_defaults(self, request: Request) -> Request:
        defaults = self.defaults
        if not defaults.applies_to(request):
            return request
        headers = {name: await _resolve_async(name, v) for name, v in defaults.headers.items()}
        params = {name: await _resolve_async(name, v) for name, v in defaults.params.items()}
        return with_defaults(request, headers, params)

    async def _pause(self, step: Pause, scope: "AsyncScope | None") -> None:
        import asyncio

        if self.on_retry is not None:
            self.on_retry(step.error, step.seconds)
        if scope is not None:
            await scope.wait(step.seconds)
        else:
            await asyncio.sleep(step.seconds)
        if self._transport.closed:
            raise ClientClosed(step.error.url)


def _resolve(name: str, value: Any) -> str:
    return check_value(name, value() if callable(value) else value)


async def _resolve_async(name: str, value: Any) -> str:
    resolved = value() if callable(value) else value
    if isinstance(resolved, Awaitable):
        resolved = await resolved
    return check_value(name, resolved)
