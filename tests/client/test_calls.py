"""The requests of each operation, and the interpretation of their responses."""

import pytest

from headwater.client import ProducerClaim, _calls
from headwater.client._http1 import Response
from headwater.client._values import Appended
from headwater.errors import StreamClosed, UnexpectedResponse

URL = "http://host/v1/stream/chat/42"


def answer(status: int, **headers: str) -> Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(URL, "POST", status, names)


def test_only_an_append_without_a_producer_may_not_be_repeated() -> None:
    plain = _calls.append(URL, b"1", content_type="application/json")
    claimed = _calls.append(
        URL, b"1", content_type="application/json", producer=ProducerClaim("p", 0, 0)
    )
    closing = _calls.append(URL, b"1", content_type="application/json", close=True)
    others = [
        _calls.create(URL, content_type="text/plain").request,
        _calls.fork(URL, f"{URL}/fork").request,
        _calls.close(URL).request,
        _calls.head(URL).request,
        _calls.delete(URL).request,
        _calls.read_request(URL, "-1"),
    ]
    assert not plain.request.repeatable
    assert not closing.request.repeatable
    assert claimed.request.repeatable
    assert all(request.repeatable for request in others)


def test_requests_have_only_the_headers_that_they_need() -> None:
    created = _calls.create(URL, b"x", content_type="text/plain", ttl=0, closed=True).request
    assert created.headers == {
        "Content-Type": "text/plain",
        "Stream-TTL": "0",
        "Stream-Closed": "true",
    }
    forked = _calls.fork(f"{URL}%20x", f"{URL}/fork", offset="1_2", sub_offset=3).request
    assert forked.headers == {
        "Stream-Forked-From": "/v1/stream/chat/42%20x",
        "Stream-Fork-Offset": "1_2",
        "Stream-Fork-Sub-Offset": "3",
    }
    appended = _calls.append(
        URL, b"1", content_type="a/b", seq="7", producer=ProducerClaim("p", 1, 2)
    ).request
    assert appended.headers == {
        "Content-Type": "a/b",
        "Stream-Seq": "7",
        "Producer-Id": "p",
        "Producer-Epoch": "1",
        "Producer-Seq": "2",
    }


def test_an_append_is_distinguished_from_a_duplicate() -> None:
    interpret = _calls.close(URL).interpret
    assert interpret(answer(204, stream_next_offset="1_5")) == Appended("1_5")
    new = answer(200, stream_next_offset="1_5", producer_seq="0")
    assert interpret(new) == Appended("1_5", producer_seq=0)
    assert interpret(answer(204, producer_seq="0")) == Appended("", duplicate=True, producer_seq=0)
    with pytest.raises(UnexpectedResponse, match="no Stream-Next-Offset"):
        interpret(answer(204))


def test_an_append_before_the_close_counts_as_a_duplicate() -> None:
    claim = ProducerClaim("p", 2, 4)
    call = _calls.append(URL, b"1", content_type="application/json", producer=claim)
    closed = {"stream_closed": "true", "stream_next_offset": "9"}
    appended = call.interpret(answer(409, **closed, producer_epoch="2", producer_seq="5"))
    assert (appended.next_offset, appended.closed, appended.duplicate) == ("9", True, True)
    assert appended.producer_seq == 5
    for epoch, seq in (("2", "3"), ("1", "4"), ("3", "0"), ("", "")):
        with pytest.raises(StreamClosed) as caught:
            call.interpret(answer(409, **closed, producer_epoch=epoch, producer_seq=seq))
    with pytest.raises(StreamClosed) as caught:
        call.interpret(answer(409, **closed))
    assert caught.value.next_offset == "9"


@pytest.mark.parametrize(
    ("messages", "content_type", "body"),
    [
        ([b"[1]", b"2"], "application/json; charset=utf-8", b"[[1],2]"),
        ([], "application/json", b"[]"),
        ([b"a", b"b"], "text/plain", b"ab"),
    ],
)
def test_joined_messages_remain_separate_messages(
    messages: list[bytes], content_type: str, body: bytes
) -> None:
    assert _calls.join_messages(messages, content_type) == body
