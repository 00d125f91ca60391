"""Sending an answer whose bytes still lie in files: from file to socket, past the transport.

Where its send queue is empty, the transport has nothing to say about the order of bytes, and they
can go to the socket beside it (`sendfile`). That needs a descriptor of its own in the loop, since
the transport's belongs to the transport.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from headwater.storage.store import FileRange, Part

_MORE: Final = getattr(socket, "MSG_MORE", 0)


class Truncated(OSError):
    """A file ended before its bytes did: the answer can't be finished."""


class FileSender:
    """Sends one answer at a time; one belongs to one connection."""

    __slots__ = ("_done", "_loop", "_parts", "_socket", "_waiting", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setblocking(False)
        self._parts: deque[Part] = deque()
        self._done: Callable[[OSError | None], None] | None = None
        self._waiting = False
        self.left = 0
        """Bytes that the system has not taken yet."""

    def start(self, parts: Sequence[Part], done: Callable[[OSError | None], None]) -> None:
        """Send parts one after another; `done` may be told at once."""
        self._parts.extend(parts)
        self.left = sum(map(len, parts))
        self._done = done
        self._send()

    def _send(self) -> None:
        error: OSError | None = None
        try:
            while self._parts:
                self._send_first()
        except BlockingIOError:
            if not self._waiting:
                self._waiting = True
                self._loop.add_writer(self._socket.fileno(), self._send)
            return
        except OSError as failure:
            error = failure
        self._stop_waiting()
        self._parts.clear()
        self.left = 0
        done, self._done = self._done, None
        if done is not None:
            done(error)

    def _send_first(self) -> None:
        """Send what the system takes of the first part."""
        part = self._parts.popleft()
        rest: Part
        try:
            if isinstance(part, FileRange):
                sent = os.sendfile(self._socket.fileno(), part.fd, part.position, len(part))
                if not sent:
                    raise Truncated
                rest = part.behind(sent)
            else:
                sent = self._socket.send(part, _MORE if self._parts else 0)
                rest = memoryview(part)[sent:]
        except BlockingIOError:
            self._parts.appendleft(part)
            raise
        self.left -= sent
        if rest:
            self._parts.appendleft(rest)

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._socket.fileno())

    def close(self) -> None:
        """Let go of everything; `done` is not told."""
        self._stop_waiting()
        self._parts.clear()
        self._done = None
        self._socket.close()
