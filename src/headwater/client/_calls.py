"""The requests of the protocol and the meaning of their responses, without I/O.

A `Call` holds both. A client sends the request as often as `repeatable` allows and passes the
response to `interpret`, which returns a value or raises a typed error. The first part is Durable
Streams, for any server; the second is a Headwater server's view over many streams: listing,
splitting, changes.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from headwater.client._error_mapping import error_from_response, unexpected_response
from headwater.client._http1 import (
    Request,
    Response,
    control_url,
    origin_of,
    path_of,
    with_query,
)
from headwater.client._values import Appended, Batch, Created, StreamInfo
from headwater.errors import ConnectionLost, StreamClosed, StreamGone, StreamNotFound
from headwater.protocol import headers as names
from headwater.protocol.content_types import holds_json
from headwater.protocol.headers import is_true
from headwater.protocol.paths import DEFAULT_ROOT, url_path
from headwater.protocol.producers import ProducerClaim

T = TypeVar("T")

START: Final = "-1"
NOW: Final = "now"


class Call(Struct, Generic[T], frozen=True):
    """A request, and the interpretation of its response."""

    request: Request
    interpret: Callable[[Response], T]


def create(
    url: str,
    body: bytes = b"",
    *,
    content_type: str,
    ttl: int | None = None,
    expires_at: str | None = None,
    closed: bool = False,
) -> Call[Created]:
    """Create a stream, or confirm that it exists (PROTOCOL 5.1)."""
    headers = {"Content-Type": content_type, **_expiry_headers(ttl, expires_at)}
    if closed:
        headers[names.STREAM_CLOSED] = "true"
    return Call(Request("PUT", url, headers, body), _created)


def fork(
    source_url: str,
    url: str,
    *,
    offset: str | None = None,
    sub_offset: int = 0,
    ttl: int | None = None,
    expires_at: str | None = None,
) -> Call[Created]:
    """Create a stream that shares another's data up to an offset (PROTOCOL 4.2)."""
    headers = {names.STREAM_FORKED_FROM: path_of(source_url), **_expiry_headers(ttl, expires_at)}
    if offset is not None:
        headers[names.STREAM_FORK_OFFSET] = offset
    if sub_offset:
        headers[names.STREAM_FORK_SUB_OFFSET] = str(sub_offset)
    return Call(Request("PUT", url, headers), _created)


def append(
    url: str,
    body: bytes,
    *,
    content_type: str,
    seq: str | None = None,
    producer: ProducerClaim | None = None,
    close: bool = False,
) -> Call[Appended]:
    """Append, or append and close in one step (PROTOCOL 5.2)."""
    headers = {"Content-Type": content_type}
    if seq is not None:
        headers[names.STREAM_SEQ] = seq
    if producer is not None:
        headers[names.PRODUCER_ID] = producer.producer_id
        headers[names.PRODUCER_EPOCH] = str(producer.epoch)
        headers[names.PRODUCER_SEQ] = str(producer.seq)
    if close:
        headers[names.STREAM_CLOSED] = "true"
    # Without producer headers, a second attempt would be a second append.
    request = Request("POST", url, headers, body, repeatable=producer is not None)
    return Call(request, _appended if producer is None else partial(_appended_by, producer))


def close(url: str) -> Call[Appended]:
    """Close without data, which may be repeated (PROTOCOL 5.3)."""
    return Call(Request("POST", url, {names.STREAM_CLOSED: "true"}), _appended)


def head(url: str) -> Call[StreamInfo]:
    """Return the metadata of a stream (PROTOCOL 5.5)."""
    return Call(Request("HEAD", url), _info)


def exists(url: str) -> Call[bool]:
    """Return whether a stream exists."""
    return Call(Request("HEAD", url), _exists)


def delete(url: str) -> Call[None]:
    """Delete a stream (PROTOCOL 5.4)."""
    return Call(Request("DELETE", url), _deleted)


def read_request(url: str, offset: str, until: str | None = None) -> Request:
    """Request the data from an offset on, up to the server's chunk size (PROTOCOL 5.6)."""
    end = () if until is None else (("until", until),)
    return Request("GET", with_query(url, ("offset", offset), *end))


def live_request(
    url: str, offset: str, mode: Literal["sse", "long-poll"], cursor: str | None
) -> Request:
    """Request the data after an offset as it is appended (PROTOCOL 5.7, 5.8)."""
    parameters = [("live", mode), ("offset", offset)]
    if cursor is not None:
        parameters.append(("cursor", cursor))
    headers = {"Accept": "text/event-stream"} if mode == "sse" else {}
    return Request("GET", with_query(url, *parameters), headers, live=True)


