"""GET and HEAD: catch-up and long-poll reads, and metadata (PROTOCOL 5.5 to 5.7)."""

import asyncio
from collections.abc import Callable
from typing import Final

from headwater.protocol.caching import make_etag, matches, next_cursor, parse_cursor
from headwater.protocol.content_types import negotiate
from headwater.protocol.framing import render
from headwater.protocol.offsets import NOW, MalformedOffset, Now, Offset, parse_position
from headwater.server.compression import MIN_BYTES, compress
from headwater.server.context import Context, encode_offset, position_headers
from headwater.server.handlers.live import EventStream, Fanout
from headwater.server.messages import Headers, Request, Response
from headwater.server.problems import BadRequest, refuse
from headwater.server.response_cache import ResponseCache
from headwater.storage.file_ranges import Part
from headwater.storage.immediate_future import ImmediateFuture
from headwater.storage.refusals import ReadRefusal
from headwater.storage.store import Chunk, StreamInfo

_NOT_LIVE: Final = ("false",)
_ONE_OFFSET: Final = BadRequest("repeated-parameter", "Send the offset parameter once.")
_LIVE_NEEDS_OFFSET: Final = BadRequest(
    "missing-offset", "A live read needs an offset: a returned one, -1, or now."
)
_UNKNOWN_LIVE: Final = BadRequest("unknown-live-mode", "live is 'long-poll' or 'sse'.")


async def metadata(context: Context, path: str) -> Response:
    """Answer a HEAD."""
    info = await context.store.head(path, context.clock())
    if not isinstance(info, StreamInfo):
        return refuse(info)
    headers = position_headers(info, info.tail)
    headers.append((b"cache-control", b"no-store"))
    if info.closed:
        headers.append((b"stream-closed", b"true"))
    expiry = info.config.expiry
    if expiry.ttl is not None:
        headers.append((b"stream-ttl", b"%d" % expiry.ttl))
    if expiry.expires_at is not None:
        headers.append((b"stream-expires-at", expiry.expires_at.encode("latin-1")))
    return Response(200, headers, omits_length=True)


async def read(
    context: Context, fanout: Fanout, path: str, request: Request
) -> Response | EventStream:
    """Answer a GET."""
    if (key := ResponseCache.key(request)) is not None:
        cached = context.responses.find(key)
        if cached is not None:
            if cached.is_fresh(await context.store.head(path, context.clock())):
                return cached.response
            context.responses.drop(key)
    parameters = request.head.parameters
    offsets = parameters.get("offset", [])
    if len(offsets) > 1:
        return refuse(_ONE_OFFSET)
    position = parse_position(offsets[0] if offsets else None)
    if isinstance(position, MalformedOffset):
        return refuse(position)
    live = parameters.get("live", _NOT_LIVE)[-1]
    if live == "false":
        until = parse_position(parameters.get("until", ["now"])[-1])
        if isinstance(until, MalformedOffset):
            return refuse(until)
        coding = _coding(context, request)
        chunk = await _read(context, path, position, coding, until)
        if not isinstance(chunk, Chunk):
            return refuse(chunk)
        if position is NOW:
            return _at_tail(chunk)
        headers = position_headers(chunk.info, chunk.end)
        response = await _respond_with_data(context, chunk, headers, request, coding)
        if key is not None:
            context.responses.add(key, chunk, response)
        return response
    if live not in {"long-poll", "sse"}:
        return refuse(_UNKNOWN_LIVE)
    if not offsets:
        return refuse(_LIVE_NEEDS_OFFSET)
    cursor = parse_cursor(parameters.get("cursor", [""])[-1])
    if live == "sse":
        return await fanout.subscribe(path, position, cursor)
    return await _long_poll(context, path, position, cursor, request)


async def _read(
    context: Context,
    path: str,
    position: Offset | Now,
    coding: str | None,
    until: Offset | Now = NOW,
) -> Chunk | ReadRefusal:
    """Read a chunk; a chunk that will be compressed is copied, and therefore shorter."""
    uncompressed = coding is None
    limit = context.settings.chunk_bytes if uncompressed else context.copied_bytes
    if isinstance(position, Offset) and isinstance(until, Offset) and until.byte > position.byte:
        limit = min(limit, until.byte - position.byte)
    return await context.store.read(path, position, limit, context.clock(), files=uncompressed)


