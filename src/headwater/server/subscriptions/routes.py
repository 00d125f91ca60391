"""Routes of the control API under `{root}__ds/`: subscriptions, leases, keys (PROTOCOL 6, 7)."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from headwater.protocol.paths import RESERVED
from headwater.protocol.subscriptions import (
    MAX_ID,
    BadConfig,
    ConfigRequest,
    normalise,
    status,
    stream_path,
    stream_paths,
)
from headwater.server import problems, routing
from headwater.server.messages import Request, Response
from headwater.server.routing import json_response, parse_number, split_path
from headwater.server.settings import Settings
from headwater.server.subscriptions.addresses import WebhookRules, check_url
from headwater.server.subscriptions.delivery import WakeDelivery
from headwater.server.subscriptions.keys import SigningKey, SigningKeys
from headwater.server.subscriptions.leases import MAX_WORKER, Acked, AckRequest, Claimed, Leases
from headwater.server.subscriptions.refusals import (
    BadBody,
    BadToken,
    NoResource,
    NotPullWake,
    SubscriptionNotFound,
    WebhookRejected,
)
from headwater.server.subscriptions.registry import SubscriptionCreated, SubscriptionRegistry
from headwater.server.subscriptions.subscription import Subscription
from headwater.server.subscriptions.tokens import Claims, verify

_JWKS_HEADERS: Final = [
    (b"content-type", b"application/jwk-set+json"),
    (b"cache-control", b"public, max-age=300"),
]
_MAX_LISTED: Final = 1000

refuse: Final = partial(problems.refuse, control=True)
by_method: Final = partial(routing.by_method, control=True)

T = TypeVar("T")
Handler = Callable[[Request, Subscription], Awaitable[Response]]


class StreamsBody(msgspec.Struct, frozen=True):
    """The body of a request to link streams."""

    streams: list[str]


class ClaimBody(msgspec.Struct, frozen=True):
    """The body of a claim."""

    worker: str


class SubscriptionRoutes:
    """Answers the requests to the control API."""

    def __init__(
        self,
        settings: Settings,
        url_rules: WebhookRules,
        subscriptions: SubscriptionRegistry,
        delivery: WakeDelivery,
        leases: Leases,
        keys: SigningKeys,
    ) -> None:
        self._settings = settings
        self._url_rules = url_rules
        self._subscriptions = subscriptions
        self._delivery = delivery
        self._leases = leases
        self._keys = keys
        self._actions: dict[str, Handler] = {
            "claim": self._claim,
            "ack": self._ack,
            "callback": self._ack,
            "release": self._release,
            "streams": self._add_streams,
        }

    async def handle(self, request: Request) -> Response:
        """Answer a request below `__ds/`."""
        head = request.head
        path = head.url_path[len(self._settings.root) + len(RESERVED) + 1 :]
        match split_path(path):
            case ["jwks.json"]:
                return await by_method(request, GET=self._jwks)
            case ["keys", "rotate"]:
                return await by_method(request, POST=self._rotate)
            case ["subscriptions"]:
                return await by_method(request, GET=lambda: self._list(request))
            case ["subscriptions", name]:
                return await by_method(
                    request,
                    GET=lambda: self._with_subscription(name, request, self._show),
                    PUT=lambda: self._put(request, name),
                    DELETE=lambda: self._with_subscription(name, request, self._delete),
                )
            case ["subscriptions", name, action] if action in self._actions:
                handler = self._actions[action]
                return await by_method(
                    request, POST=lambda: self._with_subscription(name, request, handler)
                )
            case ["subscriptions", name, "streams", *segments]:
                return await by_method(
                    request,
                    DELETE=lambda: self._with_subscription(
                        name, request, lambda _, sub: self._remove_stream(sub, "/".join(segments))
                    ),
                )
        return refuse(NoResource())

    async def _with_subscription(self, name: str, request: Request, handler: Handler) -> Response:
        sub = self._subscriptions.get(name)
        return refuse(sub) if isinstance(sub, SubscriptionNotFound) else await handler(request, sub)

    # Subscriptions

    async def _put(self, request: Request, name: str) -> Response:
        if not 0 < len(name) <= MAX_ID or not name.isprintable() or "/" in name or "\\" in name:
            return refuse(BadBody(f"An id has 1 to {MAX_ID} printable characters and no slash"))
        body = _decode(request, ConfigRequest)
        if isinstance(body, BadBody):
            return refuse(body)
        config = normalise(body, self._settings.max_path_bytes)
        if isinstance(config, BadConfig):
            return refuse(config)
        if config.webhook_url is not None:
            target = check_url(config.webhook_url, self._url_rules)
            if isinstance(target, WebhookRejected):
                return refuse(target)
        refusal = await self._keys.ensure()
        if refusal is not None:
            return refuse(refusal)
        outcome = await self._subscriptions.put(name, config, self._base_url(request))
        if not isinstance(outcome, SubscriptionCreated):
            return refuse(outcome)
        location = f"{self._base_url(request)}{RESERVED}/subscriptions/{quote(name, safe='')}"
        headers = ((b"location", location.encode()),) if outcome.new else ()
        shown = await self._describe(request, outcome.sub)
        return json_response(201 if outcome.new else 200, shown, *headers)

    async def _show(self, request: Request, sub: Subscription) -> Response:
        return json_response(200, await self._describe(request, sub))

    async def _describe(self, request: Request, sub: Subscription) -> dict[str, object]:
        """Describe a subscription and its links, after checking its changed streams."""

        async def check_streams() -> None:
            if not sub.deleted and sub.changed_paths:
                await self._delivery.commit_change(await self._delivery.begin_change(sub))

        await sub.queue.run(check_streams)
        streams = [
            {"path": path, "link_type": link.type, "acked_offset": str(link.acked)}
            for path, link in sorted(sub.links.items())
        ]
        return {**self._summary(request, sub), "streams": streams}

    def _summary(self, request: Request, sub: Subscription) -> dict[str, object]:
        config, state = sub.config, sub.state
        webhook = None
        if config.webhook_url is not None:
            jwks = f"{self._base_url(request)}{RESERVED}/jwks.json"
            signing = {"alg": "ed25519", "kid": self._keys.current.kid, "jwks_url": jwks}
            webhook = {"url": config.webhook_url, "signing": signing}
        return {
            "id": sub.id,
            "subscription_id": sub.id,
            "type": config.type,
            "pattern": config.pattern,
            "webhook": webhook,
            "wake_stream": config.wake_stream,
            "lease_ttl_ms": config.lease_ttl_ms,
            "created_at": _time(sub.created_at),
            "status": status(state),
            "description": config.description,
            "delivery": {
                "phase": state.phase,
                "generation": state.generation,
                "holder": state.holder or None,
                "lease_until": _time(state.lease_until),
                "failed_attempts": state.attempts,
                "next_attempt_at": _time(state.next_attempt_at) if state.attempts else None,
                "last_error": state.last_error or None,
            },
        }

    async def _list(self, request: Request) -> Response:
        parameters = request.head.parameters
        after = parameters.get("after", [""])[0]
        limit = parse_number(parameters.get("limit", ["100"])[0], 1, _MAX_LISTED)
        if limit is None:
            return refuse(BadBody(f"limit must be from 1 to {_MAX_LISTED}"))
        page = self._subscriptions.page(after, limit)
        next_id = page[-1].id if len(page) == limit else None
        shown = [{**self._summary(request, sub), "links": len(sub.links)} for sub in page]
        return json_response(200, {"subscriptions": shown, "next": next_id})

    async def _delete(self, _: Request, sub: Subscription) -> Response:
        refusal = await self._subscriptions.delete(sub)
        return Response(204, []) if refusal is None else refuse(refusal)

    async def _add_streams(self, request: Request, sub: Subscription) -> Response:
        body = _decode(request, StreamsBody)
        if isinstance(body, BadBody):
            return refuse(body)
        paths = stream_paths(body.streams, self._settings.max_path_bytes)
        if isinstance(paths, BadConfig):
            return refuse(paths)
        if sub.config.wake_stream in paths:
            return refuse(BadConfig("its wake stream can't be one of its streams"))
        refusal = await self._subscriptions.add_streams(sub, paths)
        return Response(204, []) if refusal is None else refuse(refusal)

    async def _remove_stream(self, sub: Subscription, text: str) -> Response:
        path = stream_path(text, self._settings.max_path_bytes)
        if isinstance(path, BadConfig):
            return refuse(path)
        refusal = await self._subscriptions.remove_stream(sub, path)
        return Response(204, []) if refusal is None else refuse(refusal)

    # Workers

    async def _claim(self, request: Request, sub: Subscription) -> Response:
        if sub.config.type != "pull-wake":
            return refuse(NotPullWake(sub.id))
        body = _decode(request, ClaimBody)
        if isinstance(body, BadBody):
            return refuse(body)
        if not 0 < len(body.worker) <= MAX_WORKER:
            return refuse(BadBody(f"worker must have 1 to {MAX_WORKER} characters"))
        outcome = await self._leases.claim(sub, body.worker)
        if not isinstance(outcome, Claimed):
            return refuse(outcome)
        claimed = {
            "wake_id": outcome.wake_id,
            "generation": outcome.generation,
            "token": outcome.token,
            "streams": outcome.snapshot.streams,
            "lease_ttl_ms": sub.config.lease_ttl_ms,
        }
        return json_response(200, claimed)

    async def _ack(self, request: Request, sub: Subscription) -> Response:
        authorized = self._authorize(request, sub)
        if not isinstance(authorized, tuple):
            return refuse(authorized)
        outcome = await self._leases.ack(sub, *authorized)
        if not isinstance(outcome, Acked):
            return refuse(outcome)
        body: dict[str, object] = {"ok": True, "next_wake": outcome.next_wake}
        if outcome.token is not None:
            body["token"] = outcome.token
        return json_response(200, body)

    async def _release(self, request: Request, sub: Subscription) -> Response:
        authorized = self._authorize(request, sub)
        if not isinstance(authorized, tuple):
            return refuse(authorized)
        refusal = await self._leases.release(sub, *authorized)
        return Response(204, []) if refusal is None else refuse(refusal)

    def _authorize(
        self, request: Request, sub: Subscription
    ) -> tuple[int, AckRequest] | BadToken | BadBody:
        """Return the generation of a valid token, and the body."""
        scheme, _, token = (request.head.header(b"authorization") or "").partition(" ")
        if scheme.lower() != "bearer":
            return BadToken(expired=False)
        claims = verify(self._keys.secret, token.strip(), sub.id, self._delivery.clock())
        if not isinstance(claims, Claims):
            return claims
        body = _decode(request, AckRequest)
        return body if isinstance(body, BadBody) else (claims.gen, body)

    # Keys

    async def _jwks(self) -> Response:
        refusal = await self._keys.ensure()
        if refusal is not None:
            return refuse(refusal)
        keys = [key.jwk() for key in self._keys.published()]
        return Response(200, list(_JWKS_HEADERS), (msgspec.json.encode({"keys": keys}),))

    async def _rotate(self) -> Response:
        rotated = await self._keys.rotate()
        if not isinstance(rotated, SigningKey):
            return refuse(rotated)
        published = [key.kid for key in self._keys.published()]
        return json_response(200, {"kid": rotated.kid, "published": published})

    def _base_url(self, request: Request) -> str:
        """Return the URL of the streams: the operator's public URL, or the one this client used."""
        public = self._settings.public_url
        if public:
            return public.rstrip("/") + self._settings.root
        head = request.head
        host = head.header(b"host") or f"{self._settings.host}:{self._settings.port}"
        return f"{head.scheme}://{host}{head.mount}{self._settings.root}"


def _decode(request: Request, kind: type[T]) -> T | BadBody:
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BadBody(f"The body can't be decoded: {error}")


def _time(seconds: float) -> str | None:
    """Format a time by RFC 3339, in milliseconds; 0 stands for no time."""
    if not seconds:
        return None
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
