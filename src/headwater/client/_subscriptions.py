"""Subscriptions: their requests and the operations on them.

A subscription follows streams and wakes a pull-wake worker or a webhook (PROTOCOL 7). The functions
return calls; `base_url` and `root` are those of the client.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from headwater.client._calls import Call
from headwater.client._error_mapping import error_from_response, unexpected_response
from headwater.client._http1 import Request, Response, control_url, with_query
from headwater.client._operations import Asynchronous, Items, Steps, listing, operation
from headwater.protocol.paths import DEFAULT_ROOT

if TYPE_CHECKING:
    from headwater.client._client import AsyncClient, BaseClient, Client

T = TypeVar("T")

Description = dict[str, Any]
"""A subscription as the server describes it."""


class WakeStream(Struct, frozen=True):
    """A stream of a claim: read it from `acked_offset`."""

    path: str
    acked_offset: str
    tail_offset: str
    has_pending: bool
    link_type: str = "glob"


class Claim(Struct, frozen=True):
    """A wake whose lease this worker holds."""

    wake_id: str
    generation: int
    token: str
    streams: list[WakeStream]
    lease_ttl_ms: int


class Acked(Struct, frozen=True):
    """The result of an ack."""

    next_wake: bool
    token: str = ""
    """A newer token, if the lease continues."""


class SubscriptionCreated(Struct, frozen=True):
    """A subscription that exists now."""

    description: Description
    new: bool
    """False if it existed before, with the same configuration."""


class SubscriptionPage(Struct, frozen=True):
    """Some subscriptions; `next` is the id to continue after, if there may be more."""

    subscriptions: list[Description]
    next: str | None = None


def create(
    base_url: str, subscription: str, config: Description, *, root: str = DEFAULT_ROOT
) -> Call[SubscriptionCreated]:
    """Create a subscription, or confirm it."""
    request = _request("PUT", base_url, subscription, root=root, body=config)

    def interpret(response: Response) -> SubscriptionCreated:
        return SubscriptionCreated(_read(response, {200, 201}, Description), response.status == 201)

    return Call(request, interpret)


def show(base_url: str, subscription: str, *, root: str = DEFAULT_ROOT) -> Call[Description]:
    """Describe a subscription with its streams."""
    return Call(_request("GET", base_url, subscription, root=root), _reader(Description))


def delete(base_url: str, subscription: str, *, root: str = DEFAULT_ROOT) -> Call[None]:
    """Delete a subscription."""
    return Call(_request("DELETE", base_url, subscription, root=root), _nothing)


def list_page(
    base_url: str, after: str = "", *, root: str = DEFAULT_ROOT
) -> Call[SubscriptionPage]:
    """List subscriptions in the order of their ids."""
    url = with_query(control_url(base_url, "subscriptions", root), ("after", after))
    return Call(Request("GET", url), _reader(SubscriptionPage))


def rotate_keys(base_url: str, *, root: str = DEFAULT_ROOT) -> Call[Description]:
    """Sign webhooks with a new key from now on."""
    url = control_url(base_url, "keys/rotate", root)
    return Call(Request("POST", url, repeatable=False), _reader(Description))


def claim(
    base_url: str, subscription: str, worker: str, *, root: str = DEFAULT_ROOT
) -> Call[Claim | None]:
    """Claim pending work; None if there is none, or another worker holds the lease."""
    request = _request(
        "POST",
        base_url,
        subscription,
        "claim",
        root=root,
        body={"worker": worker},
        repeatable=False,
    )

    def interpret(response: Response) -> Claim | None:
        if response.status == 409 and _code(response) in {"ALREADY_CLAIMED", "NO_PENDING_WORK"}:
            return None
        return _read(response, {200}, Claim)

    return Call(request, interpret)


def ack(
    base_url: str,
    subscription: str,
    held: Claim,
    offsets: dict[str, str],
    *,
    done: bool,
    root: str = DEFAULT_ROOT,
) -> Call[Acked]:
    """Acknowledge offsets; without `done`, this extends the lease."""
    acks = [{"stream": path, "offset": offset} for path, offset in offsets.items()]
    body = {"wake_id": held.wake_id, "generation": held.generation, "acks": acks, "done": done}
    request = _request(
        "POST", base_url, subscription, "ack", root=root, body=body, token=held.token
    )
    return Call(request, _reader(Acked))


def release(
    base_url: str, subscription: str, held: Claim, *, root: str = DEFAULT_ROOT
) -> Call[None]:
    """Release the lease without acking, so that another worker is woken."""
    body = {"wake_id": held.wake_id, "generation": held.generation}
    request = _request(
        "POST", base_url, subscription, "release", root=root, body=body, token=held.token
    )
    return Call(request, _nothing)


def _request(
    method: str,
    base_url: str,
    subscription: str,
    action: str = "",
    *,
    root: str,
    body: object = None,
    token: str = "",
    repeatable: bool = True,
) -> Request:
    url = control_url(base_url, "subscriptions", root) + "/" + quote(subscription, safe="")
    headers = {} if body is None else {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = b"" if body is None else msgspec.json.encode(body)
    return Request(
        method, f"{url}/{action}" if action else url, headers, data, repeatable=repeatable
    )


def _reader(kind: type[T]) -> Callable[[Response], T]:
    return lambda response: _read(response, {200}, kind)


def _read(response: Response, success: set[int], kind: type[T]) -> T:
    if response.status not in success:
        raise error_from_response(response)
    try:
        return msgspec.json.decode(response.body, type=kind)
    except msgspec.DecodeError as error:
        raise unexpected_response(response, f"a body that can't be parsed ({error})") from None


def _nothing(response: Response) -> None:
    if response.status != 204:
        raise error_from_response(response)


class _Error(Struct, frozen=True):
    code: str = ""


class _Body(Struct, frozen=True):
    error: _Error = _Error()


def _code(response: Response) -> str:
    try:
        return msgspec.json.decode(response.body, type=_Body).error.code
    except msgspec.DecodeError:
        return ""


class SubscriptionOperations:
    """The operations on subscriptions, for both kinds of clients."""

    client: "BaseClient[Any]"

    @operation
    def create(
        self,
        subscription: str,
        *,
        pattern: str | None = None,
        streams: Iterable[str] = (),
        wake_stream: str | None = None,
        webhook: str | None = None,
        lease: float = 30.0,
        description: str | None = None,
    ) -> Steps[SubscriptionCreated]:
        """Create a subscription to a glob over paths, to streams, or to both; or confirm it.

        Workers are woken by events in `wake_stream`; a `webhook` is a URL that the server calls. A
        worker that is silent for `lease` seconds loses its lease.
        """
        config = _config(pattern, streams, wake_stream, webhook, lease, description)
        client = self.client
        call = create(client.base_url, subscription, config, root=client.root)
        return (yield from client._steps(call))

    @operation
    def show(self, subscription: str) -> Steps[Description]:
        """Describe a subscription with its streams."""
        client = self.client
        return (yield from client._steps(show(client.base_url, subscription, root=client.root)))

    @operation
    def delete(self, subscription: str) -> Steps[None]:
        """Delete a subscription: workers that hold its lease can't ack any more."""
        client = self.client
        yield from client._steps(delete(client.base_url, subscription, root=client.root))

    @operation
    def claim(self, subscription: str, worker: str) -> Steps[Claim | None]:
        """Claim pending work; None if there is none, or another worker holds the lease."""
        client = self.client
        call = claim(client.base_url, subscription, worker, root=client.root)
        return (yield from client._steps(call))

    @operation
    def rotate_keys(self) -> Steps[Description]:
        """Sign webhooks with a new key from now on; returns the keys of the server."""
        client = self.client
        return (yield from client._steps(rotate_keys(client.base_url, root=client.root)))

    @listing
    def list(self) -> Items[Description]:
        """List all subscriptions in the order of their ids."""
        client = self.client
        after: str | None = ""
        while after is not None:
            page = yield from client._steps(list_page(client.base_url, after, root=client.root))
            yield from page.subscriptions
            after = page.next


