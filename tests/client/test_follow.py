"""A follower sees each message once and in order, whatever happens to its connections."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headwater import errors
from headwater.client import Client, Retry, Stream
from headwater.client._reader import Live
from tests.client.conftest import live_reads
from tests.support.patience import wait_until
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess

PATIENT = Retry(attempts=200, first_delay=0.01, max_delay=0.05)


@contextmanager
def writing(
    stream: Stream,
    count: int,
    is_enough: Callable[[], bool] = lambda: True,
    seen: list[int] | None = None,
) -> Iterator[list[int]]:
    """Append so many numbers or more from another thread, until it is enough; then close.

    Yields what was appended, which is complete after the block. With `seen`, what the reader has
    seen, the writer stays at most 200 numbers ahead of it.
    """
    written: list[int] = []
    failed = threading.Event()

    def write() -> None:
        while not failed.is_set() and (len(written) < count or not is_enough()):
            stream.append(len(written))
            written.append(len(written))
            if seen is not None:
                wait_until(lambda: failed.is_set() or len(written) - len(seen) < 200, "reading")
        stream.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    except BaseException:
        failed.set()
        raise
    finally:
        thread.join()


def numbers(stream: Stream, live: Live, offset: str = "-1") -> list[int]:
    return [
        int(message) for chunk in stream.follow(offset, live=live) for message in chunk.messages()
    ]


@pytest.mark.parametrize("live", ["sse", "long-poll", "auto"])
def test_following_ends_with_the_stream_and_misses_nothing(
    proxy: Proxy, stream: Stream, path: str, live: Live
) -> None:
    # Connections are ended by the server every 0.3 seconds: this goes through several.
    with (
        Client(proxy.url) as through,
        writing(stream, 100, lambda: live_reads(proxy) > 3) as written,
    ):
        seen = numbers(through.stream(path), live)
    assert seen == written


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_lost_connections_neither_lose_nor_duplicate_data(
    client: Client, proxy: Proxy, stream: Stream, path: str, live: Live
) -> None:
    seen: list[int] = []
    with (
        Client(proxy.url, retry=PATIENT) as through,
        writing(stream, 300, lambda: proxy.connections > 10) as written,
    ):
        for chunk in through.stream(path).follow(live=live):
            seen += map(int, chunk.messages())
            proxy.cut()
    assert seen == written


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_responses_cut_at_any_byte_neither_lose_nor_duplicate_data(
    proxy: Proxy, stream: Stream, path: str, live: Live
) -> None:
    # More than 200 numbers need, and far less than all of them: each connection breaks somewhere
    # else, between data and control events too.
    proxy.answer_bytes = 4001
    seen: list[int] = []
    with (
        Client(proxy.url, retry=PATIENT) as through,
        writing(stream, 300, lambda: proxy.connections > 3, seen) as written,
    ):
        seen.extend(through.stream(path).follow(live=live).items())
    assert seen == written


def test_following_from_now_skips_the_existing_data(stream: Stream) -> None:
    stream.append_many([-2, -1])
    chunks = stream.follow("now")
    first = next(chunks)
    assert first.empty
    assert first.up_to_date
    with writing(stream, 20):
        rest = [int(message) for chunk in chunks for message in chunk.messages()]
    assert rest == list(range(20))


def test_following_from_an_offset_resumes_after_it(stream: Stream) -> None:
    stream.append(b"0")
    offset = stream.append(b"1").next_offset
    stream.append(b"2")
    stream.close()
    assert numbers(stream, "auto", offset) == [2]


def test_the_end_is_reported_once_by_an_empty_batch(
    proxy: Proxy, stream: Stream, path: str
) -> None:
    stream.append(b"1")

    def close() -> None:
        wait_until(lambda: live_reads(proxy) > 2, "following")
        stream.close()

    with Client(proxy.url) as through:
        chunks = through.stream(path).follow()
        assert next(chunks).up_to_date
        closing = threading.Thread(target=close)
        closing.start()
        # Two SSE connections end meanwhile; neither has news.
        (end,) = chunks
        closing.join()
    assert end.closed
    assert end.empty


@pytest.mark.parametrize("content_type", ["application/octet-stream", "text/plain"])
def test_bytes_are_followed_unchanged(client: Client, path: str, content_type: str) -> None:
    stream = client.stream(path)
    stream.create(content_type=content_type)
    parts = [b"line\r\n", b"\r", b"\xc3", b"\xa4 \n\n", b" leading", b"data: x\n\n"]
    if content_type == "application/octet-stream":
        parts += [os.urandom(100_000), bytes(range(256))]

    received = b""
    coming = iter(parts)
    for chunk in stream.follow():
        received += chunk.data
        part = next(coming, None)
        if part is not None:
            stream.append(part)
        elif not chunk.closed:
            stream.close()
    assert received == b"".join(parts)


def test_a_large_backlog_is_caught_up_before_going_live(client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create()
    text = "x" * 1000
    for start in range(0, 4000, 1000):
        stream.append_many([[n, text] for n in range(start, start + 1000)])
    with writing(stream, 5):
        chunks = list(stream.follow())
    assert len(chunks) > 3
    assert sum(len(chunk.messages()) for chunk in chunks) == 4005


def test_closing_the_client_ends_a_follower_in_another_thread(
    proxy: Proxy, stream: Stream, path: str
) -> None:
    client = Client(proxy.url)

    def close() -> None:
        wait_until(lambda: live_reads(proxy), "following")
        client.close()

    closing = threading.Thread(target=close)
    closing.start()
    # Otherwise it would never end.
    assert [chunk.empty for chunk in client.stream(path).follow()] == [True]
    closing.join()


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_follower_of_a_deleted_stream_gets_an_error(stream: Stream, live: Live) -> None:
    chunks = stream.follow(live=live)
    next(chunks)
    stream.delete()
    with pytest.raises(errors.StreamNotFound):
        next(chunks)


def test_a_follower_of_a_replaced_stream_gets_an_error(stream: Stream) -> None:
    stream.append(b"1")
    chunks = stream.follow()
    next(chunks)
    stream.delete()
    stream.create()
    stream.append_many([1, 2, 3])
    with pytest.raises(errors.StreamRecreated):
        next(chunks)


def test_a_follower_gives_up_if_the_server_does_not_return(
    proxy: Proxy, stream: Stream, path: str
) -> None:
    retry = Retry(attempts=3, first_delay=0.01)
    with Client(proxy.url, retry=retry) as through:
        chunks = through.stream(path).follow()
        next(chunks)
        proxy.down = True
        proxy.cut()
        with pytest.raises((errors.ConnectionLost, errors.Unreachable)):
            next(chunks)


def test_only_consecutive_failures_count(proxy: Proxy, stream: Stream, path: str) -> None:
    with Client(proxy.url, retry=Retry(attempts=3, first_delay=0.01)) as through:
        chunks = through.stream(path).follow(live="sse")
        next(chunks)
        for number in range(10):
            proxy.cut()
            stream.append(number)
            assert next(chunks).messages() == [str(number).encode()]


def test_a_server_that_is_killed_is_unreachable(path: str) -> None:
    with (
        ServerProcess("--log-level", "debug") as server,
        Client(server.url, retry=Retry(attempts=3, first_delay=0.01)) as client,
    ):
        client.stream(path).create()
        chunks = client.stream(path).follow()
        next(chunks)

        def kill() -> None:
            wait_until(lambda: server.log().count("method=GET") == 2, "following")
            server.kill()

        killing = threading.Thread(target=kill)
        killing.start()
        with pytest.raises(errors.Unreachable):
            next(chunks)
        killing.join()


def test_leaving_a_follower_early_closes_its_connection(proxy: Proxy, path: str) -> None:
    with Client(proxy.url) as through:
        stream = through.stream(path)
        stream.create(data=b"1")
        for _ in range(3):
            for _chunk in stream.follow():
                break
        assert stream.head().next_offset
