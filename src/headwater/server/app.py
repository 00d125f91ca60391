"""The application: which handler answers which request, independent of transport and storage."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from headwater.errors import StoreDamaged
from headwater.server.admission import Admission, Overload, TooLarge
from headwater.server.compression import CorruptBody, UnknownCoding, decompress
from headwater.server.context import Context
from headwater.server.handlers.append import append
from headwater.server.handlers.create import create
from headwater.server.handlers.listing import Listing
from headwater.server.handlers.live import EventStream, Fanout
from headwater.server.handlers.read import metadata, read
from headwater.server.housekeeping import Housekeeping, Job
from headwater.server.messages import Head, Headers, Request, Response
from headwater.server.problems import (
    BAD_CODING,
    INTERNAL,
    NOT_READY,
    UNSUPPORTED_CODING,
    method_not_allowed,
    problem_response,
    refuse,
)
from headwater.server.runs.routes import RunRoutes
from headwater.server.runs.service import RunService
from headwater.server.settings import Settings
from headwater.server.subscriptions.service import SubscriptionService
from headwater.storage.refusals import BytesDamaged
from headwater.storage.store import Store

log: Final = logging.getLogger("headwater.app")

ALLOWED: Final = "GET, HEAD, PUT, POST, DELETE, OPTIONS"
_ALLOW_HEADERS: Final = (
    b"content-type, content-encoding, authorization, if-none-match, stream-seq, stream-ttl, "
    b"stream-expires-at, stream-closed, stream-forked-from, stream-fork-offset, "
    b"stream-fork-sub-offset, producer-id, producer-epoch, producer-seq"
)
_EXPOSE_HEADERS: Final = (
    b"stream-next-offset, stream-cursor, stream-up-to-date, stream-closed, stream-incarnation, "
    b"stream-ttl, stream-expires-at, stream-sse-data-encoding, producer-epoch, producer-seq, "
    b"producer-expected-seq, producer-received-seq, etag, location, retry-after, "
    b"content-type, content-encoding, vary"
)


class Application:
    """The streams of a store: HTTP/1.1 or ASGI passes requests to it and sends the responses."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self.settings = settings
        self.admission = Admission(
            settings.max_connections, settings.max_body_bytes, settings.max_buffered_bytes
        )
        self.context = Context(store, settings, clock, jitter)
        self.fanout = Fanout(self.context)
        self.listing = Listing(self.context)
        self.subscriptions = SubscriptionService(store, settings, clock, jitter)
        self.run_service = RunService(settings)
        self._runs = RunRoutes(self.context, self.run_service)
        self._housekeeping = Housekeeping([Job("expiry", settings.reap_interval, self._expire)])
        origin = settings.cors_origin.encode()
        self.common_headers: Headers = [
            (b"x-content-type-options", b"nosniff"),
            (b"cross-origin-resource-policy", b"cross-origin"),
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSE_HEADERS),
        ]
        """Headers of every response (PROTOCOL 12.7), which the transport adds."""
        if origin != b"*":
            self.common_headers.append((b"vary", b"origin"))

    async def handle(self, request: Request) -> Response | EventStream:
        """Answer a request; this never raises."""
        head = request.head
        try:
            if b"content-encoding" in head.headers and request.body:
                refusal = await self._decompress(request)
                if refusal is not None:
                    return refuse(refusal)
            path = head.stream
            if path is None:
                path = head.stream = self.context.stream_at(head.url_path)
            method = head.method
            if type(path) is not str or method == "OPTIONS":
                # PROTOCOL 6: no stream has a path below the reserved prefix.
                if method != "OPTIONS" and head.url_path.startswith(self.subscriptions.prefix):
                    return await self.listing.handle(
                        request
                    ) or await self.subscriptions.routes.handle(request)
                if method != "OPTIONS" and self._runs.owns(head.url_path):
                    return await self._runs.handle(request)
                return self._elsewhere(path, head)
            if method == "POST":
                return await append(self.context, path, request)
            if method == "GET":
                return await read(self.context, self.fanout, path, request)
            if method == "PUT":
                return await create(self.context, path, request)
            if method == "HEAD":
                return await metadata(self.context, path)
            if method == "DELETE":
                return await _delete(self.context, path)
            return problem_response(method_not_allowed(method, ALLOWED))
        except UnknownCoding:
            return problem_response(UNSUPPORTED_CODING)
        except CorruptBody:
            return problem_response(BAD_CODING)
        except StoreDamaged as damage:
            log.error("stored bytes are damaged", extra={"path": head.url_path, "error": damage})  # noqa: TRY400 - the error has the place
            return refuse(BytesDamaged(head.url_path, f"{damage.file}: {damage.reason}"))
        except Exception:
            log.exception("request failed", extra={"method": head.method, "path": head.url_path})
            return problem_response(INTERNAL)

    async def _decompress(self, request: Request) -> TooLarge | Overload | None:
        hold = request.hold
        if hold is None:
            hold = request.hold = self.admission.hold()
        codings = request.head.headers[b"content-encoding"].decode("latin-1")
        outcome = await decompress(request.body, codings, hold)
        if not isinstance(outcome, bytes):
            return outcome
        request.body = outcome
        return None

    def _elsewhere(self, path: object, request: Head) -> Response:
        """Answer preflights and health checks; refuse other paths, which name no stream."""
        if request.method == "OPTIONS":
            return _preflight()
        if request.url_path not in {"/healthz", "/readyz"}:
            return refuse(path)
        if request.method not in {"GET", "HEAD"}:
            return problem_response(method_not_allowed(request.method, "GET, HEAD, OPTIONS"))
        headers: Headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        if request.url_path == "/healthz":
            return Response(200, headers, (b'{"status":"alive"}\n',))
        if self.store.ready:
            return Response(200, headers, (b'{"status":"ready"}\n',))
        return problem_response(NOT_READY)

    async def start(self) -> None:
        """Start background work, once the store is open."""
        await self.subscriptions.start()
        await self.run_service.start()
        self._housekeeping.start()

    async def stop(self) -> None:
        """Stop background work, before the store is closed."""
        await self._housekeeping.stop()
        await self.run_service.stop()
        self.listing.changes.stop()
        await self.subscriptions.stop()

    async def _expire(self) -> None:
        while removed := await self.store.expire(self.context.clock(), limit=1000):
            log.info("removed expired streams", extra={"count": removed})
            await asyncio.sleep(0)

    def drain(self) -> None:
        """Answer long-polls and end SSE streams, because the server stops."""
        self.context.drain()


async def _delete(context: Context, path: str) -> Response:
    missing = await context.store.delete(path, context.clock())
    return Response(204, []) if missing is None else refuse(missing)


def _preflight() -> Response:
    return Response(
        204,
        [
            (b"allow", ALLOWED.encode()),
            (b"access-control-allow-methods", ALLOWED.encode()),
            (b"access-control-allow-headers", _ALLOW_HEADERS),
            (b"access-control-max-age", b"86400"),
        ],
    )
