"""The operations on a stream, without I/O: the request to send, and what its answer means.

A `Call` holds both. Whoever runs one sends the request as often as `repeatable` allows and hands
the answer to `interpret`, which gives a value or raises a typed error.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from headwater.client._error_mapping import error_from_response, unexpected_response
from headwater.client._http1 import (
    ROOT,
    Request,
    Response,
    origin_of,
    path_of,
    stream_url,
    with_query,
)
from headwater.client._values import Appended, Batch, Created, StreamInfo
from headwater.errors import ConnectionLost, StreamClosed, StreamGone, StreamNotFound
from headwater.protocol import headers as names
from headwater.protocol.content_types import holds_json
from headwater.protocol.headers import is_true
from headwater.protocol.paths import url_path
from headwater.protocol.producers import ProducerClaim

T = TypeVar("T")

START: Final = "-1"
NOW: Final = "now"


class Call(Struct, Generic[T], frozen=True):
    """A request, and the reading of its answer."""

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
    """Create a stream, or make sure that it exists (PROTOCOL 5.1)."""
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
    # Without producer headers the server can't tell a second attempt from a second append.
    request = Request("POST", url, headers, body, repeatable=producer is not None)
    return Call(request, _appended if producer is None else partial(_appended_by, producer))


def close(url: str) -> Call[Appended]:
    """Close without data, which may be repeated (PROTOCOL 5.3)."""
    return Call(Request("POST", url, {names.STREAM_CLOSED: "true"}), _appended)


def head(url: str) -> Call[StreamInfo]:
    """Ask for a stream's metadata (PROTOCOL 5.5)."""
    return Call(Request("HEAD", url), _info)


def exists(url: str) -> Call[bool]:
    """Ask whether a stream is there."""
    return Call(Request("HEAD", url), _exists)


def delete(url: str) -> Call[None]:
    """Delete a stream (PROTOCOL 5.4)."""
    return Call(Request("DELETE", url), _deleted)


def read_request(url: str, offset: str, until: str | None = None) -> Request:
    """Ask for what there is from an offset, up to the server's chunk size (PROTOCOL 5.6)."""
    end = () if until is None else (("until", until),)
    return Request("GET", with_query(url, ("offset", offset), *end))


def live_request(
    url: str, offset: str, mode: Literal["sse", "long-poll"], cursor: str | None
) -> Request:
    """Ask for what comes behind an offset, as it comes (PROTOCOL 5.7, 5.8)."""
    parameters = [("live", mode), ("offset", offset)]
    if cursor is not None:
        parameters.append(("cursor", cursor))
    headers = {"Accept": "text/event-stream"} if mode == "sse" else {}
    return Request("GET", with_query(url, *parameters), headers, live=True)


def join_messages(messages: Iterable[bytes], content_type: str) -> bytes:
    """Put messages into one body so that each stays one message of its own.

    A JSON array around them is flattened by exactly one level (PROTOCOL 9.1.2): messages that are
    arrays themselves are kept. Other content types have no messages, only bytes.
    """
    if holds_json(content_type):
        return b"[" + b",".join(messages) + b"]"
    return b"".join(messages)


def encode(data: object, content_type: str) -> bytes:
    """Make one message of a value: JSON for a JSON stream, else bytes or text.

    Bytes are taken as they are; for a JSON stream they are a JSON text already.
    """
    if isinstance(data, bytes | bytearray | memoryview | msgspec.Raw):
        return bytes(data)
    if holds_json(content_type):
        return msgspec.json.encode(data)
    if isinstance(data, str):
        return data.encode()
    raise TypeError(
        f"a stream of {content_type} takes bytes or text, not {type(data).__name__}; "
        "create it with application/json to append values"
    )


def encoder(content_type: str) -> Callable[[object], bytes]:
    """Choose how the messages of a stream are made, once for many of them."""
    if not holds_json(content_type):
        return lambda data: encode(data, content_type)
    to_json = msgspec.json.Encoder().encode

    def encode_json(data: object) -> bytes:
        return data if isinstance(data, bytes) else to_json(data)

    return encode_json


def body_of(data: object, content_type: str) -> bytes:
    """Make the body that appends one value; bytes are the body itself.

    PROTOCOL 9.1.2: the server takes an array apart, so an array that is one message is put into
    another one.
    """
    body = encode(data, content_type)
    if isinstance(data, bytes | bytearray | memoryview) or not holds_json(content_type):
        return body
    return b"[" + body + b"]" if body.startswith(b"[") else body


def read_batch(answer: Response, url: str, offset: str) -> Batch:
    """Read the answer to a catch-up or long-poll read from an offset."""
    if answer.status != 200:
        raise error_from_response(answer)
    closed = is_set(answer, names.STREAM_CLOSED)
    batch = Batch(
        answer.body,
        offset,
        next_offset(answer),
        closed or is_set(answer, names.STREAM_UP_TO_DATE),
        closed,
        content_type_of(answer),
        answer.headers.get(names.STREAM_CURSOR.lower()),
        url=url,
    )
    check_progress(answer, batch)
    return batch


def check_progress(answer: Response, batch: Batch) -> None:
    """Refuse an answer that can't be one to this question.

    PROTOCOL 8: offsets increase. One that stays while there is data, or goes back, answers another
    request: a broken proxy has sent an answer twice, or to the wrong one.
    """
    if batch.start in {START, NOW}:
        return
    if batch.next_offset < batch.start or (batch.next_offset == batch.start and not batch.empty):
        reason = "it answered another request"
        raise ConnectionLost(answer.url, origin_of(answer.url), reason)
    if batch.next_offset == batch.start and not batch.up_to_date:
        # Asking again would get the same answer, for ever.
        raise unexpected_response(answer, "neither data nor the end of the stream")


