"""A catch-up read follows the offsets until the server says it is up to date."""

from bench.catchup import count_messages, read_through
from bench.tests.scripted import replying
from bench.wire import Client

FIRST = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nStream-Next-Offset: 0_4\r\n\r\n[1,2]"
LAST = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nStream-Next-Offset: 0_6\r\n"
    b"Stream-Up-To-Date: true\r\n\r\n3\r\n[3]\r\n0\r\n\r\n"
)


def test_both_framings_are_counted_and_the_second_read_starts_where_the_first_ended() -> None:
    with replying([FIRST, LAST]) as (port, requests), Client(port) as client:
        assert read_through(client, "s", bytearray(1024)) == len("[1,2][3]")
    assert [request.split(b" ")[1] for request in requests] == [
        b"/v1/stream/s?offset=-1",
        b"/v1/stream/s?offset=0_4",
    ]


def test_messages_of_all_responses_are_counted() -> None:
    with replying([FIRST, LAST]) as (port, _), Client(port) as client:
        assert count_messages(client, "s") == 3
