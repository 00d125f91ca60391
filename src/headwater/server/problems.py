"""The table that maps refusals to problem documents (RFC 9457).

A problem has a status, a stable `code`, a `detail` that says what to do next, and the headers that
the protocol requires. The control API repeats it in an `error` member (PROTOCOL 7).
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from headwater.errors import (
    EventRefused,
    RunDeleted,
    RunError,
    RunNotFound,
    RunQueryRefused,
    RunStoreDamaged,
    RunStoreUnavailable,
)
from headwater.protocol import headers as names
from headwater.protocol import refusals as r
from headwater.protocol.framing import EmptyArray, InvalidJson
from headwater.protocol.headers import BadHeader
from headwater.protocol.offsets import (
    MalformedOffset,
    OffsetBeyondTail,
    OffsetInsideMessage,
    StaleIncarnation,
    UnknownPosition,
)
from headwater.protocol.paths import BadPath, NotAStream
from headwater.protocol.producers import EpochStartsAtZero, Fenced, SequenceGap
from headwater.protocol.subscriptions import AlreadyClaimed, BadConfig, NothingPending, WakeFenced
from headwater.server.admission import Overload, TooLarge
from headwater.server.messages import Headers, Response
from headwater.server.subscriptions.refusals import (
    BadAck,
    BadBody,
    BadToken,
    ConfigConflict,
    NoResource,
    NotPullWake,
    SubscriptionNotFound,
    TooManyKeys,
    WebhookRejected,
)
from headwater.storage.refusals import BytesDamaged, StoreFull, StoreUnwritable

CONTENT_TYPE: Final = b"application/problem+json"
_MAX_ECHO: Final = 200


class Problem(NamedTuple):
    """The content of a problem document, and the headers sent with it."""

    status: int
    code: str
    title: str
    detail: str
    headers: tuple[tuple[str, str], ...] = ()
    error: tuple[tuple[str, object], ...] = ()
    """Members that the control API adds to the code and message in `error`."""


class BadRequest(msgspec.Struct, frozen=True):
    """A request with an invalid or missing header or parameter."""

    code: str
    detail: str


def _closed(x: r.StreamClosed) -> Problem:
    headers = [(names.STREAM_CLOSED, "true"), (names.STREAM_NEXT_OFFSET, str(x.tail))]
    if x.producer is not None:
        # PROTOCOL 5.2.1 requires 409 also for data appended before another client closed.
        headers.append((names.PRODUCER_EPOCH, str(x.producer.epoch)))
        headers.append((names.PRODUCER_SEQ, str(x.producer.seq)))
    return Problem(
        409,
        "stream-closed",
        "The stream is closed",
        f"'{x.path}' ends at offset {x.tail} and takes no more appends; create another stream.",
        tuple(headers),
    )


def _fenced(x: Fenced) -> Problem:
    return Problem(
        403,
        "producer-fenced",
        "A newer producer session has taken over",
        f"Producer '{x.producer_id}' is at epoch {x.current_epoch}, not {x.epoch}: stop, or claim "
        f"epoch {x.current_epoch + 1} starting at sequence 0.",
        ((names.PRODUCER_EPOCH, str(x.current_epoch)),),
    )


def _gap(x: SequenceGap) -> Problem:
    return Problem(
        409,
        "producer-sequence-gap",
        "The producer skipped a sequence number",
        f"Producer '{x.producer_id}' must send sequence {x.expected} next, not {x.received}.",
        (
            (names.PRODUCER_EXPECTED_SEQ, str(x.expected)),
            (names.PRODUCER_RECEIVED_SEQ, str(x.received)),
        ),
    )


def _unwritable(x: StoreUnwritable) -> Problem:
    if x.stopped:
        detail = f"Writes are stopped until the server is restarted: {x.reason}."
    elif x.full:
        detail = f"Nothing was written: {x.reason}. Free disk space, then send it again."
    else:
        detail = f"Nothing was written: {x.reason}. Try again later."
    return Problem(
        507 if x.full else 503,
        "store-unwritable",
        "The store can't be written",
        detail,
        (("Retry-After", "5"),),
    )


def _run(status: int, title: str) -> Callable[[RunError], Problem]:
    headers = (("Retry-After", "1"),) if status == 503 else ()
    return lambda x: Problem(status, x.code, title, str(x), headers)


_TABLE: Final[dict[type, Callable[[Any], Problem]]] = {
    r.StreamNotFound: lambda x: Problem(
        404,
        "stream-not-found",
        "There is no such stream",
        f"'{x.path}' does not exist, was deleted, or has expired; create it with PUT.",
    ),
    r.StreamGone: lambda x: Problem(
        410,
        "stream-gone",
        "The stream was deleted",
        f"'{x.path}' was deleted and only its forks can still be read.",
    ),
    r.PathBlocked: lambda x: Problem(
        409,
        "path-blocked",
        "A deleted stream still has forks at this path",
        f"'{x.path}' was deleted but has forks; delete them first, or use another path.",
    ),
    r.ConfigMismatch: lambda x: Problem(
        409,
        "config-mismatch",
        "The stream exists with another configuration",
        f"'{x.path}' exists, but its {x.field} is {x.existing}, not {x.requested}.",
    ),
    r.StreamClosed: _closed,
    r.ContentTypeMismatch: lambda x: Problem(
        409,
        "content-type-mismatch",
        "The content type is not the stream's",
        f"'{x.path}' holds {x.expected}; send that instead of {x.received or 'nothing'}.",
    ),
    r.SeqRegression: lambda x: Problem(
        409,
        "stream-seq-regression",
        "Stream-Seq did not increase",
        f"The last Stream-Seq of '{x.path}' is '{x.last}'; '{x.received}' is not greater.",
    ),
    OffsetBeyondTail: lambda x: Problem(
        400,
        "offset-beyond-tail",
        "The offset is past the end of the stream",
        f"The stream ends at {x.tail}; use an offset that this server returned, -1, or now.",
        ((names.STREAM_NEXT_OFFSET, str(x.tail)),),
    ),
    OffsetInsideMessage: lambda x: Problem(
        400,
        "offset-inside-message",
        "The offset is inside a message",
        f"{x.offset} is not the end of a message; use an offset that this server returned.",
    ),
    UnknownPosition: lambda x: Problem(
        400,
        "offset-unknown",
        "The offset names no position of this stream",
        f"{x.offset} was never returned for this stream; use one that was, -1, or now.",
    ),
    StaleIncarnation: lambda x: Problem(
        410,
        "offset-gone",
        "The offset belongs to a stream that is gone",
        f"{x.offset} is from an earlier stream at this path; the present one is incarnation "
        f"{x.epoch}: start again from -1.",
        ((names.STREAM_INCARNATION, str(x.epoch)),),
    ),
    MalformedOffset: lambda x: Problem(
        400,
        "offset-malformed",
        "The offset is malformed",
        f"'{x.text[:_MAX_ECHO]}' is not an offset; use one that this server returned, -1, or now.",
    ),
    r.SourceNotFound: lambda x: Problem(
        404,
        "fork-source-not-found",
        "The stream to fork does not exist",
        f"'{x.path}' does not exist; Stream-Forked-From takes the URL path of an existing stream.",
    ),
    r.SourceGone: lambda x: Problem(
        409,
        "fork-source-gone",
        "The stream to fork was deleted",
        f"'{x.path}' was deleted and can't be forked again; fork one of its forks.",
    ),
    r.SubOffsetOvershoot: lambda x: Problem(
        400,
        "fork-sub-offset-overshoot",
        "The sub-offset is past the end of the source",
        f"Only {x.available} {x.unit} follow the fork offset, not {x.sub_offset}.",
    ),
    Fenced: _fenced,
    SequenceGap: _gap,
    EpochStartsAtZero: lambda x: Problem(
        400,
        "producer-epoch-start",
        "A new producer epoch starts at sequence 0",
        f"Epoch {x.epoch} of producer '{x.producer_id}' is new: send sequence 0, not {x.received}.",
    ),
    InvalidJson: lambda x: Problem(
        400, "invalid-json", "The body is not valid JSON", f"Nothing was appended: {x.reason}."
    ),
    EmptyArray: lambda _: Problem(
        400,
        "empty-array",
        "The array is empty",
        "An append of [] contains no message; send at least one.",
    ),
    StoreFull: lambda x: Problem(
        429,
        "store-full",
        "The store is full",
        f"Nothing was written: {x.limit}. Delete streams, let some expire, or raise the limit.",
        (("Retry-After", "5"),),
    ),
    StoreUnwritable: _unwritable,
    BytesDamaged: lambda x: Problem(
        500,
        "stream-damaged",
        "Stored bytes of this stream are damaged",
        f"'{x.path}' can't be read here ({x.place}); other streams are not affected. "
        "The operator can recover the intact data with 'headwater repair'.",
    ),
    BadHeader: lambda x: Problem(
        400,
        "bad-header",
        f"{x.name} is invalid",
        f"{x.name} must be {x.expected}."
        if not x.value
        else f"'{x.value[:_MAX_ECHO]}' is not a valid {x.name}: expected {x.expected}.",
    ),
    BadPath: lambda x: Problem(
        400, "bad-path", "The path can't name a stream", f"The path is refused: {x.reason}."
    ),
    NotAStream: lambda x: Problem(
        404,
        "not-found",
        "There is no such resource",
        f"Streams are served under {x.root}, such as {x.root}chat/42.",
    ),
    BadRequest: lambda x: Problem(400, x.code, "The request can't be used", x.detail),
    TooLarge: lambda _: Problem(
        413,
        "body-too-large",
        "The body is too large",
        "The body exceeds the server's limit; split it into smaller appends.",
    ),
    Overload: lambda x: Problem(
        429,
        x.code,
        "The server is at its limit",
        x.detail,
        (("Retry-After", str(x.retry_after)),),
    ),
    # The control API
    BadBody: lambda x: Problem(400, "invalid-request", "The request can't be used", f"{x.reason}."),
    BadConfig: lambda x: Problem(
        400,
        "invalid-request",
        "The subscription can't be created",
        f"Nothing was changed: {x.reason}.",
    ),
    WebhookRejected: lambda x: Problem(
        400,
        "webhook-url-rejected",
        "The webhook is not allowed",
        f"Its URL is refused: {x.reason}.",
    ),
    NotPullWake: lambda x: Problem(
        400,
        "invalid-request",
        "The subscription can't be claimed",
        f"'{x.subscription_id}' calls a webhook; only pull-wake subscriptions can be claimed.",
    ),
    BadAck: lambda x: Problem(
        400,
        "invalid-offset",
        "An ack has an invalid offset",
        f"Nothing was acked: the ack of '{x.stream[:_MAX_ECHO]}' is invalid: {x.reason}.",
    ),
    BadToken: lambda x: Problem(
        401,
        "token-expired" if x.expired else "token-invalid",
        "The token is not accepted",
        "Send the token of the wake as 'Authorization: Bearer …'.",
        (("WWW-Authenticate", "Bearer"),),
    ),
    SubscriptionNotFound: lambda x: Problem(
        404,
        "subscription-not-found",
        "There is no such subscription",
        f"'{x.subscription_id[:_MAX_ECHO]}' does not exist or was deleted; create it with PUT.",
    ),
    NoResource: lambda _: Problem(
        404,
        "not-found",
        "There is no such resource",
        "__ds/ has subscriptions, jwks.json, streams, splits/<path> and changes.",
    ),
    ConfigConflict: lambda x: Problem(
        409,
        "subscription-already-exists",
        "The subscription exists with another configuration",
        f"Delete '{x.subscription_id}' first, or use another id.",
    ),
    AlreadyClaimed: lambda x: Problem(
        409,
        "already-claimed",
        "Another worker holds the lease",
        f"'{x.holder}' is processing generation {x.generation}; wait for the next wake.",
        error=(("current_holder", x.holder), ("generation", x.generation)),
    ),
    NothingPending: lambda _: Problem(
        409,
        "no-pending-work",
        "No work is pending",
        "All linked streams have been processed; wait for the next wake.",
    ),
    WakeFenced: lambda x: Problem(
        409,
        "fenced",
        "The wake has ended",
        f"The subscription is at generation {x.generation}: stop, and wait for the next wake.",
        error=(("generation", x.generation),),
    ),
    TooManyKeys: lambda x: Problem(
        429,
        "too-many-keys",
        "Too many keys were replaced recently",
        f"All of the last {x.count} keys are still needed; rotate again later.",
    ),
    # Runs
    EventRefused: _run(400, "The event is refused"),
    RunQueryRefused: _run(400, "The query is invalid"),
    RunNotFound: _run(404, "There is no such run"),
    RunDeleted: _run(410, "The run was deleted"),
    RunStoreDamaged: _run(500, "The runs can't be read"),
    RunStoreUnavailable: _run(503, "The run store can't be used now"),
    RunError: _run(500, "The run can't be read"),
}


def problem_of(refusal: object) -> Problem:
    """Return the problem for a refusal; a subclass without a row has that of its base class."""
    kind = next(kind for kind in type(refusal).__mro__ if kind in _TABLE)
    return _TABLE[kind](refusal)


def problem_response(problem: Problem, *, control: bool = False) -> Response:
    """Return a response with a problem document; `control` adds the control API's `error`."""
    document: dict[str, object] = {
        "type": f"urn:headwater:problem:{problem.code}",
        "title": problem.title,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
    }
    if control:
        code = problem.code.replace("-", "_").upper()
        document["error"] = {"code": code, "message": problem.detail, **dict(problem.error)}
    headers: Headers = [(b"content-type", CONTENT_TYPE), (b"cache-control", b"no-store")]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in problem.headers]
    return Response(problem.status, headers, (msgspec.json.encode(document),))


