"""The subscriptions of a server: created, looked at, listed and dropped."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from headwater.client import subscriptions as calls
from headwater.client.subscriptions import Description

if TYPE_CHECKING:
    from headwater.client.async_client import AsyncClient
    from headwater.client.client import Client


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
    given = {"pattern": pattern, "wake_stream": wake_stream, "description": description}
    config |= {name: value for name, value in given.items() if value is not None}
    if webhook is not None:
        config["webhook"] = {"url": webhook}
    return config


class Subscriptions:
    """What can be done with the subscriptions of a client's server."""

    def __init__(self, client: "Client") -> None:
        self._client = client

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
    ) -> Description:
        """Create a subscription to a glob over paths, to streams, or to both; or confirm it.

        Workers are told through `wake_stream`, or a server through `webhook`. `lease` is how many
        seconds a worker may be silent.
        """
        config = _config(pattern, streams, wake_stream, webhook, lease, description)
        client = self._client
        made, _ = client.run(calls.create(client.base_url, subscription, config, root=client.root))
        return made

    def show(self, subscription: str) -> Description:
        """Describe a subscription with its streams."""
        client = self._client
        return client.run(calls.show(client.base_url, subscription, root=client.root))

    def delete(self, subscription: str) -> None:
        """Drop a subscription: whoever still works for it can't ack any more."""
        client = self._client
        client.run(calls.delete(client.base_url, subscription, root=client.root))

    def __iter__(self) -> Iterator[Description]:
        return self.list()

    def list(self) -> Iterator[Description]:
        """List all subscriptions in the order of their ids."""
        client = self._client
        after: str | None = ""
        while after is not None:
            page = client.run(calls.page(client.base_url, after, root=client.root))
            yield from page.subscriptions
            after = page.next


class AsyncSubscriptions:
    """`Subscriptions`, awaited."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    async def create(
        self,
        subscription: str,
        *,
        pattern: str | None = None,
        streams: Iterable[str] = (),
        wake_stream: str | None = None,
        webhook: str | None = None,
        lease: float = 30.0,
        description: str | None = None,
    ) -> Description:
        """Create a subscription, or confirm it; the options are those of `Subscriptions`."""
        config = _config(pattern, streams, wake_stream, webhook, lease, description)
        client = self._client
        made, _ = await client.run(
            calls.create(client.base_url, subscription, config, root=client.root)
        )
        return made

    async def show(self, subscription: str) -> Description:
        """Describe a subscription with its streams."""
        client = self._client
        return await client.run(calls.show(client.base_url, subscription, root=client.root))

    async def delete(self, subscription: str) -> None:
        """Drop a subscription: whoever still works for it can't ack any more."""
        client = self._client
        await client.run(calls.delete(client.base_url, subscription, root=client.root))

    def __aiter__(self) -> AsyncIterator[Description]:
        return self.list()

    async def list(self) -> AsyncIterator[Description]:
        """List all subscriptions in the order of their ids."""
        client = self._client
        after: str | None = ""
        while after is not None:
            page = await client.run(calls.page(client.base_url, after, root=client.root))
            for description in page.subscriptions:
                yield description
            after = page.next
