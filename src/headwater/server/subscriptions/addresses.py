"""Where a webhook may go: a server that calls URLs of its clients must not reach its own network.

The URL is checked when a subscription is made, and the address that its name resolves to each time
before it is called (PROTOCOL 12.8). Both are pure rules; whoever connects uses the very address
that was checked.
"""

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from headwater.server.subscriptions.refusals import Rejected

_NUMERIC: Final = re.compile(r"(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+))*", re.IGNORECASE)
_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_LOCAL: Final = re.compile(r"localhost|127\.0\.0\.\d{1,3}")
_METADATA: Final = frozenset(
    # Served by clouds to whoever asks from inside, at an address that looks like any other.
    {ip_address("168.63.129.16")}
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


class Network(Struct, frozen=True):
    """A range of addresses, as in 10.1.0.0/16."""

    text: str

    def __contains__(self, address: IPv4Address | IPv6Address) -> bool:
        return address in ip_network(self.text)


class WebhookRules(Struct, frozen=True):
    """What the operator allows."""

    allow_local: bool = False
    """http://localhost and http://127.0.0.x, for development."""
    hosts: tuple[str, ...] = ()
    """If there are any, only these names; `*.example.com` stands for all below."""
    networks: tuple[Network, ...] = ()
    """Private networks that may be reached all the same."""


class Target(NamedTuple):
    """A webhook's URL, taken apart."""

    scheme: str
    host: str
    port: int
    path: str
    local: bool
    """Allowed by the exception for development, and so only on loopback."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def check_url(url: str, rules: WebhookRules) -> Target | Rejected:
    """Check what can be told from a URL alone."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return Rejected("it holds characters that a URL can't have")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return Rejected(f"it is not a URL: {error}")
    if parts.scheme not in _DEFAULT_PORTS:
        return Rejected("it must begin with https://")
    if parts.username is not None or parts.password is not None:
        return Rejected("it holds a user name or password")
    if port == 0:
        return Rejected("there is no port 0")
    local = bool(_LOCAL.fullmatch(host)) and rules.allow_local
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = Target(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], path, local)
    if local:
        return target
    if parts.scheme != "https":
        return Rejected("it must begin with https://")
    return _check_host(target, rules) or target


def _check_host(target: Target, rules: WebhookRules) -> Rejected | None:
    host = target.host
    if rules.hosts and not any(_is_listed(host, entry) for entry in rules.hosts):
        return Rejected(f"'{host}' is not on the list of hosts that webhooks may go to")
    try:
        address = ip_address(host)
    except ValueError:
        # Resolvers take 2130706433, 0x7f.1 and 127.1 for 127.0.0.1.
        if _NUMERIC.fullmatch(host):
            return Rejected("its host is a number that is not a whole IP address")
        if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
            return Rejected(f"'{host}' is a name of a local network")
        return None if _NAME.fullmatch(host) else Rejected("its host is not a name")
    return check_address(str(address), target, rules)


def _is_listed(host: str, entry: str) -> bool:
    return host.endswith(entry[1:]) if entry.startswith("*.") else host == entry


def check_address(text: str, target: Target, rules: WebhookRules) -> Rejected | None:
    """Check an address that a webhook's name resolves to, just before it is called."""
    address = ip_address(text.partition("%")[0])
    if target.local:
        return None if address.is_loopback else Rejected(f"{address} is not this machine")
    if any(address in network for network in rules.networks):
        return None
    for seen in (address, *_embedded(address)):
        if not seen.is_global or seen.is_multicast or seen in _METADATA:
            return Rejected(f"{address} is an address of a local network")
    return None


def _embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """Give the IPv4 addresses that an IPv6 address would be translated to on its way."""
    if isinstance(address, IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [item for item in found if item is not None]
