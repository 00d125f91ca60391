"""Responses sent from files to the socket with `sendfile`, bypassing the transport.

While the write buffer of the transport is empty, bytes written to the socket directly can't
overtake any. The loop does not allow a second user of the transport's descriptor, so the sender
duplicates it.
"""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from headwater.storage.file_ranges import FileRange, Part, Truncated

_MORE: Final = getattr(socket, "MSG_MORE", 0)
_NOT_OFFERED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a system or a file system that does not support `sendfile`."""
_COPIED_BYTES: Final = 256 * 1024


class FileSender:
    """Sends one response."""

    __slots__ = ("_copies", "_done", "_loop", "_parts", "_socket", "_waiting", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._socket = _duplicate(transport.get_extra_info("socket").fileno())
        self._copies = False
        """Whether files are read and copied, because `sendfile` is not supported."""
        self._parts: deque[Part] = deque()
        self._done: Callable[[OSError | None], None] | None = None
        self._waiting = False
        self.left = 0
        """Bytes that the system has not accepted yet."""

    def start(self, parts: Sequence[Part], done: Callable[[OSError | None], None]) -> None:
        """Send parts in order; `done` is called in a later turn of the loop."""
        self._parts.extend(parts)
        self.left = sum(map(len, parts))
        self._done = done
        self._send()

    def _send(self) -> None:
        error: OSError | None = None
        try:
            if not self._sent_all():
                self._wait()
                return
        except OSError as failure:
            # Its traceback refers to the frames here, and would keep files open until it is freed.
            error = failure.with_traceback(None)
        self._stop_waiting()
        self._parts.clear()
        self.left = 0
        # In a later turn: other connections are served before the next response on this one.
        self._loop.call_soon(self._report, error)

    def _report(self, error: OSError | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(error)

    def _sent_all(self) -> bool:
        """Send as much as the system accepts; return whether that was everything."""
        while self._parts:
            part = self._parts[0]
            rest: Part
            try:
                if isinstance(part, FileRange):
                    sent = self._send_range(part)
                    rest = part.after(sent)
                else:
                    sent = self._socket.send(part, _MORE if len(self._parts) > 1 else 0)
                    rest = memoryview(part)[sent:]
            except BlockingIOError:
                return False
            self.left -= sent
            if rest:
                self._parts[0] = rest
            else:
                self._parts.popleft()
        return True

    def _send_range(self, part: FileRange) -> int:
        if self._copies:
            return self._socket.send(part.first(_COPIED_BYTES).read())
        try:
            sent = os.sendfile(self._socket.fileno(), part.fd, part.position, len(part))
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
            self._copies = True
            return self._send_range(part)
        if not sent:
            raise Truncated
        return sent

    def _wait(self) -> None:
        if not self._waiting:
            self._loop.add_writer(self._socket.fileno(), self._send)
            self._waiting = True

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._socket.fileno())

    def close(self) -> None:
        """Release the socket and the files; `done` is not called."""
        self._stop_waiting()
        self._parts.clear()
        self._done = None
        self._socket.close()


def _duplicate(fd: int) -> socket.socket:
    copy = os.dup(fd)
    try:
        duplicate = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    duplicate.setblocking(False)
    return duplicate
