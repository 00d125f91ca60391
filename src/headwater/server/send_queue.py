"""What was sent to a client that it has not taken yet, and whether it takes any of it.

The transport knows what the system has not accepted. What the system has accepted waits in the
socket, by the megabyte, and a transport hears of room there only once a third of it is free: a slow
reader would seem to stand still for minutes. Linux tells that part as well.
"""

import asyncio
import struct
import sys

if sys.platform == "linux":
    from fcntl import ioctl
    from termios import TIOCOUTQ

    def _in_socket(transport: asyncio.Transport) -> int:
        sock = transport.get_extra_info("socket")
        try:
            count: int = struct.unpack("i", ioctl(sock.fileno(), TIOCOUTQ, bytes(4)))[0]
        except (AttributeError, OSError):  # no socket, not of this kind, or closed already
            return 0
        return count
else:

    def _in_socket(_: asyncio.Transport) -> int:
        return 0


class SendQueue:
    """What lies between the server and one client, looked at from time to time."""

    __slots__ = ("_moved", "_transport", "untaken")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._moved = 0.0
        self.untaken = 0
        """Bytes that waited at the last look."""

    def watch(self, now: float, more: int = 0) -> None:
        """Begin to look; `more` bytes are on their way past the transport."""
        self.untaken = self._count() + more
        self._moved = now

    def look(self, now: float, more: int = 0) -> float:
        """Look again, and say for how many seconds the client has taken nothing."""
        untaken = self._count() + more
        if untaken < self.untaken:
            self._moved = now
        self.untaken = untaken
        return now - self._moved

    def _count(self) -> int:
        return self._transport.get_write_buffer_size() + _in_socket(self._transport)
