"""A TCP proxy that breaks connections on demand, for tests of what a client does then."""

import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self
from urllib.parse import urlsplit

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_HEAD: Final = re.compile(rb"^[A-Z]+ [^\r\n]* HTTP/1\.1\r\n.*?\r\n\r\n", re.MULTILINE | re.DOTALL)


class Proxy:
    """Stands between a client and a server; `url` is where clients connect."""

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._lost_answers = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        """How many connections clients have made."""
        self.answer_bytes: int | None = None
        """How many bytes of answers a connection carries before it breaks."""
        self.down = False
        """Whether new connections are broken at once."""
        self.before_request: Callable[[bytes], None] | None = None
        """Hears what a client sends before the server does, which waits for it meanwhile."""
        self._heard: list[bytearray] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone would leave the thread in `accept`.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.cut()
        for pair in self._pairs:
            pair.join()

    def cut(self) -> None:
        """Break all connections that there are."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.cut()

    def lose_answers(self, count: int) -> None:
        """Let the next requests through to the server, but break instead of answering."""
        self._lost_answers = count

    @property
    def requests(self) -> list[bytes]:
        """The heads of all requests that clients have sent."""
        with self._lock:
            return [head for heard in self._heard for head in _HEAD.findall(bytes(heard))]

    def listen(self) -> bytearray:
        """Begin to keep what one connection sends."""
        heard = bytearray()
        with self._lock:
            self._heard.append(heard)
        return heard

    def loses_this_answer(self) -> bool:
        with self._lock:
            if self._lost_answers == 0:
                return False
            self._lost_answers -= 1
            return True

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.down:
                _reset(client)
                continue
            pair = _Pair(self, client, socket.create_connection(self._upstream))
            with self._lock:
                self._pairs.append(pair)
            pair.start()


class _Pair:
    """One client's connection, and ours to the server for it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._open = 2
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._carry_requests, daemon=True),
            threading.Thread(target=self._carry_answers, daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Break both sides; the threads notice and close."""
        for sock in (self._client, self._server):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _carry_requests(self) -> None:
        heard = self._proxy.listen()
        with suppress(OSError):
            while data := self._client.recv(65536):
                heard += data
                if self._proxy.before_request is not None:
                    self._proxy.before_request(data)
                self._server.sendall(data)
        self._end()

    def _carry_answers(self) -> None:
        left = self._proxy.answer_bytes
        with suppress(OSError):
            while data := self._server.recv(65536):
                if self._proxy.loses_this_answer():
                    break
                self._client.sendall(data if left is None else data[:left])
                if left is not None:
                    left -= len(data)
                    if left <= 0:
                        break
        self._end()

    def _end(self) -> None:
        """Shut both sides; the second thread to end closes them."""
        self.cut()
        with self._lock:
            self._open -= 1
            if self._open:
                return
        self._client.close()
        self._server.close()


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    sock.close()
