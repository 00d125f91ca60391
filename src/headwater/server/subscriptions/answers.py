"""What clients of the control APIs are told: problems, with the protocol's `error` in them."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from headwater.protocol.subscriptions import AlreadyClaimed, BadConfig, NothingPending, WakeFenced
from headwater.server.messages import Headers, Response
from headwater.server.problems import CONTENT_TYPE, Problem, problem_of
from headwater.server.subscriptions.addresses import Rejected
from headwater.server.subscriptions.keys import TooManyKeys
from headwater.server.subscriptions.leases import BadAck
from headwater.server.subscriptions.registry import ConfigConflict, SubscriptionNotFound
from headwater.server.subscriptions.tokens import BadToken


class BadBody(msgspec.Struct, frozen=True):
    """The body is not what this resource takes."""

    reason: str


class NoResource(msgspec.Struct, frozen=True):
    """There is nothing at this path."""


class NotPullWake(msgspec.Struct, frozen=True):
    """A webhook subscription is not claimed."""

    subscription_id: str


_TABLE: Final[dict[type, Callable[[Any], tuple[int, str, str, str]]]] = {
    BadBody: lambda x: (400, "INVALID_REQUEST", "The request can't be used", f"{x.reason}."),
    BadConfig: lambda x: (
        400,
        "INVALID_REQUEST",
        "The subscription can't be made",
        f"Nothing was changed: {x.reason}.",
    ),
    Rejected: lambda x: (
        400,
        "WEBHOOK_URL_REJECTED",
        "The webhook may not be called",
        f"Its URL is refused: {x.reason}.",
    ),
    NotPullWake: lambda x: (
        400,
        "INVALID_REQUEST",
        "The subscription is not claimed",
        f"'{x.subscription_id}' wakes a webhook; only pull-wake subscriptions are claimed.",
    ),
    BadAck: lambda x: (
        400,
        "INVALID_OFFSET",
        "An ack names no position of its stream",
        f"Nothing was acked, '{x.stream[:200]}' can't be: {x.reason}.",
    ),
    BadToken: lambda x: (
        401,
        "TOKEN_EXPIRED" if x.expired else "TOKEN_INVALID",
        "The token is not accepted",
        "Send the token of the wake as 'Authorization: Bearer …'.",
    ),
    SubscriptionNotFound: lambda x: (
        404,
        "SUBSCRIPTION_NOT_FOUND",
        "There is no such subscription",
        f"'{x.subscription_id[:200]}' does not exist or was deleted; create it with PUT.",
    ),
    NoResource: lambda _: (
        404,
        "NOT_FOUND",
        "Nothing is here",
        "__ds/ has subscriptions, jwks.json, streams, splits/<path> and changes.",
    ),
    ConfigConflict: lambda x: (
        409,
        "SUBSCRIPTION_ALREADY_EXISTS",
        "The subscription exists with another configuration",
        f"Delete '{x.subscription_id}' first, or use another id.",
    ),
    AlreadyClaimed: lambda x: (
        409,
        "ALREADY_CLAIMED",
        "Another worker holds the lease",
        f"'{x.holder}' works on generation {x.generation}; wait for the next wake.",
    ),
    NothingPending: lambda _: (
        409,
        "NO_PENDING_WORK",
        "There is nothing to do",
        "Every linked stream was processed; wait for the next wake.",
    ),
    WakeFenced: lambda x: (
        409,
        "FENCED",
        "The wake is over",
        f"The subscription is at generation {x.generation}: stop, and wait for the next wake.",
    ),
    TooManyKeys: lambda x: (
        429,
        "TOO_MANY_KEYS",
        "Too many keys were replaced lately",
        f"All of the last {x.count} keys are still needed; rotate again later.",
    ),
}


def json_response(status: int, value: object, *headers: tuple[bytes, bytes]) -> Response:
    """Answer with JSON that nobody keeps."""
    plain: Headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    return Response(status, [*plain, *headers], (msgspec.json.encode(value),))


def refuse(refusal: object) -> Response:
    """Answer with a refusal."""
    row = _TABLE.get(type(refusal))
    if row is None:
        problem = problem_of(refusal)
        return _response(problem, problem.code.replace("-", "_").upper(), {})
    status, code, title, detail = row(refusal)
    more: dict[str, object] = {}
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(refusal, AlreadyClaimed):
        more = {"current_holder": refusal.holder, "generation": refusal.generation}
    elif isinstance(refusal, WakeFenced):
        more = {"generation": refusal.generation}
    elif isinstance(refusal, BadToken):
        headers = (("WWW-Authenticate", "Bearer"),)
    problem = Problem(status, code.lower().replace("_", "-"), title, detail, headers)
    return _response(problem, code, more)


def refuse_problem(problem: Problem) -> Response:
    """Answer with a problem that every resource may have."""
    return _response(problem, problem.code.replace("-", "_").upper(), {})


def _response(problem: Problem, code: str, more: dict[str, object]) -> Response:
    body = {
        "type": f"urn:headwater:problem:{problem.code}",
        "title": problem.title,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        "error": {"code": code, "message": problem.detail, **more},
    }
    headers: Headers = [(b"content-type", CONTENT_TYPE), (b"cache-control", b"no-store")]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in problem.headers]
    return Response(problem.status, headers, (msgspec.json.encode(body),))
