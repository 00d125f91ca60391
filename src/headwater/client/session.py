"""The producer behind single appends that may be repeated: one number after another."""

import uuid

from headwater.client.messages import origin_of
from headwater.protocol.producers import ProducerClaim


class AppendSession:
    """Numbers the idempotent appends of one stream object.

    Whoever uses it holds a lock from `claim` to the end of the append. An append that failed leaves
    open whether its number was used, so the next one begins a new epoch.
    """

    def __init__(self) -> None:
        self._producer_id = f"append-{uuid.uuid4()}"
        self._epoch = 0
        self._seq = 0

    def claim(self) -> ProducerClaim:
        """Give the claim of the next append; it counts as failed until `confirm`."""
        claim = ProducerClaim(self._producer_id, self._epoch, self._seq)
        self._epoch, self._seq = self._epoch + 1, 0
        return claim

    def confirm(self, claim: ProducerClaim) -> None:
        """Take note that the append was acknowledged."""
        self._epoch, self._seq = claim.epoch, claim.seq + 1


def check_same_server(source_url: str, url: str) -> None:
    """Refuse a fork to another server, which the protocol can't name."""
    if origin_of(url) != origin_of(source_url):
        raise ValueError(f"{source_url} can only be forked on its own server, not to {url}")
