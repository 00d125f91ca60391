"""The subscription service: wires its parts over one store, starts and stops them."""

from collections.abc import Callable
from ipaddress import ip_network

from headwater.protocol.paths import RESERVED
from headwater.server.settings import Settings
from headwater.server.subscriptions.addresses import WebhookRules
from headwater.server.subscriptions.delivery import WakeDelivery
from headwater.server.subscriptions.keys import SigningKeys
from headwater.server.subscriptions.leases import Leases
from headwater.server.subscriptions.registry import SubscriptionRegistry
from headwater.server.subscriptions.routes import SubscriptionRoutes
from headwater.server.subscriptions.webhooks import WebhookClient
from headwater.storage.store import Store


class SubscriptionService:
    """Subscriptions and signing keys; start it once the store is open."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self.prefix = settings.root + RESERVED + "/"
        rules = _webhook_rules(settings)
        self._keys = SigningKeys(store, clock, settings.webhook_key_overlap)
        webhooks = WebhookClient(rules, settings.webhook_timeout, settings.webhook_ca_file)
        delivery = WakeDelivery(
            store,
            clock,
            jitter,
            self._keys,
            webhooks,
            rules,
            attempts=settings.webhook_attempts,
            concurrency=settings.webhook_concurrency,
        )
        self._subscriptions = SubscriptionRegistry(store, clock, delivery)
        leases = Leases(store, delivery)
        self.routes = SubscriptionRoutes(
            settings, rules, self._subscriptions, delivery, leases, self._keys
        )

    async def start(self) -> None:
        """Load keys and subscriptions."""
        await self._keys.load()
        await self._subscriptions.start()

    async def stop(self) -> None:
        """Finish the changes in flight; deliveries continue after the next start."""
        await self._subscriptions.stop()


def _webhook_rules(settings: Settings) -> WebhookRules:
    """Return the rules for webhooks that the settings ask for."""
    return WebhookRules(
        settings.allow_local_webhooks,
        tuple(host.lower() for host in settings.webhook_hosts.split()),
        tuple(ip_network(text) for text in settings.webhook_networks.split()),
    )
