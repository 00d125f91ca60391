"""What the connections of one listener share.

Responses are written together at the end of a turn of the loop. Time limits are deadlines that a
periodic sweep sets and checks, not timers: a request that is answered at once never reads the
clock.
"""

import asyncio
import logging
from email.utils import formatdate
from typing import Final, Protocol

from headwater.server.app import Application
from headwater.server.http1.head_cache import HeadCache

access_log: Final = logging.getLogger("headwater.access")

NEVER: Final = float("inf")
TO_BE_SET: Final = 0.0
"""Deadlines: there is none, and the next sweep has to set one."""


class EndpointConnection(Protocol):
    """A connection, as its endpoint sees it."""

    deadline: float

    def flush(self) -> None:
        """Write what is queued to the transport."""

    def allowance(self) -> float:
        """Return how many seconds the current state of the connection may last."""

    def timed_out(self, now: float) -> None:
        """Act on a deadline that has passed."""

    def close_when_idle(self) -> None:
        """Close now, or once every complete request is answered."""

    def abort(self) -> None:
        """Close at once, without finishing requests in progress."""


class Endpoint:
    """The connections of one listener, with the state that they share."""

    def __init__(self, app: Application) -> None:
        self.handle = app.handle
        self.settings = app.settings
        self.loop = asyncio.get_running_loop()
        self.connections: set[EndpointConnection] = set()
        self.heads = HeadCache()
        self.admission = app.admission
        self.stopping = False
        self.log_access = access_log.isEnabledFor(logging.DEBUG)
        self._app = app
        self._unsent: list[EndpointConnection] = []
        self._fixed = b"".join(b"%b: %b\r\n" % item for item in app.common_headers)
        self.common = b""
        """The header lines common to all responses of this second."""
        self._refresh_date()

    def _refresh_date(self) -> None:
        self.common = b"date: %b\r\n%b" % (formatdate(usegmt=True).encode(), self._fixed)

    def send_soon(self, connection: EndpointConnection) -> None:
        """Schedule a connection's flush for the end of this turn of the loop.

        All requests that arrived together are handled first, then all responses are written:
        a client on the same machine is woken once, not once per response.
        """
        if not self._unsent:
            self.loop.call_soon(self._send_all)
        self._unsent.append(connection)

    def _send_all(self) -> None:
        unsent = self._unsent
        self._unsent = []
        for connection in unsent:
            connection.flush()

    def sweep(self) -> None:
        """Set the deadlines that are due to be set, and act on those that have passed."""
        self._refresh_date()
        now = self.loop.time()
        for connection in tuple(self.connections):
            if connection.deadline == TO_BE_SET:
                connection.deadline = now + connection.allowance()
            elif connection.deadline <= now:
                connection.timed_out(now)

    def stop(self) -> None:
        """Close idle connections now, and the others once their requests are answered."""
        self.stopping = True
        self._app.drain()
        for connection in tuple(self.connections):
            connection.close_when_idle()
