"""PUT: create a stream or a fork, or confirm that it exists (PROTOCOL 5.1, 4.2)."""

from typing import Final

from headwater.protocol import content_types
from headwater.protocol import headers as names
from headwater.protocol.content_types import media_type
from headwater.protocol.forks import ForkRequest
from headwater.protocol.headers import BadHeader, is_true, parse_expiry, parse_plain_integer
from headwater.protocol.lifecycle import Create
from headwater.protocol.offsets import MalformedOffset, Now, parse_position
from headwater.protocol.paths import BadPath, NotAStream, url_path
from headwater.protocol.producers import MAX_INTEGER
from headwater.protocol.refusals import SourceNotFound
from headwater.server.context import Context, position_headers
from headwater.server.messages import Request, Response
from headwater.server.problems import refuse
from headwater.storage.store import Created

_MAX_CONTENT_TYPE: Final = 255


async def create(context: Context, path: str, request: Request) -> Response:
    """Answer a PUT."""
    expiry = parse_expiry(
        request.head.header(b"stream-ttl"), request.head.header(b"stream-expires-at")
    )
    if isinstance(expiry, BadHeader):
        return refuse(expiry)
    fork = _fork_request(context, request)
    if fork is not None and not isinstance(fork, ForkRequest):
        return refuse(fork)
    content_type = request.head.header(b"content-type")
    if content_type is not None:
        if len(content_type) > _MAX_CONTENT_TYPE:
            expected = f"at most {_MAX_CONTENT_TYPE} characters"
            return refuse(BadHeader("Content-Type", content_type, expected))
        if media_type(content_type) is None:
            content_type = None if fork else content_types.DEFAULT
    outcome = await context.store.create(
        path,
        Create(
            content_type=content_type,
            expiry=expiry,
            body=request.body,
            close=is_true(request.head.header(b"stream-closed")),
            fork=fork,
        ),
        context.clock(),
    )
    if not isinstance(outcome, Created):
        return refuse(outcome)
    info = outcome.info
    headers = position_headers(info, info.tail)
    if info.closed:
        headers.append((b"stream-closed", b"true"))
    if outcome.new:
        headers.append((b"location", _location(context, path, request)))
    return Response(201 if outcome.new else 200, headers)


def _location(context: Context, path: str, request: Request) -> bytes:
    host = request.head.headers.get(b"host", b"")
    target = (request.head.mount + url_path(path, context.settings.root)).encode()
    return b"%s://%s%s" % (request.head.scheme.encode(), host, target) if host else target


def _fork_request(
    context: Context, request: Request
) -> ForkRequest | BadHeader | BadPath | MalformedOffset | SourceNotFound | None:
    source_path = request.head.header(b"stream-forked-from")
    offset_text = request.head.header(b"stream-fork-offset")
    sub_text = request.head.header(b"stream-fork-sub-offset")
    if source_path is None:
        for name, text in (
            (names.STREAM_FORK_OFFSET, offset_text),
            (names.STREAM_FORK_SUB_OFFSET, sub_text),
        ):
            if text is not None:
                return BadHeader(name, text, "to be sent with Stream-Forked-From")
        return None
    source = context.stream_at(source_path.removeprefix(request.head.mount))
    if isinstance(source, NotAStream):
        return SourceNotFound(source_path)
    if isinstance(source, BadPath):
        return source
    offset = None
    if offset_text is not None:
        position = parse_position(offset_text)
        if isinstance(position, MalformedOffset):
            return position
        offset = None if isinstance(position, Now) else position
    sub_offset = 0
    if sub_text is not None:
        number = parse_plain_integer(sub_text, MAX_INTEGER)
        if number is None:
            expected = "a whole number of messages (JSON) or bytes"
            return BadHeader(names.STREAM_FORK_SUB_OFFSET, sub_text, expected)
        sub_offset = number
    return ForkRequest(source, offset, sub_offset)
