"""Bearer tokens that let only the woken worker ack (PROTOCOL 12.9).

A token is a JWT signed with HMAC-SHA256. It names the subscription, the wake and its generation.
Whether that wake is still current is decided by the subscription's state.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

import msgspec

from headwater.server.subscriptions.refusals import BadToken

_HEADER: Final = b'{"alg":"HS256","typ":"JWT"}'


class Claims(msgspec.Struct, frozen=True):
    """The claims of a token."""

    sub: str
    wake: str
    gen: int
    exp: int


_decode: Final = msgspec.json.Decoder(Claims).decode


def base64url(data: bytes) -> bytes:
    """Encode as base64url without padding, as JOSE does."""
    return urlsafe_b64encode(data).rstrip(b"=")


def mint(secret: bytes, claims: Claims) -> str:
    """Return a signed token."""
    signed = base64url(_HEADER) + b"." + base64url(msgspec.json.encode(claims))
    return (signed + b"." + base64url(_sign(secret, signed))).decode()


def verify(secret: bytes, token: str, subscription: str, now: float) -> Claims | BadToken:
    """Check the signature, the subscription and the expiry of a token."""
    signed, _, signature = token.encode("latin-1", "replace").rpartition(b".")
    # Compared in its encoded form, so that no other encoding of a signature is accepted.
    if not hmac.compare_digest(signature, base64url(_sign(secret, signed))):
        return BadToken(expired=False)
    payload = signed.rpartition(b".")[2]
    claims = _decode(urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    if claims.sub != subscription:
        return BadToken(expired=False)
    return claims if claims.exp > now else BadToken(expired=True)


def _sign(secret: bytes, data: bytes) -> bytes:
    return hmac.new(secret, data, hashlib.sha256).digest()
