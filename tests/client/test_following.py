"""A reader advances only past data that has arrived completely."""

import pytest

from headwater.client._http1 import Response
from headwater.client._operations import Open, Pause, Receive, Send, read_stream
from headwater.client._reader import Live, Reader, join_payloads
from headwater.client._retry import Retry
from headwater.client._values import Batch
from headwater.errors import StreamNotFound, StreamRecreated, UnexpectedResponse

URL = "http://host/v1/stream/x"


def caught_up(content_type: str = "application/json", body: bytes = b"[]") -> Reader:
    reader = Reader(URL, "-1", "auto")
    reader.take(answer({"stream-up-to-date": "true", "content-type": content_type}, body))
    return reader


def answer(headers: dict[str, str], body: bytes = b"", status: int = 200) -> Response:
    known = {"stream-next-offset": "1_0", "stream-incarnation": "1"}
    return Response(URL, "GET", status, known | headers, body)


def events(**headers: str) -> Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return answer({"content-type": "text/event-stream"} | names)


def test_a_reader_catches_up_and_then_reads_live() -> None:
    reader = Reader(URL, "-1", "auto")
    json = {"content-type": "application/json"}
    assert reader.request().url == f"{URL}?offset=-1"
    reader.take(answer(json | {"stream-next-offset": "1_5"}, b"[1]"))
    assert reader.request().url == f"{URL}?offset=1_5"
    assert not reader.streams
    reader.take(answer(json | {"stream-next-offset": "1_9", "stream-up-to-date": "true"}, b"[2]"))
    assert reader.streams
    assert reader.events_request().url == f"{URL}?live=sse&offset=1_9"


def test_data_without_its_control_event_does_not_advance_a_reader() -> None:
    reader = caught_up()
    connection = reader.open_events(events())
    assert connection.feed(b"event: data\ndata: [1]\n\n") == []
    assert reader.offset == "1_0"
    # The connection breaks; the next one sends the same data again, and now its offset too.
    again = reader.open_events(events())
    assert again.feed(
        b'event: data\ndata: [1]\n\nevent: control\ndata: {"streamNextOffset":"1_3"}\n\n'
    ) == [Batch(b"[1]", "1_0", "1_3", False, False, "application/json", url=URL)]
    assert reader.offset == "1_3"
    (more,) = again.feed(
        b'event: data\ndata: [2]\n\nevent: control\ndata: {"streamNextOffset":"1_6"}\n\n'
    )
    assert more.messages() == [b"2"]


def test_several_data_events_before_a_control_event_are_one_batch() -> None:
    reader = caught_up()
    body = b"".join(b"event: data\ndata: [%d]\n\n" % n for n in range(3))
    (chunk,) = reader.open_events(events()).feed(
        body + b'event: control\ndata: {"streamNextOffset":"1_9","upToDate":true}\n\n'
    )
    assert chunk.messages() == [b"0", b"1", b"2"]


def test_binary_data_is_decoded_across_lines() -> None:
    reader = caught_up("application/octet-stream", b"")
    connection = reader.open_events(events(stream_sse_data_encoding="base64"))
    (chunk,) = connection.feed(
        b"event: data\ndata: AQIDBAUG\ndata: BwgJCg==\n\n"
        b'event: control\ndata: {"streamNextOffset":"1_9"}\n\n'
    )
    assert chunk.data == bytes(range(1, 11))


def test_the_cursor_is_echoed_also_after_events_without_one() -> None:
    reader = caught_up()
    connection = reader.open_events(events())
    connection.feed(b'event: control\ndata: {"streamNextOffset":"1_0","streamCursor":"77"}\n\n')
    connection.feed(b'event: control\ndata: {"streamNextOffset":"1_0"}\n\n')
    assert reader.events_request().url == f"{URL}?cursor=77&live=sse&offset=1_0"


