"""The parts of the control APIs put together, over one store."""

from collections.abc import Callable

from headwater.protocol.paths import RESERVED
from headwater.server.messages import Request, Response
from headwater.server.settings import Settings
from headwater.server.subscriptions.addresses import Network, Rules
from headwater.server.subscriptions.delivery import Waking
from headwater.server.subscriptions.keys import Keys
from headwater.server.subscriptions.leases import Working
from headwater.server.subscriptions.registry import Subscriptions
from headwater.server.subscriptions.routes import Routes
from headwater.server.subscriptions.webhooks import Caller
from headwater.storage.store import Store


class Control:
    """Subscriptions and their keys; `start` it once the store is open."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self.prefix = settings.root + RESERVED + "/"
        rules = url_rules(settings)
        self._keys = Keys(store, clock, settings.webhook_key_overlap)
        caller = Caller(rules, settings.webhook_timeout, settings.webhook_ca_file)
        waking = Waking(
            store,
            clock,
            chance,
            self._keys,
            caller,
            rules,
            attempts=settings.webhook_attempts,
            concurrency=settings.webhook_concurrency,
        )
        self._subscriptions = Subscriptions(store, clock, waking)
        working = Working(store, waking)
        self._routes = Routes(settings, rules, self._subscriptions, waking, working, self._keys)

    async def start(self) -> None:
        """Bring back keys and subscriptions."""
        await self._keys.load()
        await self._subscriptions.start()

    async def stop(self) -> None:
        """Finish what is under way; the rest is done after the next start."""
        await self._subscriptions.stop()

    async def handle(self, request: Request) -> Response:
        """Answer a request whose path begins with `prefix`."""
        return await self._routes.handle(request)


def url_rules(settings: Settings) -> Rules:
    """Take the rules for webhooks from the settings."""
    return Rules(
        settings.allow_local_webhooks,
        tuple(host.lower() for host in settings.webhook_hosts.split()),
        tuple(Network(text) for text in settings.webhook_networks.split()),
    )