def next_offset(answer: Response) -> str:
    """Take the offset that every success carries."""
    offset = answer.headers.get(names.STREAM_NEXT_OFFSET.lower())
    if offset is None:
        raise unexpected_response(answer, f"no {names.STREAM_NEXT_OFFSET}")
    return offset


def is_set(answer: Response, name: str) -> bool:
    """Tell whether an answer has a presence header."""
    return is_true(answer.headers.get(name.lower()))


def content_type_of(answer: Response) -> str:
    """Take the content type as the server wrote it."""
    return answer.headers.get("content-type", "")


def _expiry_headers(ttl: int | None, expires_at: str | None) -> dict[str, str]:
    headers = {}
    if ttl is not None:
        headers[names.STREAM_TTL] = str(ttl)
    if expires_at is not None:
        headers[names.STREAM_EXPIRES_AT] = expires_at
    return headers


def _created(answer: Response) -> Created:
    if answer.status not in {200, 201}:
        raise error_from_response(answer)
    return Created(
        answer.url,
        answer.status == 201,
        content_type_of(answer),
        next_offset(answer),
        is_set(answer, names.STREAM_CLOSED),
    )


def _appended_by(claim: ProducerClaim, answer: Response) -> Appended:
    """Read the answer to a producer, who may repeat what went well before the stream was closed."""
    try:
        return _appended(answer)
    except StreamClosed as error:
        seq, offset = error.producer_seq, error.next_offset
        if error.producer_epoch != claim.epoch or seq is None or seq < claim.seq or offset is None:
            raise
        return Appended(offset, closed=True, duplicate=True, producer_seq=seq)


def _appended(answer: Response) -> Appended:
    if answer.status not in {200, 204}:
        raise error_from_response(answer)
    # PROTOCOL 5.2.1: with producer headers, 204 tells a duplicate from new data.
    seq = answer.headers.get(names.PRODUCER_SEQ.lower())
    duplicate = answer.status == 204 and seq is not None
    # Some servers don't say where the stream ends when they answer a duplicate.
    untold = duplicate and names.STREAM_NEXT_OFFSET.lower() not in answer.headers
    offset = "" if untold else next_offset(answer)
    number = int(seq) if seq is not None and seq.isascii() and seq.isdigit() else None
    return Appended(offset, is_set(answer, names.STREAM_CLOSED), duplicate, number)


def _info(answer: Response) -> StreamInfo:
    if answer.status != 200:
        raise error_from_response(answer)
    ttl = answer.headers.get(names.STREAM_TTL.lower(), "")
    return StreamInfo(
        answer.url,
        content_type_of(answer),
        next_offset(answer),
        is_set(answer, names.STREAM_CLOSED),
        int(ttl) if ttl.isascii() and ttl.isdigit() else None,
        answer.headers.get(names.STREAM_EXPIRES_AT.lower()),
        answer.headers.get(names.STREAM_INCARNATION.lower()),
    )


def _exists(answer: Response) -> bool:
    try:
        _info(answer)
    except (StreamNotFound, StreamGone):
        return False
    return True


def _deleted(answer: Response) -> None:
    # A second attempt finds nothing where the first one succeeded without its answer arriving.
    if answer.status == 404 and answer.attempt:
        return
    if not 200 <= answer.status < 300:
        raise error_from_response(answer)


# The calls of a Headwater server that look at streams from above: listing, splitting, changes.
#
# As with streams, a call is the request to send and the reading of its answer.


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
    """Some streams, and the path behind which there may be more."""

    streams: list[ListedStream]
    next: str | None = None


class SplitPoints(Struct, frozen=True):
    """Where a range of a stream may be cut; `next` is where to go on if it was too long."""

    path: str
    content_type: str
    tail: str
    incarnation: str
    closed: bool
    offsets: list[str]
    next: str | None = None


class Changed(Struct, frozen=True):
    """Which streams changed behind a cursor."""

    cursor: str
    streams: list[ListedStream] | None
    """None where the server does not know: list the streams."""
    gone: list[str] = []
    """Those of them that are not there any more."""


def streams(
    base_url: str, glob: str = "**", after: str = "", limit: int = PAGE, *, root: str = ROOT
) -> Call[StreamPage]:
    """List streams in the order of their paths."""
    url = with_query(
        stream_url(base_url, "__ds/streams", root),
        ("glob", glob),
        ("after", after),
        ("limit", str(limit)),
    )
    return Call(Request("GET", url), lambda answer: _read_json(answer, StreamPage))


def splits(
    base_url: str,
    path: str,
    start: str = "-1",
    end: str = "now",
    size: int = SPLIT_BYTES,
    limit: int = PAGE,
    *,
    root: str = ROOT,
) -> Call[SplitPoints]:
    """Ask where a range of a stream may be cut into pieces of about a size."""
    url = with_query(
        stream_url(base_url, "__ds/splits", root) + url_path(path, "/"),
        ("from", start),
        ("to", end),
        ("bytes", str(size)),
        ("limit", str(limit)),
    )
    return Call(Request("GET", url), lambda answer: _read_json(answer, SplitPoints))


def changes(
    base_url: str, globs: Iterable[str], after: str, wait: float, *, root: str = ROOT
) -> Call[Changed]:
    """Ask which streams changed behind a cursor; waits for the first change where none did."""
    url = with_query(
        stream_url(base_url, "__ds/changes", root),
        *(("glob", glob) for glob in globs),
        ("after", after),
        ("wait_ms", str(round(wait * 1000))),
    )
    return Call(Request("GET", url, live=True), lambda answer: _read_json(answer, Changed))


def _read_json(answer: Response, kind: type[T]) -> T:
    if answer.status != 200:
        raise error_from_response(answer)
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise unexpected_response(answer, f"something else than was asked for ({error})") from None
