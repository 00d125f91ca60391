"""Following a run over HTTP: through the client, with whatever goes with each of its requests."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from headwater.client import Client
from headwater.errors import HeadwaterError
from headwater.runs.events import event_to_wire
from headwater.runs.tailing import follow
from tests.suites.run_steps import as_stored, numbered


@contextmanager
def guarded(token: str) -> Iterator[str]:
    """A server that shows one event of a run on each connection to those who have a token."""
    events = [msgspec.json.encode(event_to_wire(each)) for each in as_stored(numbered(3))]
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection:
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += connection.recv(65536)
            if f"authorization: bearer {token}\r\n".encode() not in asked.lower():
                connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                return
            after = int(asked.partition(b"after=")[2].partition(b"&")[0])
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
                b"event: run-event\ndata: %b\n\n" % events[after]
            )

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(60)


def test_credentials_go_with_every_connection() -> None:
    with guarded("secret") as url, Client(url, auth="secret") as client:
        following = follow(client, "run-001")
        assert [next(following).run_seq for _ in range(3)] == [1, 2, 3]


def test_what_the_server_refuses_is_told_at_once() -> None:
    with (
        guarded("secret") as url,
        Client(url) as client,
        pytest.raises(HeadwaterError, match="401"),
    ):
        next(follow(client, "run-001"))