def join_messages(messages: Iterable[bytes], content_type: str) -> bytes:
    """Join messages into one body so that each stays a message of its own.

    A JSON array around them is flattened by exactly one level (PROTOCOL 9.1.2): messages that are
    arrays themselves stay whole. Other content types have no messages, only bytes.
    """
    if holds_json(content_type):
        return b"[" + b",".join(messages) + b"]"
    return b"".join(messages)


def encode(data: object, content_type: str) -> bytes:
    """Encode a value as one message: JSON for a JSON stream, otherwise bytes or text.

    Bytes are sent as they are; for a JSON stream they must be a JSON text.
    """
    if isinstance(data, bytes | bytearray | memoryview | msgspec.Raw):
        return bytes(data)
    if holds_json(content_type):
        return msgspec.json.encode(data)
    if isinstance(data, str):
        return data.encode()
    raise TypeError(
        f"a stream of {content_type} accepts bytes or text, not {type(data).__name__}; "
        "create it with application/json to append values"
    )


def encoder(content_type: str) -> Callable[[object], bytes]:
    """Return the function that encodes the messages of a stream."""
    if not holds_json(content_type):
        return lambda data: encode(data, content_type)
    to_json = msgspec.json.Encoder().encode

    def encode_json(data: object) -> bytes:
        return data if isinstance(data, bytes) else to_json(data)

    return encode_json


def body_of(data: object, content_type: str) -> bytes:
    """Return the body that appends one value; bytes are the body itself.

    PROTOCOL 9.1.2: the server splits an array into messages, so an array that is one message is
    wrapped in another.
    """
    body = encode(data, content_type)
    if isinstance(data, bytes | bytearray | memoryview) or not holds_json(content_type):
        return body
    return b"[" + body + b"]" if body.startswith(b"[") else body


def read_batch(response: Response, url: str, offset: str) -> Batch:
    """Interpret the response to a catch-up or long-poll read from an offset."""
    if response.status != 200:
        raise error_from_response(response)
    closed = is_set(response, names.STREAM_CLOSED)
    batch = Batch(
        response.body,
        offset,
        next_offset(response),
        closed or is_set(response, names.STREAM_UP_TO_DATE),
        closed,
        content_type_of(response),
        response.headers.get(names.STREAM_CURSOR.lower()),
        url=url,
    )
    check_progress(response, batch)
    return batch


def check_progress(response: Response, batch: Batch) -> None:
    """Refuse a response that can't belong to this request.

    PROTOCOL 8: offsets increase. One that stays although there is data, or decreases, belongs to
    another request: a broken proxy has sent a response twice, or to the wrong client.
    """
    if batch.start in {START, NOW}:
        return
    if batch.next_offset < batch.start or (batch.next_offset == batch.start and not batch.empty):
        reason = "the response belongs to another request"
        raise ConnectionLost(response.url, origin_of(response.url), reason)
    if batch.next_offset == batch.start and not batch.up_to_date:
        # Another request would get the same response, and so on.
        raise unexpected_response(response, "neither data nor the end of the stream")


def next_offset(response: Response) -> str:
    """Return the offset, which every successful response carries."""
    offset = response.headers.get(names.STREAM_NEXT_OFFSET.lower())
    if offset is None:
        raise unexpected_response(response, f"no {names.STREAM_NEXT_OFFSET}")
    return offset


def is_set(response: Response, name: str) -> bool:
    """Return whether a response has a presence header."""
    return is_true(response.headers.get(name.lower()))


def content_type_of(response: Response) -> str:
    """Return the content type as the server sent it."""
    return response.headers.get("content-type", "")


def _expiry_headers(ttl: int | None, expires_at: str | None) -> dict[str, str]:
    headers = {}
    if ttl is not None:
        headers[names.STREAM_TTL] = str(ttl)
    if expires_at is not None:
        headers[names.STREAM_EXPIRES_AT] = expires_at
    return headers


def _created(response: Response) -> Created:
    if response.status not in {200, 201}:
        raise error_from_response(response)
    return Created(
        response.url,
        response.status == 201,
        content_type_of(response),
        next_offset(response),
        is_set(response, names.STREAM_CLOSED),
    )


def _appended_by(claim: ProducerClaim, response: Response) -> Appended:
    """Interpret the response to a producer, which may repeat an append made before the close."""
    try:
        return _appended(response)
    except StreamClosed as error:
        seq, offset = error.producer_seq, error.next_offset
        if error.producer_epoch != claim.epoch or seq is None or seq < claim.seq or offset is None:
            raise
        return Appended(offset, closed=True, duplicate=True, producer_seq=seq)


