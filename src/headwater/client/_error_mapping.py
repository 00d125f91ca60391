"""Maps an unsuccessful response to a typed error: by its problem code, then by headers and status.

Problem documents (RFC 9457) are Headwater's addition to the protocol. The responses of servers that
send none are mapped by the protocol's headers and status codes alone.
"""

from typing import Final

import msgspec
from msgspec import Struct

from headwater.client._http1 import Response
from headwater.errors import (
    BodyTooLarge,
    ContentTypeMismatch,
    OffsetGone,
    Overloaded,
    ProducerFenced,
    ProducerGap,
    RequestRefused,
    ServerFailed,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
    StreamSeqRegression,
    UnexpectedResponse,
)
from headwater.protocol import headers as names
from headwater.protocol.headers import is_true

_BY_CODE: Final[dict[str, type[RequestRefused]]] = {
    "stream-not-found": StreamNotFound,
    "fork-source-not-found": StreamNotFound,
    "stream-gone": StreamGone,
    "fork-source-gone": StreamGone,
    "offset-gone": OffsetGone,
    "config-mismatch": StreamExists,
    "path-blocked": StreamExists,
    "stream-closed": StreamClosed,
    "content-type-mismatch": ContentTypeMismatch,
    "stream-seq-regression": StreamSeqRegression,
    "producer-fenced": ProducerFenced,
    "producer-sequence-gap": ProducerGap,
    "body-too-large": BodyTooLarge,
}

_CODES: Final = {kind: code for code, kind in reversed(_BY_CODE.items())}
"""The code of an error that was mapped by headers and status: the first one of its class."""

_BY_STATUS: Final[dict[int, type[RequestRefused]]] = {
    404: StreamNotFound,
    410: StreamGone,
    413: BodyTooLarge,
    429: Overloaded,
    503: Overloaded,
}

_MESSAGES: Final[dict[type[RequestRefused], str]] = {
    StreamNotFound: "There is no stream at {url}: create it, or check the path.",
    StreamGone: "The stream at {url} was deleted; only its forks can still be read.",
    StreamExists: "A stream with another configuration is at {url}: use it, or another path.",
    StreamClosed: "The stream at {url} is closed and accepts no more appends; use another one.",
    ProducerFenced: "A newer session of this producer writes to {url}: stop, or use a new epoch.",
    ProducerGap: "The producer skipped a sequence number at {url}: send the one it expects.",
    BodyTooLarge: "The body is over the limit of {url}: send it in smaller appends.",
    Overloaded: "The server of {url} is overloaded: try again later.",
    ServerFailed: "The server of {url} failed with status {status}: see its log.",
    RequestRefused: "The server refused {method} {url} with status {status}.",
}


class ProblemDocument(Struct, frozen=True):
    """The parts of a problem document that are used."""

    code: str = ""
    detail: str = ""


_PROBLEM: Final = msgspec.json.Decoder(ProblemDocument)


def error_from_response(response: Response) -> RequestRefused | UnexpectedResponse:
    """Return the error for an unsuccessful response."""
    if response.status < 400:
        return unexpected_response(response, f"status {response.status}")
    problem = _read_problem(response)
    kind = _kind(response, problem.code)
    message = problem.detail or _MESSAGES.get(kind, _MESSAGES[RequestRefused]).format(
        url=response.url, status=response.status, method=response.method
    )
    code = problem.code or _CODES.get(kind, f"http-{response.status}")
    error = kind(message, url=response.url, status=response.status, code=code)
    _attach(error, response)
    return error


def unexpected_response(response: Response, what: str) -> UnexpectedResponse:
    """Return the error for a response that does not follow the protocol."""
    return UnexpectedResponse(
        f"{response.method} {response.url} returned {what}: is this the URL of a stream?",
        url=response.url,
        status=response.status,
        code="unexpected-response",
    )


def _read_problem(response: Response) -> ProblemDocument:
    if "json" not in response.headers.get("content-type", ""):
        return ProblemDocument()
    try:
        return _PROBLEM.decode(response.body)
    except msgspec.DecodeError:
        return ProblemDocument()


def _kind(response: Response, code: str) -> type[RequestRefused]:
    status, headers = response.status, response.headers
    if code in _BY_CODE:
        return _BY_CODE[code]
    if code and status == 404:
        return RequestRefused  # something other than a stream is missing
    if status == 409:
        if is_true(headers.get(names.STREAM_CLOSED.lower())):
            return StreamClosed
        if names.PRODUCER_EXPECTED_SEQ.lower() in headers:
            return ProducerGap
        return StreamExists if response.method == "PUT" else RequestRefused
    if status == 403 and names.PRODUCER_EPOCH.lower() in headers:
        return ProducerFenced
    return _BY_STATUS.get(status, ServerFailed if status >= 500 else RequestRefused)


def _attach(error: RequestRefused, response: Response) -> None:
    """Set the attributes that the protocol's headers carry."""
    headers = response.headers
    if isinstance(error, StreamClosed):
        error.next_offset = headers.get(names.STREAM_NEXT_OFFSET.lower())
        error.producer_epoch = _integer(headers.get(names.PRODUCER_EPOCH.lower()))
        error.producer_seq = _integer(headers.get(names.PRODUCER_SEQ.lower()))
    elif isinstance(error, ProducerFenced):
        error.current_epoch = _integer(headers.get(names.PRODUCER_EPOCH.lower()))
    elif isinstance(error, ProducerGap):
        error.expected = _integer(headers.get(names.PRODUCER_EXPECTED_SEQ.lower()))
        error.received = _integer(headers.get(names.PRODUCER_RECEIVED_SEQ.lower()))
    elif isinstance(error, Overloaded | ServerFailed):
        error.retry_after = _retry_after(headers.get("retry-after"), headers.get("date"))


def _retry_after(value: str | None, date: str | None) -> float | None:
    """Parse Retry-After: seconds, or a date, which is compared with the server's own clock."""
    if value is None:
        return None
    seconds = _integer(value.strip())
    if seconds is not None:
        return float(seconds)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - rarely needed, slow to import

    try:
        until, now = parsedate_to_datetime(value), parsedate_to_datetime(date or "")
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _integer(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 16:
        return None
    return int(text)
