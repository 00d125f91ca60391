"""Which URLs and addresses a webhook may have: clients must not reach the server's own network.

The URL is checked when a subscription is created. The address that its host resolves to is checked
before every call (PROTOCOL 12.8), and the connection goes to exactly that address. Both checks are
pure functions.
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from headwater.server.subscriptions.refusals import WebhookRejected

_NUMERIC: Final = re.compile(r"(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+))*", re.IGNORECASE)
_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_LOCAL: Final = re.compile(r"localhost|127\.0\.0\.\d{1,3}")
_METADATA: Final = frozenset(
    # Azure's virtual public IP: it serves the machine that asks, but its range looks public.
    {ip_address("168.63.129.16")}
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


class WebhookRules(Struct, frozen=True):
    """The exceptions and limits that the operator has configured."""

    allow_local: bool = False
    """Allow http://localhost and http://127.0.0.x, for development."""
    hosts: tuple[str, ...] = ()
    """If not empty, only these hosts are allowed; `*.example.com` matches all subdomains."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Private networks that are allowed."""


class WebhookUrl(NamedTuple):
    """The parts of a webhook's URL."""

    scheme: str
    host: str
    port: int
    path: str
    local: bool
    """Allowed by `allow_local`, and therefore only on loopback."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def check_url(url: str, rules: WebhookRules) -> WebhookUrl | WebhookRejected:
    """Check a URL without resolving its host."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return WebhookRejected("it contains characters that are not allowed in a URL")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return WebhookRejected(f"it is not a URL: {error}")
    if parts.scheme not in _DEFAULT_PORTS:
        return WebhookRejected("it must begin with https://")
    if parts.username is not None or parts.password is not None:
        return WebhookRejected("it contains a user name or password")
    if port == 0:
        return WebhookRejected("there is no port 0")
    local = bool(_LOCAL.fullmatch(host)) and rules.allow_local
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = WebhookUrl(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], path, local)
    if local:
        return target
    if parts.scheme != "https":
        return WebhookRejected("it must begin with https://")
    return _check_host(target, rules) or target


def _check_host(target: WebhookUrl, rules: WebhookRules) -> WebhookRejected | None:
    host = target.host
    if rules.hosts and not any(_is_listed(host, entry) for entry in rules.hosts):
        return WebhookRejected(f"'{host}' is not in the list of allowed webhook hosts")
    try:
        address = ip_address(host)
    except ValueError:
        # Resolvers accept 2130706433, 0x7f.1 and 127.1 as spellings of 127.0.0.1.
        if _NUMERIC.fullmatch(host):
            return WebhookRejected("its host is a number that is not a complete IP address")
        if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
            return WebhookRejected(f"'{host}' is a name in a local network")
        return None if _NAME.fullmatch(host) else WebhookRejected("its host is not a valid name")
    return check_address(str(address), target, rules)


def _is_listed(host: str, entry: str) -> bool:
    return host.endswith(entry[1:]) if entry.startswith("*.") else host == entry


def check_address(text: str, target: WebhookUrl, rules: WebhookRules) -> WebhookRejected | None:
    """Check an address that a webhook's host resolves to, immediately before the call."""
    address = ip_address(text.partition("%")[0])
    if target.local:
        return (
            None if address.is_loopback else WebhookRejected(f"{address} is not a loopback address")
        )
    if any(address in network for network in rules.networks):
        return None
    for seen in (address, *_embedded(address)):
        if not seen.is_global or seen.is_multicast or seen in _METADATA:
            return WebhookRejected(f"{address} is an address in a local network")
    return None


def _embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses that gateways translate an IPv6 address to."""
    if isinstance(address, IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [item for item in found if item is not None]
