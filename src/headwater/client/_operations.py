"""What a client does step by step, without I/O.

An operation is a generator: it yields the steps that it wants done and is sent their results, or
has their errors thrown in. `Client` does the steps by blocking, `AsyncClient` by awaiting; the
order of the steps, the retries and the meaning of every answer are here, once.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from msgspec import Struct

from headwater.client._calls import Call
from headwater.client._http1 import Request, Response, origin_of
from headwater.client._reader import Reader
from headwater.client._retry import Retry
from headwater.client._values import Batch
from headwater.errors import ClientError, ConnectionLost

T = TypeVar("T")

EVENT_PATIENCE: Final = 5.0
"""Seconds that an event stream may take to say where it stands, which servers do at once."""


class Send(Struct, frozen=True):
    """Send a request and wait for the whole answer; the result is an `Response`."""

    request: Request
    attempt: int = 0


class Open(Struct, frozen=True):
    """Send a request and wait for the head of the answer; the result is an `Response`.

    None stands for silence longer than `patience`.
    """

    request: Request
    patience: float


class Receive(Struct, frozen=True):
    """Wait for more of the open answer; the result is bytes, empty at its end.

    None stands for silence longer than `patience`.
    """

    patience: float | None = None


class Shut(Struct, frozen=True):
    """Let go of the open answer."""


class Pause(Struct, frozen=True):
    """Wait before the next attempt; the error is the one that makes it necessary."""

    seconds: float
    error: ClientError


Step = Send | Open | Receive | Shut | Pause
Steps = Generator[Step, Any, T]

Clock = Callable[[], float]
Jitter = Callable[[], float]


def carry_out(call: Call[T], retry: Retry, jitter: Jitter) -> Steps[T]:
    """Send a request until an answer settles it, as often as that is safe."""
    attempt = 0
    while True:
        try:
            answer: Response = yield Send(call.request, attempt)
            return call.interpret(answer)
        except ClientError as error:
            failed = error
        delay = retry.delay(failed, attempt, jitter(), repeatable=call.request.repeatable)
        if delay is None:
            raise failed
        yield Pause(delay, failed)
        attempt += 1


def read_on(
    reader: Reader, retry: Retry, jitter: Jitter, clock: Clock, patience: float = EVENT_PATIENCE
) -> Generator[Step | Batch, Any, None]:
    """Catch up and, where the reader is to follow, stay live; the batches come between steps."""
    while not reader.done:
        if reader.streams:
            yield from _follow_events(reader, retry, jitter, clock, patience)
        else:
            batch: Batch | None = yield from carry_out(
                Call(reader.request(), reader.take), retry, jitter
            )
            if batch is not None:
                yield batch


def _follow_events(
    reader: Reader, retry: Retry, jitter: Jitter, clock: Clock, patience: float
) -> Generator[Step | Batch, Any, None]:
    """Follow through SSE, one connection after another, as long as that works."""
    attempt = 0
    while _wants_events(reader):
        request = reader.events_request()
        failed: ClientError | None = None
        told = False
        began = clock()
        try:
            answer: Response | None = yield Open(request, patience)
            events = reader.open_events(answer) if answer is not None else None
            while events is not None:
                piece: bytes | None = yield Receive(None if events.told else patience)
                if piece is None:
                    events = None
                    break
                if not piece:
                    break
                yield from events.feed(piece)
                # Only what has told a position is progress; else an endless loop of connections
                # that end at once would never be given up.
                told = told or events.told
            if events is None:
                # Servers say at once where the stream stands: something holds it back.
                reader.give_up_events()
        except ClientError as error:
            failed = error
        yield Shut()
        if not _wants_events(reader):
            return
        attempt = 0 if told else attempt
        if failed is None and told:
            if reader.end_events(clock() - began) and _wants_events(reader):
                # Told to use events whatever happens: not without a pause between them.
                reason = "event streams end as soon as they begin"
                yield Pause(jitter(), ConnectionLost(request.url, origin_of(request.url), reason))
            continue
        if failed is None:
            reason = "it ended before it told anything"
            failed = ConnectionLost(request.url, origin_of(request.url), reason)
        delay = retry.delay(failed, attempt, jitter())
        if delay is None:
            raise failed
        yield Pause(delay, failed)
        attempt += 1


def _wants_events(reader: Reader) -> bool:
    return reader.streams and not reader.done