def test_a_batch_is_returned_only_for_news() -> None:
    reader = caught_up()
    connection = reader.open_events(events())
    same = b'event: control\ndata: {"streamNextOffset":"1_0","upToDate":true}\n\n'
    assert connection.feed(same) == []
    assert connection.has_position
    (end,) = connection.feed(
        b'event: control\ndata: {"streamNextOffset":"1_0","streamClosed":true}\n\n'
    )
    assert end.closed
    assert end.up_to_date
    assert end.empty
    assert reader.closed


def test_text_is_read_by_long_poll_since_sse_changes_its_line_ends() -> None:
    assert caught_up("text/plain", b"").mode == "long-poll"
    assert caught_up("application/json").mode == "sse"
    assert caught_up("application/octet-stream", b"").mode == "sse"
    assert Reader(URL, "-1", "sse").mode == "sse"
    assert Reader(URL, "-1", "long-poll").mode == "long-poll"


def test_a_long_poll_timeout_returns_no_batch_but_advances_the_cursor() -> None:
    reader = caught_up("text/plain", b"")
    assert (
        reader.take(answer({"stream-cursor": "5", "stream-up-to-date": "true"}, status=204)) is None
    )
    assert reader.request().url == f"{URL}?cursor=5&live=long-poll&offset=1_0"
    end = reader.take(answer({"stream-closed": "true"}, status=204))
    assert end is not None
    assert end.closed


def test_another_incarnation_of_the_stream_is_an_error() -> None:
    reader = caught_up()
    with pytest.raises(StreamRecreated, match="created again") as caught:
        reader.open_events(events(stream_incarnation="2"))
    assert caught.value.code == "stream-recreated"


def test_responses_that_break_the_protocol_are_errors() -> None:
    reader = caught_up()
    with pytest.raises(UnexpectedResponse, match="text/html"):
        reader.open_events(answer({"content-type": "text/html"}))
    with pytest.raises(StreamNotFound):
        reader.open_events(answer({}, status=404))
    connection = reader.open_events(events())
    with pytest.raises(UnexpectedResponse, match="control event"):
        connection.feed(b"event: control\ndata: nonsense\n\n")
    binary = caught_up("application/octet-stream", b"")
    with pytest.raises(UnexpectedResponse, match="base64"):
        binary.open_events(events(stream_sse_data_encoding="base64")).feed(
            b"event: data\ndata: ?\n\n"
        )


def test_a_response_without_progress_is_an_error() -> None:
    reader = Reader(URL, "1_0")
    with pytest.raises(UnexpectedResponse, match="neither data nor the end"):
        reader.take(answer({"content-type": "application/json"}, b"[]"))


@pytest.mark.parametrize(
    ("payloads", "content_type", "joined"),
    [
        ([], "application/json", b"[]"),
        ([b"[1]", b"[]", b" [2,3] "], "application/json", b"[1,2,3]"),
        ([], "text/plain", b""),
        ([b"a", b"b"], "text/plain", b"ab"),
    ],
)
def test_payloads_are_joined_by_content_type(
    payloads: list[bytes], content_type: str, joined: bytes
) -> None:
    assert join_payloads(payloads, content_type) == joined


@pytest.mark.parametrize("live", ["auto", "sse"])
def test_event_streams_that_end_at_once_lead_to_long_poll_or_a_pause(live: Live) -> None:
    reader = Reader(URL, "1_0", live)
    reader.take(answer({"stream-up-to-date": "true", "content-type": "application/json"}, b"[]"))
    ended = answer({"content-type": "text/event-stream"})
    steps = read_stream(reader, Retry(), lambda: 0.5, lambda: 0.0)
    seen: list[str] = []
    result: object = None
    for _ in range(40):
        step = steps.send(result)
        seen.append(type(step).__name__)
        result = ended if isinstance(step, Open) else None
        if isinstance(step, Receive):
            reported = seen[-2] == "Receive"
            result = b"" if reported else b'event: control\ndata: {"streamNextOffset":"1_0"}\n\n'
        if isinstance(step, Send | Pause):
            break
    assert seen.count("Open") == 3
    assert seen[-1] == ("Pause" if live == "sse" else "Send")