class Subscriptions(SubscriptionOperations):
    """The subscriptions of a client's server; iterating lists them."""

    def __init__(self, client: "Client") -> None:
        self.client: Client = client

    def __iter__(self) -> Iterator[Description]:
        return self.list()


class AsyncSubscriptions(SubscriptionOperations, Asynchronous):
    """`Subscriptions` with awaitable methods."""

    def __init__(self, client: "AsyncClient") -> None:
        self.client: AsyncClient = client

    def __aiter__(self) -> AsyncIterator[Description]:
        return self.list()


def _config(
    pattern: str | None,
    streams: Iterable[str],
    wake_stream: str | None,
    webhook: str | None,
    lease: float,
    description: str | None,
) -> dict[str, Any]:
    if (webhook is None) == (wake_stream is None):
        raise ValueError("a subscription needs either wake_stream or webhook")
    named = list(streams)
    if pattern is None and not named:
        raise ValueError("a subscription needs a pattern, streams, or both")
    config: dict[str, Any] = {
        "type": "pull-wake" if webhook is None else "webhook",
        "streams": named,
        "lease_ttl_ms": round(lease * 1000),
    }
    optional = {"pattern": pattern, "wake_stream": wake_stream, "description": description}
    config |= {name: value for name, value in optional.items() if value is not None}
    if webhook is not None:
        config["webhook"] = {"url": webhook}
    return config
