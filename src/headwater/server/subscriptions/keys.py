"""The keys that sign webhook calls, and the secret that signs tokens; both are durable.

The newest key signs. A replaced key stays published until receivers no longer accept the calls
that it signed, since those are too old (PROTOCOL 6.5).
"""

import hashlib
import os
from collections.abc import Callable
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headwater.server.subscriptions.refusals import TooManyKeys
from headwater.server.subscriptions.serial_queue import SerialQueue
from headwater.server.subscriptions.tokens import base64url
from headwater.storage.refusals import StoreUnwritable
from headwater.storage.store import Store

PREFIX: Final = "key/"
_SECRET: Final = "secret/tokens"  # noqa: S105 - the name of a document
MAX_KEYS: Final = 16


class StoredKey(msgspec.Struct, frozen=True):
    """A key as it is stored."""

    private: bytes
    created: float
    retired: float | None = None


class SigningKey:
    """One Ed25519 key."""

    __slots__ = ("_private", "kid", "public", "stored")

    def __init__(self, stored: StoredKey) -> None:
        self.stored = stored
        self._private = Ed25519PrivateKey.from_private_bytes(stored.private)
        self.public = base64url(self._private.public_key().public_bytes_raw()).decode()
        # RFC 8037: the thumbprint of the key, with its members in lexicographic order.
        thumbprint = f'{{"crv":"Ed25519","kty":"OKP","x":"{self.public}"}}'
        self.kid = "ds_" + base64url(hashlib.sha256(thumbprint.encode()).digest())[:22].decode()

    def jwk(self) -> dict[str, str]:
        """Return the public key as a JSON Web Key."""
        return {
            "kty": "OKP",
            "crv": "Ed25519",
            "kid": self.kid,
            "use": "sig",
            "alg": "EdDSA",
            "x": self.public,
        }

    def sign(self, body: bytes, now: float) -> str:
        """Return the `Webhook-Signature` header of a body (PROTOCOL 7.1)."""
        signature = self._private.sign(b"%d." % int(now) + body)
        return f"t={int(now)},kid={self.kid},ed25519={base64url(signature).decode()}"


class SigningKeys:
    """The signing keys of a server, and its token secret."""

    def __init__(self, store: Store, clock: Callable[[], float], overlap: float) -> None:
        self._store = store
        self._clock = clock
        self._overlap = overlap
        self._keys: list[SigningKey] = []
        self._queue = SerialQueue()
        self.secret = b""

    async def load(self) -> None:
        """Load the stored keys and the secret."""
        stored = await self._store.get_documents(PREFIX)
        keys = [SigningKey(msgspec.msgpack.decode(raw, type=StoredKey)) for raw in stored.values()]
        self._keys = sorted(keys, key=lambda key: (key.stored.retired is None, key.stored.created))
        self.secret = (await self._store.get_documents(_SECRET)).get(_SECRET, b"")

    async def ensure(self) -> StoreUnwritable | None:
        """Create a key and a secret unless they exist."""
        if self._keys and self.secret:
            return None
        return await self._queue.run(self._ensure)

    async def _ensure(self) -> StoreUnwritable | None:
        if self._keys and self.secret:
            return None
        secret = os.urandom(32)
        key = self._new()
        refusal = await self._store.put_documents(
            {_SECRET: secret, PREFIX + key.kid: _encode(key.stored)}
        )
        if refusal is None:
            self.secret, self._keys = secret, [key]
        return refusal

    async def rotate(self) -> SigningKey | TooManyKeys | StoreUnwritable:
        """Replace the signing key; the old keys stay published for the overlap."""
        return await self._queue.run(self._rotate)

    async def _rotate(self) -> SigningKey | TooManyKeys | StoreUnwritable:
        now = self._clock()
        key = self._new()
        changes: dict[str, bytes | None] = {PREFIX + key.kid: _encode(key.stored)}
        keys = []
        for old in self._keys:
            if self._is_needed(old, now):
                retired = now if old.stored.retired is None else old.stored.retired
                keys.append(SigningKey(msgspec.structs.replace(old.stored, retired=retired)))
                changes[PREFIX + old.kid] = _encode(keys[-1].stored)
            else:
                changes[PREFIX + old.kid] = None
        if len(keys) >= MAX_KEYS:
            return TooManyKeys(len(keys))
        if not self.secret:
            changes[_SECRET] = os.urandom(32)
        refusal = await self._store.put_documents(changes)
        if refusal is not None:
            return refusal
        self.secret = self.secret or changes[_SECRET] or b""
        self._keys = [*keys, key]
        return key

    def _new(self) -> SigningKey:
        return SigningKey(StoredKey(os.urandom(32), self._clock()))

    def _is_needed(self, key: SigningKey, now: float) -> bool:
        return key.stored.retired is None or now < key.stored.retired + self._overlap

    @property
    def current(self) -> SigningKey:
        """The key that signs; requires a successful `ensure`."""
        return self._keys[-1]

    def published(self) -> list[SigningKey]:
        """Return the keys that receivers may still need, the newest first."""
        now = self._clock()
        return [key for key in reversed(self._keys) if self._is_needed(key, now)]


def _encode(key: StoredKey) -> bytes:
    return msgspec.msgpack.encode(key)
