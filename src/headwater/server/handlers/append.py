"""POST: append, close, or both at once (PROTOCOL 5.2, 5.3)."""

from typing import Final

from headwater.protocol.headers import BadHeader, is_true, parse_producer
from headwater.protocol.lifecycle import Append
from headwater.protocol.producers import ProducerClaim
from headwater.server.context import Context, encode_offset
from headwater.server.messages import Headers, Request, Response
from headwater.server.problems import BadRequest, refuse
from headwater.storage.store import Appended

_PRODUCER_HEADERS: Final = frozenset({b"producer-id", b"producer-epoch", b"producer-seq"})
_NO_BODY: Final = BadRequest(
    "empty-body", "An append needs a body, except for 'Stream-Closed: true'."
)
_NO_CONTENT_TYPE: Final = BadRequest(
    "missing-content-type", "An append needs the Content-Type of the stream."
)


async def append(context: Context, path: str, request: Request) -> Response:
    """Answer a POST."""
    given = request.head.headers
    producer = _producer(request)
    if isinstance(producer, BadHeader):
        return refuse(producer)
    close = b"stream-closed" in given and is_true(request.head.header(b"stream-closed"))
    body = request.body
    content_type = ""
    if body:
        if b"content-type" not in given:
            return refuse(_NO_CONTENT_TYPE)
        content_type = given[b"content-type"].decode("latin-1")
    elif not close:
        return refuse(_NO_BODY)
    seq = request.head.header(b"stream-seq")
    outcome = await context.store.append(
        path, Append(content_type, body, close, seq, producer), context.clock()
    )
    if type(outcome) is not Appended:
        return refuse(outcome)
    headers: Headers = [(b"stream-next-offset", encode_offset(outcome.tail))]
    if outcome.closed:
        headers.append((b"stream-closed", b"true"))
    if outcome.producer is None:
        return Response(204, headers)
    headers.append((b"producer-epoch", b"%d" % outcome.producer.epoch))
    headers.append((b"producer-seq", b"%d" % outcome.producer.seq))
    # PROTOCOL 5.2.1: 200 for new data, 204 for a duplicate and for closing without data.
    return Response(200 if body and not outcome.repeated else 204, headers)


def _producer(request: Request) -> ProducerClaim | BadHeader | None:
    if _PRODUCER_HEADERS.isdisjoint(request.head.headers):
        return None
    return parse_producer(
        request.head.header(b"producer-id"),
        request.head.header(b"producer-epoch"),
        request.head.header(b"producer-seq"),
    )
