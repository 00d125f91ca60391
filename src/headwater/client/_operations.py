"""Operations as generators of steps, without I/O, and how a client's methods are made of them.

An operation yields steps, and is sent their results or has their errors thrown in. `Client`
executes a step by blocking, `AsyncClient` by awaiting. So the order of the steps, the retries and
the meaning of every response are written once.

`operation` and `listing` turn such a generator function into a method. In a class of `Client` the
method blocks, in a class of `AsyncClient` it is a coroutine function or an asynchronous iterator;
a class of `AsyncClient` inherits from `Asynchronous`.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from functools import update_wrapper, wraps
from types import FunctionType, GenericAlias, MethodType, NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from msgspec import Struct

from headwater.client._calls import Call
from headwater.client._http1 import Request, Response, origin_of
from headwater.client._reader import Reader
from headwater.client._retry import Retry
from headwater.client._values import Batch
from headwater.errors import ClientError, ConnectionLost

if TYPE_CHECKING:
    from headwater.client._client import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")

EVENT_PATIENCE: Final = 5.0
"""Seconds to wait for the first control event, which servers send at once."""


class Step(Struct, frozen=True):
    """An action that an operation asks its client for."""


class Send(Step, frozen=True):
    """Send a request and wait for the whole response; the result is a `Response`."""

    request: Request
    attempt: int = 0


class Open(Step, frozen=True):
    """Send a request and wait for the head of the response; the result is a `Response`.

    The result is None if nothing arrived for `patience` seconds. A response other than 200 is
    received whole.
    """

    request: Request
    patience: float


class Receive(Step, frozen=True):
    """Wait for more of the open response; the result is bytes, empty at its end.

    The result is None if nothing arrived for `patience` seconds.
    """

    patience: float | None = None


class Close(Step, frozen=True):
    """Close the open response."""


class Pause(Step, frozen=True):
    """Wait before the next attempt; `error` is why the last one failed."""

    seconds: float
    error: ClientError


class Invoke(Step, frozen=True):
    """Call a function that may block; for an asynchronous client it is a coroutine function."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


class Advance(Step, frozen=True):
    """Wait for the next batch of a read; the result is None at its end."""

    batches: Any


Steps = Generator[Step, Any, T]
"""An operation that returns a `T`."""

Items = Generator[Step | T, Any, None]
"""An operation that yields steps and, between them, items of the type `T`."""

Clock = Callable[[], float]
Jitter = Callable[[], float]


def run_call(call: Call[T], retry: Retry, jitter: Jitter) -> Steps[T]:
    """Send a request, and again after failures as far as that is safe and `retry` allows."""
    attempt = 0
    while True:
        try:
            response: Response = yield Send(call.request, attempt)
            return call.interpret(response)
        except ClientError as error:
            failed = error
        delay = retry.delay(failed, attempt, jitter(), repeatable=call.request.repeatable)
        if delay is None:
            raise failed
        yield Pause(delay, failed)
        attempt += 1


def read_stream(
    reader: Reader, retry: Retry, jitter: Jitter, clock: Clock, patience: float = EVENT_PATIENCE
) -> Items[Batch]:
    """Catch up and, if the reader follows, stay live; yields steps and batches."""
    while not reader.done:
        if reader.streams:
            yield from _follow_events(reader, retry, jitter, clock, patience)
        else:
            call = Call(reader.request(), reader.take)
            batch: Batch | None = yield from run_call(call, retry, jitter)
            if batch is not None:
                yield batch