def _appended(response: Response) -> Appended:
    if response.status not in {200, 204}:
        raise error_from_response(response)
    # PROTOCOL 5.2.1: with producer headers, 204 means a duplicate and 200 new data.
    seq = response.headers.get(names.PRODUCER_SEQ.lower())
    duplicate = response.status == 204 and seq is not None
    # Some servers don't report where the stream ends in the response to a duplicate.
    omitted = duplicate and names.STREAM_NEXT_OFFSET.lower() not in response.headers
    offset = "" if omitted else next_offset(response)
    number = int(seq) if seq is not None and seq.isascii() and seq.isdigit() else None
    return Appended(offset, is_set(response, names.STREAM_CLOSED), duplicate, number)


def _info(response: Response) -> StreamInfo:
    if response.status != 200:
        raise error_from_response(response)
    ttl = response.headers.get(names.STREAM_TTL.lower(), "")
    return StreamInfo(
        response.url,
        content_type_of(response),
        next_offset(response),
        is_set(response, names.STREAM_CLOSED),
        int(ttl) if ttl.isascii() and ttl.isdigit() else None,
        response.headers.get(names.STREAM_EXPIRES_AT.lower()),
        response.headers.get(names.STREAM_INCARNATION.lower()),
    )


def _exists(response: Response) -> bool:
    try:
        _info(response)
    except (StreamNotFound, StreamGone):
        return False
    return True


def _deleted(response: Response) -> None:
    # A second attempt finds nothing if the first one succeeded and its response was lost.
    if response.status == 404 and response.attempt:
        return
    if not 200 <= response.status < 300:
        raise error_from_response(response)


# Requests to a Headwater server about many streams: listing, split points, changes.


SPLIT_BYTES: Final = 32 * 1024 * 1024
PAGE: Final = 1000


class ListedStream(Struct, frozen=True):
    """A stream as a listing describes it."""

    path: str
    content_type: str
    tail: str
    incarnation: str
    closed: bool


class StreamPage(Struct, frozen=True):
    """Some streams; `next` is the path to continue after, if there may be more."""

    streams: list[ListedStream]
    next: str | None = None


class SplitPoints(Struct, frozen=True):
    """Where a range may be split; `next` is the offset to continue from, if there is more."""

    path: str
    content_type: str
    tail: str
    incarnation: str
    closed: bool
    offsets: list[str]
    next: str | None = None


class Changed(Struct, frozen=True):
    """Which streams changed after a cursor."""

    cursor: str
    streams: list[ListedStream] | None
    """None if the server does not know: list the streams."""
    gone: list[str] = []
    """The paths of streams that were deleted."""


def streams(
    base_url: str, glob: str = "**", after: str = "", limit: int = PAGE, *, root: str = DEFAULT_ROOT
) -> Call[StreamPage]:
    """List streams in the order of their paths."""
    url = with_query(
        control_url(base_url, "streams", root),
        ("glob", glob),
        ("after", after),
        ("limit", str(limit)),
    )
    return Call(Request("GET", url), lambda response: _read_json(response, StreamPage))


def splits(
    base_url: str,
    path: str,
    start: str = START,
    end: str = NOW,
    size: int = SPLIT_BYTES,
    limit: int = PAGE,
    *,
    root: str = DEFAULT_ROOT,
) -> Call[SplitPoints]:
    """Split a range of a stream into pieces of about `size` bytes."""
    url = with_query(
        control_url(base_url, "splits", root) + url_path(path, "/"),
        ("from", start),
        ("to", end),
        ("bytes", str(size)),
        ("limit", str(limit)),
    )
    return Call(Request("GET", url), lambda response: _read_json(response, SplitPoints))


def changes(
    base_url: str, globs: Iterable[str], after: str, wait: float, *, root: str = DEFAULT_ROOT
) -> Call[Changed]:
    """Return which streams changed after a cursor; waits for a change if there was none."""
    url = with_query(
        control_url(base_url, "changes", root),
        *(("glob", glob) for glob in globs),
        ("after", after),
        ("wait_ms", str(round(wait * 1000))),
    )
    return Call(Request("GET", url, live=True), lambda response: _read_json(response, Changed))


def _read_json(response: Response, kind: type[T]) -> T:
    if response.status != 200:
        raise error_from_response(response)
    try:
        return msgspec.json.decode(response.body, type=kind)
    except msgspec.DecodeError as error:
        raise unexpected_response(response, f"a body that can't be parsed ({error})") from None
