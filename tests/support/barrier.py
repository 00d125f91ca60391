"""Waiting until a server has seen what it was sent, instead of for some time.

What a test sends over the loopback lies in the server's socket when `send` returns, and the loop of
the server serves its sockets in the order in which they became ready. So once it has answered a
later request, it has read the earlier ones on all connections, and acted on them as far as it can
without waiting.
"""

from http.client import HTTPConnection
from typing import Final

_HANG_SECONDS: Final = 60.0


def barrier(port: int, rounds: int = 3) -> None:
    """Return once a server has read everything that it was sent before."""
    for _ in range(rounds):
        connection = HTTPConnection("127.0.0.1", port, timeout=_HANG_SECONDS)
        try:
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
        finally:
            connection.close()
