"""The mapping of responses to errors, with a problem code and without."""

import msgspec
import pytest

from headwater import errors
from headwater.client._error_mapping import error_from_response
from headwater.client._http1 import Response

URL = "http://127.0.0.1:4437/v1/stream/chat/42"


def answer(
    status: int, headers: dict[str, str] | None = None, method: str = "POST", body: bytes = b""
) -> Response:
    return Response(URL, method, status, headers or {}, body)


def problem(status: int, code: str, detail: str) -> Response:
    body = msgspec.json.encode({"code": code, "detail": detail, "status": status})
    return answer(status, {"content-type": "application/problem+json"}, body=body)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "stream-not-found", errors.StreamNotFound),
        (404, "not-found", errors.RequestRefused),
        (410, "stream-gone", errors.StreamGone),
        (410, "offset-gone", errors.OffsetGone),
        (409, "config-mismatch", errors.StreamExists),
        (409, "content-type-mismatch", errors.ContentTypeMismatch),
        (409, "stream-seq-regression", errors.StreamSeqRegression),
        (400, "invalid-json", errors.RequestRefused),
        (500, "internal-error", errors.ServerFailed),
    ],
)
def test_the_code_decides_and_the_detail_is_the_message(
    status: int, code: str, kind: type[errors.RequestRefused]
) -> None:
    error = error_from_response(problem(status, code, "Do this instead."))
    assert type(error) is kind
    assert str(error) == "Do this instead."
    assert (error.status, error.code, error.url) == (status, code, URL)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (answer(404), errors.StreamNotFound),
        (answer(409, {"stream-closed": "true"}), errors.StreamClosed),
        (answer(409, {"producer-expected-seq": "3"}), errors.ProducerGap),
        (answer(409, method="PUT"), errors.StreamExists),
        (answer(409), errors.RequestRefused),
        (answer(403, {"producer-epoch": "4"}), errors.ProducerFenced),
        (answer(403), errors.RequestRefused),
        (answer(410), errors.StreamGone),
        (answer(413), errors.BodyTooLarge),
        (answer(429), errors.Overloaded),
        (answer(503), errors.Overloaded),
        (answer(502), errors.ServerFailed),
    ],
)
def test_without_a_code_headers_and_status_decide(
    given: Response, kind: type[errors.RequestRefused]
) -> None:
    error = error_from_response(given)
    assert type(error) is kind
    assert error.code
    assert URL in str(error)


def test_an_unknown_successful_status_is_unexpected() -> None:
    assert isinstance(error_from_response(answer(206)), errors.UnexpectedResponse)


def test_a_body_that_is_not_a_problem_document_is_ignored() -> None:
    for body in (b"<html>", b"[1]", b'{"detail": 5}', b""):
        given = answer(500, {"content-type": "application/json"}, body=body)
        assert isinstance(error_from_response(given), errors.ServerFailed)


def test_errors_have_the_attributes_that_the_protocol_reports() -> None:
    closed = error_from_response(
        answer(409, {"stream-closed": "true", "stream-next-offset": "1_9"})
    )
    assert isinstance(closed, errors.StreamClosed)
    assert closed.next_offset == "1_9"
    gap = error_from_response(
        answer(409, {"producer-expected-seq": "3", "producer-received-seq": "7"})
    )
    assert isinstance(gap, errors.ProducerGap)
    assert (gap.expected, gap.received) == (3, 7)
    fenced = error_from_response(answer(403, {"producer-epoch": "4"}))
    assert isinstance(fenced, errors.ProducerFenced)
    assert fenced.current_epoch == 4


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("Fri, 31 Jan 2025 12:00:30 GMT", 30.0),
        ("Fri, 31 Jan 2025 11:00:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_servers_clock(
    value: str, seconds: float | None
) -> None:
    error = error_from_response(
        answer(503, {"retry-after": value, "date": "Fri, 31 Jan 2025 12:00:00 GMT"})
    )
    assert isinstance(error, errors.Overloaded)
    assert error.retry_after == seconds
