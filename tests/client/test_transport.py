"""Connections: reused, lost, refused, and timed out."""

import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from headwater import errors
from headwater.client import NO_RETRY, Client, ProducerClaim, Retry, Stream
from tests.support.patience import wait_until
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess
from tests.support.stepped_server import SteppedServer

QUICK = Retry(attempts=5, first_delay=0.01, max_delay=0.05)


def messages(stream: Stream) -> list[bytes]:
    return [message for chunk in stream.read() for message in chunk.messages()]


def is_half_closed(port: int) -> bool:
    """Return whether a connection to a port has been closed by its other end alone."""
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    # A row is: number, local address, remote address, state, …; state 8 is CLOSE_WAIT.
    return any(row.split()[2:4] == [f"0100007F:{port:04X}", "08"] for row in rows)


def test_requests_share_one_connection(proxy: Proxy, path: str) -> None:
    with Client(proxy.url) as client:
        stream = client.stream(path)
        stream.create()
        for number in range(10):
            stream.append(number)
        stream.head()
        assert len(messages(stream)) == 10
        with pytest.raises(errors.RequestRefused):
            stream.append(b"{")
        stream.delete()
    assert proxy.connections == 1


def test_a_connection_that_the_server_has_closed_is_not_used_again(path: str) -> None:
    with SteppedServer(idle_timeout=10.0) as server, Client(server.url, retry=NO_RETRY) as client:
        stream = client.stream(path)
        stream.create()
        server.advance(20.0)
        wait_until(lambda: is_half_closed(server.port), "closing")
        # A plain append is never sent twice: it works only over a new connection.
        stream.append(b"1")


def test_a_refused_connection_is_unreachable() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    with (
        Client(f"http://127.0.0.1:{port}", retry=QUICK) as client,
        pytest.raises(errors.Unreachable, match="Start the server") as caught,
    ):
        client.stream("x").head()
    assert caught.value.status is None
    assert caught.value.code == "unreachable"


def test_reads_are_repeated_over_lost_connections(proxy: Proxy, stream: Stream, path: str) -> None:
    stream.append(b"1")
    pauses: list[float] = []
    with Client(
        proxy.url, retry=QUICK, on_retry=lambda _error, delay: pauses.append(delay)
    ) as client:
        proxy.lose_answers(3)
        assert messages(client.stream(path)) == [b"1"]
    assert len(pauses) == 3


def test_an_incomplete_response_is_a_lost_connection(
    proxy: Proxy, stream: Stream, path: str
) -> None:
    stream.append_many([f"{number:0100}" for number in range(1000)])
    proxy.answer_bytes = 5000
    with Client(proxy.url, retry=QUICK) as client:
        with pytest.raises(errors.ConnectionLost):
            messages(client.stream(path))
        proxy.answer_bytes = None
        assert len(messages(client.stream(path))) == 1000


def test_a_response_cut_at_any_byte_is_a_lost_connection(
    proxy: Proxy, stream: Stream, path: str
) -> None:
    """A cut in the head must not pass for an answer without a body, or with half an offset."""
    stream.append_many([1, 2])
    info, chunk = stream.head(), next(stream.read())

    def bytes_needed(ask: Callable[[], object]) -> int:
        proxy.answer_bytes = 1
        while True:
            try:
                ask()
            except (errors.ConnectionLost, errors.Unreachable):
                proxy.answer_bytes += 1
            else:
                return proxy.answer_bytes

    with Client(proxy.url, retry=NO_RETRY) as client:
        through = client.stream(path)

        def read() -> None:
            assert msgspec.structs.replace(next(through.read()), url=chunk.url) == chunk

        def head() -> None:
            assert msgspec.structs.replace(through.head(), url=info.url) == info

        assert bytes_needed(head) > 200
        assert bytes_needed(read) > 200 + len(chunk.data)


def test_a_plain_append_is_never_repeated(proxy: Proxy, stream: Stream, path: str) -> None:
    with Client(proxy.url, retry=QUICK) as client:
        through = client.stream(path)
        through.head()
        proxy.lose_answers(1)
        with pytest.raises(errors.ConnectionLost, match="may or may not"):
            through.append(b"1")
    assert messages(stream) == [b"1"]


def test_an_append_of_a_producer_is_repeated_without_a_duplicate(
    proxy: Proxy, stream: Stream, path: str
) -> None:
    with Client(proxy.url, retry=QUICK) as client:
        through = client.stream(path)
        through.head()
        proxy.lose_answers(2)
        done = through.append(b"1", producer=ProducerClaim("writer", 0, 0))
        assert done.duplicate
    assert messages(stream) == [b"1"]


def test_creating_closing_and_deleting_are_repeated(
    proxy: Proxy, client: Client, path: str
) -> None:
    with Client(proxy.url, retry=QUICK) as through:
        stream = through.stream(path)
        proxy.lose_answers(1)
        assert not stream.create(data=b"1").new  # the first attempt had made it
        proxy.lose_answers(1)
        assert stream.close().closed
        assert messages(stream) == [b"1"]
        proxy.lose_answers(1)
        stream.delete()
    with pytest.raises(errors.StreamNotFound):
        client.stream(path).head()


def test_an_overloaded_server_is_retried_after_the_requested_delay(path: str) -> None:
    with ServerProcess("--max-connections", "1") as server:
        holder = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
        pauses: list[float] = []

        def release(error: errors.ClientError, delay: float) -> None:
            assert isinstance(error, errors.Overloaded)
            assert error.retry_after == 1
            pauses.append(delay)
            holder.close()

        with Client(server.url, retry=QUICK, on_retry=release) as client:
            assert client.stream(path).create().new
        assert len(pauses) == 1
        assert pauses[0] >= 1


def test_a_silent_server_times_out(path: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, timeout=0.2, retry=NO_RETRY) as client,
            pytest.raises(errors.ConnectionLost, match="in time"),
        ):
            client.stream(path).head()


def test_a_response_that_is_not_http_is_reported(path: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example ready\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, retry=NO_RETRY) as client, pytest.raises(errors.ConnectionLost):
            client.stream(path).head()
        thread.join()


def test_a_refusal_before_the_body_was_sent_is_reported(path: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            connection.close()  # with most of the body unread: the sender's connection is reset

        thread = threading.Thread(target=refuse)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (
            Client(url, retry=NO_RETRY) as client,
            pytest.raises(errors.BodyTooLarge, match="smaller appends"),
        ):
            client.stream(path).append(bytes(64 * 1024 * 1024), content_type="text/plain")
        thread.join()


def test_several_threads_share_a_client(client: Client, stream: Stream) -> None:
    def write(start: int) -> None:
        for number in range(start, start + 50):
            stream.append(number)

    threads = [threading.Thread(target=write, args=(n * 50,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, messages(stream))) == list(range(200))


def test_a_closed_client_raises_client_closed(server: ServerProcess) -> None:
    client = Client(server.url)
    stream = client.stream("x")
    client.close()
    with pytest.raises(errors.ClientClosed):
        stream.head()


def test_closing_ends_a_pause_between_attempts() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    client = Client(
        f"http://127.0.0.1:{port}",
        retry=Retry(attempts=3, first_delay=1000, max_delay=1000),
        on_retry=lambda _error, _delay: threading.Timer(0.1, client.close).start(),
    )
    with pytest.raises(errors.ClientClosed):
        client.stream("x").head()