def refuse(refusal: object, *, control: bool = False) -> Response:
    """Return the response to a refused request."""
    return problem_response(problem_of(refusal), control=control)


TOO_SLOW: Final = Problem(
    408, "request-timeout", "The request took too long", "Send the whole request without pausing."
)
HEADERS_TOO_LARGE: Final = Problem(
    431,
    "headers-too-large",
    "The request line and headers are too large",
    "Send a shorter URL or fewer headers.",
)
MALFORMED: Final = Problem(
    400, "malformed-request", "The request is not HTTP/1.1", "The request could not be parsed."
)
UNSUPPORTED_CODING: Final = Problem(
    415,
    "unsupported-content-coding",
    "The content coding is unknown",
    "Send the body uncompressed, or with gzip, deflate, br or zstd.",
)
BAD_CODING: Final = Problem(
    400,
    "corrupt-body",
    "The body can't be decompressed",
    "The body does not match its Content-Encoding.",
)
EXPECTATION_FAILED: Final = Problem(
    417,
    "expectation-failed",
    "The expectation is not supported",
    "The server only supports 'Expect: 100-continue'.",
)
NOT_READY: Final = Problem(
    503, "not-ready", "The store is not open", "Try again in a moment.", (("Retry-After", "1"),)
)
INTERNAL: Final = Problem(
    500,
    "internal-error",
    "The server failed",
    "This is an internal error; see the server's log. The request may be retried.",
)


def method_not_allowed(method: str, allowed: str) -> Problem:
    """Return the problem of a method that a resource does not support."""
    return Problem(
        405,
        "method-not-allowed",
        "The method is not supported",
        f"'{method[:_MAX_ECHO]}' is not one of {allowed}.",
        (("Allow", allowed),),
    )
