"""Responses are recognised wherever the network cuts them."""

from bench.audience import MARK, message_body, message_numbers
from bench.catchup import ChunkCounter
from bench.wire import build_request, dechunk, find_header, response_end

HEAD = b"HTTP/1.1 200 OK\r\nStream-Next-Offset: 0_7\r\n"
WITH_LENGTH = HEAD + b"Content-Length: 7\r\n\r\n[1,2,3]"
CHUNKS = b"4\r\n[1,2\r\n3\r\n,3]\r\n0\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS
EMPTY = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 0_7\r\n\r\n"


def test_every_prefix_of_a_response_is_incomplete_and_the_whole_is_not() -> None:
    for response in (WITH_LENGTH, CHUNKED, EMPTY):
        assert all(response_end(response[:cut]) is None for cut in range(len(response)))
        assert response_end(response) == len(response)


def test_chunk_counter_gives_the_payload_for_every_pair_of_cuts() -> None:
    for first in range(len(CHUNKS)):
        for second in range(first, len(CHUNKS)):
            counter = ChunkCounter()
            for piece in (CHUNKS[:first], CHUNKS[first:second], CHUNKS[second:]):
                assert not counter.done
                counter.feed(memoryview(piece))
            assert counter.done
            assert counter.payload == 7


def test_dechunk_joins_the_payload() -> None:
    assert dechunk(CHUNKS) == b"[1,2,3]"


def test_header_names_are_found_without_case() -> None:
    assert find_header(WITH_LENGTH, "stream-next-offset") == "0_7"
    assert find_header(WITH_LENGTH, "stream-cursor") is None


def test_an_append_carries_its_length_and_a_read_does_not() -> None:
    append = build_request("POST", 1, "s", "application/json", b"{}")
    assert append.endswith(b"\r\nContent-Length: 2\r\n\r\n{}")
    assert b"Content-Length" not in build_request("GET", 1, "s?offset=-1")


def test_a_message_is_about_100_bytes_and_carries_the_mark_once() -> None:
    assert len(message_body(1)) == len(message_body(99_999)) == 100
    assert message_body(7).count(MARK) == 1


def test_message_numbers_come_from_data_events_of_either_layout() -> None:
    one, two, three = (message_body(number) for number in (4, 5, 6))
    control = b'event: control\ndata: {"streamNextOffset":"0_7"}\n\n'
    spread = b"event: data\ndata: [\ndata: " + one + b",\ndata: " + two + b"\ndata: ]\n\n"
    compact = b"event: data\ndata:[" + three + b"]\n\n"
    body = spread + control + compact + control
    plain = b"HTTP/1.1 200 OK\r\n\r\n" + body
    framed = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    framed += b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:99], body[99:]))
    assert message_numbers(plain) == message_numbers(framed) == [4, 5, 6]