def _follow_events(
    reader: Reader, retry: Retry, jitter: Jitter, clock: Clock, patience: float
) -> Items[Batch]:
    """Follow by SSE, one connection after another, until the reader changes to long-poll."""
    attempt = 0
    while _wants_events(reader):
        request = reader.events_request()
        failed: ClientError | None = None
        has_position = False
        began = clock()
        try:
            response: Response | None = yield Open(request, patience)
            events = reader.open_events(response) if response is not None else None
            while events is not None:
                piece: bytes | None = yield Receive(None if events.has_position else patience)
                if piece is None:
                    events = None
                    break
                if not piece:
                    break
                yield from events.feed(piece)
                # Only a control event counts as progress: connections that end at once without
                # one must not be opened forever.
                has_position = has_position or events.has_position
            if events is None:
                # Servers send a control event at once, so a proxy is buffering the events.
                reader.use_long_poll()
        except ClientError as error:
            failed = error
        yield Close()
        if not _wants_events(reader):
            return
        attempt = 0 if has_position else attempt
        if failed is None and has_position:
            if reader.end_events(clock() - began) and _wants_events(reader):
                # The caller insists on SSE: pause between connections.
                reason = "event streams end as soon as they begin"
                yield Pause(jitter(), ConnectionLost(request.url, origin_of(request.url), reason))
            continue
        if failed is None:
            reason = "the event stream ended before its first control event"
            failed = ConnectionLost(request.url, origin_of(request.url), reason)
        delay = retry.delay(failed, attempt, jitter())
        if delay is None:
            raise failed
        yield Pause(delay, failed)
        attempt += 1


def _wants_events(reader: Reader) -> bool:
    return reader.streams and not reader.done


class Asynchronous:
    """Base of the classes whose operations are awaited."""


class HasClient(Protocol):
    """A `Client`, or something that belongs to one."""

    @property
    def client(self) -> "Client":
        """The client that executes the steps."""


class HasAsyncClient(Protocol):
    """An `AsyncClient`, or something that belongs to one."""

    @property
    def client(self) -> "AsyncClient":
        """The client that executes the steps."""


def _declared(steps: Callable[..., Any], result: Any) -> Callable[..., Any]:
    """Copy a generator function with the result of its method: help() and inspect show the copy."""
    function = cast("FunctionType", steps)
    declared = FunctionType(function.__code__, function.__globals__, function.__name__)
    update_wrapper(declared, function)
    del declared.__dict__["__wrapped__"]
    declared.__defaults__, declared.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    annotations = {**function.__annotations__, "return": None if result is NoneType else result}
    declared.__annotations__ = annotations
    return declared


class operation(Generic[P, T]):  # noqa: N801 - a decorator
    """A method made of a generator of steps; it returns what the generator returns."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        declared = _declared(steps, steps.__annotations__["return"].__args__[-1])

        @wraps(declared)
        def call(self: HasClient, *args: P.args, **kwargs: P.kwargs) -> T:
            return self.client._perform(steps(self, *args, **kwargs))

        @wraps(declared)
        async def call_async(self: HasAsyncClient, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self.client._perform(steps(self, *args, **kwargs))

        self._call, self._call_async = call, call_async

    @overload
    def __get__(self, target: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, target: HasClient, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, target: HasAsyncClient, owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, target: object, owner: type) -> Any:
        function = self._call_async if issubclass(owner, Asynchronous) else self._call
        return function if target is None else MethodType(function, target)


class listing(Generic[P, T]):  # noqa: N801 - a decorator
    """A method made of a generator of steps and items; it iterates over the items."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Items[T]]) -> None:
        item = steps.__annotations__["return"].__args__[0].__args__[-1]

        @wraps(_declared(steps, GenericAlias(Iterator, item)))
        def call(self: HasClient, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return self.client._iterate(steps(self, *args, **kwargs))

        @wraps(_declared(steps, GenericAlias(AsyncIterator, item)))
        def call_async(self: HasAsyncClient, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
            return self.client._iterate(steps(self, *args, **kwargs))

        self._call, self._call_async = call, call_async

    @overload
    def __get__(self, target: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, target: HasClient, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, target: HasAsyncClient, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, target: object, owner: type) -> Any:
        function = self._call_async if issubclass(owner, Asynchronous) else self._call
        return function if target is None else MethodType(function, target)
