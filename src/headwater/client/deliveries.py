"""What became of an item: parcels are acknowledged as a whole, and their items with them."""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

from headwater.client.values import Appended
from headwater.errors import ClientError

_LOG = logging.getLogger("headwater.client")
_SETTLING = threading.Lock()
"""Guards the short moment between looking whether a parcel is settled and waiting for it."""


class Parcel:
    """The items of one append."""

    __slots__ = (
        "_callbacks",
        "_error",
        "_result",
        "body",
        "close",
        "count",
        "due",
        "failures",
        "in_doubt",
        "messages",
        "not_before",
        "overtook",
        "sent_alone",
        "seq",
        "settled",
        "size",
        "was_sent",
    )

    def __init__(self, due: float) -> None:
        self.due = due
        """When it is sent even if it is not full."""
        self.messages: list[bytes] = []
        self.size = 0
        self.count = 0
        self.seq = -1
        self.body: bytes | None = None
        self.close = False
        self.was_sent = False
        self.sent_alone = False
        """Whether all before it were acknowledged when it was sent."""
        self.overtook = False
        """Whether it once came to the server before another."""
        self.in_doubt = False
        """Whether it may have been appended although no answer said so."""
        self.failures = 0
        self.not_before = 0.0
        self.settled = False
        self._result: Appended | None = None
        self._error: ClientError | None = None
        self._callbacks: list[Callable[[], object]] = []

    def settle(self, result: Appended | None, error: ClientError | None) -> None:
        """Decide what became of it, and tell everyone who waits."""
        with _SETTLING:
            self._result, self._error, self.settled = result, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _tell(callback)

    def when_settled(self, callback: Callable[[], object]) -> None:
        """Call back once it is decided, which may be at once."""
        with _SETTLING:
            if not self.settled:
                self._callbacks.append(callback)
                return
        _tell(callback)

    def outcome(self) -> Appended:
        """Give the acknowledgement, or raise what went wrong."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise LookupError("it is not decided yet")
        return self._result

    def error(self) -> ClientError | None:
        """Give what went wrong."""
        return self._error


def _tell(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - a user's callback must not stop the producer
        _LOG.exception("A callback of a producer failed")


class Delivery:
    """The future of one item: settled when the server has acknowledged it, or it has failed."""

    __slots__ = ("_parcel",)

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def done(self) -> bool:
        """Tell whether it is decided."""
        return self._parcel.settled

    def result(self, timeout: float | None = None) -> Appended:
        """Wait for the acknowledgement; raises what went wrong, or TimeoutError."""
        if not self._parcel.settled:
            settled = threading.Event()
            self._parcel.when_settled(settled.set)
            if not settled.wait(timeout):
                raise TimeoutError(f"no acknowledgement within {timeout} seconds")
        return self._parcel.outcome()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait, and give what went wrong or None."""
        try:
            self.result(timeout)
        except ClientError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[["Delivery"], object]) -> None:
        """Call back once it is decided, in the producer's thread."""
        self._parcel.when_settled(lambda: callback(self))


class AsyncDelivery:
    """The same for `await`."""

    __slots__ = ("_parcel",)

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def done(self) -> bool:
        """Tell whether it is decided."""
        return self._parcel.settled

    def __await__(self) -> Generator[Any, None, Appended]:
        return self._wait().__await__()

    def add_done_callback(self, callback: Callable[["AsyncDelivery"], object]) -> None:
        """Call back once it is decided."""
        self._parcel.when_settled(lambda: callback(self))

    async def _wait(self) -> Appended:
        if not self._parcel.settled:
            settled = asyncio.Event()
            self._parcel.when_settled(settled.set)
            await settled.wait()
        return self._parcel.outcome()
