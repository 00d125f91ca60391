"""What all connections of one listening server share.

Answers go out together at the end of a turn of the loop. Time limits are deadlines that a regular
sweep sets and looks at, not timers: a request that is answered at once never touches the clock.
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
"""Deadlines: there is none, and the next sweep sets one."""


class Connection(Protocol):
    """A connection, as the wire sees it."""

    deadline: float

    def flush(self) -> None:
        """Hand what is to be sent to the transport."""

    def allowance(self) -> float:
        """Say how many seconds the present state of the connection may last."""

    def timed_out(self, now: float) -> None:
        """Act on a deadline that has passed."""

    def close_when_idle(self) -> None:
        """Close now, or once what has arrived is answered."""

    def abort(self) -> None:
        """Close at once, whatever is under way."""


class Endpoint:
    """The connections, what they count together, and what they know together."""

    def __init__(self, app: Application) -> None:
        self.handle = app.handle
        self.settings = app.settings
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.heads = HeadCache()
        self.admission = app.admission
        self.stopping = False
        self.log_access = access_log.isEnabledFor(logging.DEBUG)
        self._app = app
        self._unsent: list[Connection] = []
        self._fixed = b"".join(b"%b: %b\r\n" % item for item in app.common_headers)
        self.common = b""
        """The header lines that all responses of this second share."""
        self._refresh_date()

    def _refresh_date(self) -> None:
        self.common = b"date: %b\r\n%b" % (formatdate(usegmt=True).encode(), self._fixed)

    def send_soon(self, connection: Connection) -> None:
        """Have a connection's answers sent at the end of this turn of the loop.

        All requests that arrived together are answered first, then all answers go out together:
        clients on the same machine are woken once instead of once for each.
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
        """Set the deadlines of what began since the last sweep, act on those that have passed."""
        self._refresh_date()
        now = self.loop.time()
        for connection in tuple(self.connections):
            if connection.deadline == TO_BE_SET:
                connection.deadline = now + connection.allowance()
            elif connection.deadline <= now:
                connection.timed_out(now)

    def stop(self) -> None:
        """Close idle connections now, the others once they have answered."""
        self.stopping = True
        self._app.drain()
        for connection in tuple(self.connections):
            connection.close_when_idle()
