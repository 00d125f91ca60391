"""A server that plays back fixed replies."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.wire import HOST


@contextmanager
def replying(replies: Sequence[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Answer each request of one connection with the next reply, then close the connection."""
    requests: list[bytes] = []
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                for reply in replies:
                    requests.append(connection.recv(4096))
                    connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], requests
        finally:
            thread.join(5)