def _coding(context: Context, request: Request) -> str | None:
    """Return the coding for a long response, or None if it is not compressed."""
    accepted = request.head.header(b"accept-encoding")
    return negotiate(accepted) if accepted is not None and context.settings.compression else None


def _at_tail(chunk: Chunk) -> Response:
    """Answer `offset=now`; the tail moves, so there is no caching and no ETag (PROTOCOL 8)."""
    headers = position_headers(chunk.info, chunk.end)
    _mark_end(headers, chunk)
    headers.append((b"cache-control", b"no-store"))
    return Response(200, headers, _body(chunk))


async def _respond_with_data(
    context: Context, chunk: Chunk, headers: Headers, request: Request, coding: str | None
) -> Response:
    """Return the response with a chunk: ETag, caching, compression."""
    _mark_end(headers, chunk)
    etag = make_etag(chunk.start, chunk.end, chunk.info.incarnation, closed=chunk.at_end)
    headers.append((b"etag", etag.encode()))
    # Only an empty response, at the tail, becomes outdated.
    headers.append((b"cache-control", context.cache_control if chunk.parts else b"no-cache"))
    if_none_match = request.head.header(b"if-none-match")
    if if_none_match is not None and matches(if_none_match, etag):
        return Response(304, [item for item in headers if item[0] != b"content-type"])
    response = Response(200, headers, _body(chunk))
    if context.settings.compression and response.length >= MIN_BYTES:
        headers.append((b"vary", b"accept-encoding"))
        if coding is not None:
            headers.append((b"content-encoding", coding.encode()))
            response.body = (await compress(response.joined(), coding),)
    return response


def _body(chunk: Chunk) -> list[Part]:
    return render(chunk.parts, chunk.info.config.media_type)


def _mark_end(headers: Headers, chunk: Chunk) -> None:
    if chunk.up_to_date:
        headers.append((b"stream-up-to-date", b"true"))
    if chunk.at_end:
        headers.append((b"stream-closed", b"true"))


async def _long_poll(
    context: Context, path: str, position: Offset | Now, cursor: int | None, request: Request
) -> Response:
    """Respond once there is data, or with 204 at the deadline or the end of a closed stream."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + context.settings.long_poll_timeout
    coding = _coding(context, request)
    while True:
        # Watch before reading, so that an append in between is noticed.
        waiter = Waiter(context, path)
        try:
            chunk = await _read(context, path, position, coding)
            if not isinstance(chunk, Chunk):
                return refuse(chunk)
            if chunk.parts or chunk.at_end or context.draining or loop.time() >= deadline:
                break
            position = chunk.end
            await waiter.wait(deadline)
        finally:
            waiter.close()
    if chunk.parts:
        headers = position_headers(chunk.info, chunk.end)
    else:
        headers = [
            (b"stream-next-offset", encode_offset(chunk.end)),
            (b"stream-incarnation", b"%d" % chunk.info.incarnation),
        ]
    headers.append(
        (b"stream-cursor", b"%d" % next_cursor(cursor, context.clock(), context.jitter()))
    )
    if chunk.parts:
        return await _respond_with_data(context, chunk, headers, request, coding)
    _mark_end(headers, chunk)
    headers.append((b"cache-control", b"no-store"))
    return Response(204, headers)


class Waiter:
    """Waits until a stream changes, a deadline passes, or the server stops."""

    __slots__ = ("_context", "_future", "_loop", "_unwatch")

    def __init__(self, context: Context, path: str) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        # An ImmediateFuture can't be cancelled, and a task may be.
        self._future: asyncio.Future[None] | ImmediateFuture[None] = (
            ImmediateFuture(self._loop)
            if asyncio.current_task() is None
            else self._loop.create_future()
        )
        self._unwatch: Callable[[], None] = context.store.watch(path, self._wake)
        context.drain_callbacks.add(self._wake_soon)

    def _wake_soon(self) -> None:
        self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, deadline: float) -> None:
        timer = self._loop.call_at(deadline, self._wake)
        try:
            await self._future
        finally:
            timer.cancel()

    def close(self) -> None:
        self._unwatch()
        self._context.drain_callbacks.discard(self._wake_soon)
