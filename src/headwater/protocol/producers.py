"""Idempotent producers: which `(Producer-Id, Producer-Epoch, Producer-Seq)` is accepted.

PROTOCOL 5.2.1 as a table, for a claimed and a stored `(epoch, seq)`:

    no state        seq = 0                 accept
                    seq > 0                 gap, expected 0
    epoch < stored                          fenced
    epoch > stored  seq = 0                 accept, a new session
                    seq > 0                 a new epoch must start at 0
    same epoch      seq <= stored           duplicate
                    seq = stored + 1        accept
                    seq > stored + 1        gap, expected stored + 1
"""

from typing import Final, NamedTuple

from msgspec import Struct

MAX_INTEGER: Final = 2**53 - 1


class ProducerState(NamedTuple):
    """The last accepted epoch and sequence number of one producer on one stream."""

    epoch: int
    seq: int


class ProducerClaim(NamedTuple):
    """The producer headers of a request."""

    producer_id: str
    epoch: int
    seq: int

    @property
    def state(self) -> ProducerState:
        """The producer's state once this claim is accepted."""
        return ProducerState(self.epoch, self.seq)


class Fenced(Struct, frozen=True):
    """The epoch is older than the stored one: a newer session has replaced it."""

    producer_id: str
    epoch: int
    current_epoch: int


class SequenceGap(Struct, frozen=True):
    """The sequence number skips at least one that was never received."""

    producer_id: str
    expected: int
    received: int


class EpochStartsAtZero(Struct, frozen=True):
    """A new epoch began with a sequence number other than 0."""

    producer_id: str
    epoch: int
    received: int


class Duplicate(Struct, frozen=True):
    """The request was accepted before: it succeeds again and changes nothing."""

    producer: ProducerState | None = None
    """The stored state; None if a closed stream is closed again without a producer."""


ProducerDecision = ProducerState | Duplicate | Fenced | SequenceGap | EpochStartsAtZero


def decide_producer(stored: ProducerState | None, claim: ProducerClaim) -> ProducerDecision:
    """Decide on a claim; return the producer's new state if it is accepted."""
    if stored is None:
        if claim.seq == 0:
            return claim.state
        return SequenceGap(claim.producer_id, 0, claim.seq)
    if claim.epoch < stored.epoch:
        return Fenced(claim.producer_id, claim.epoch, stored.epoch)
    if claim.epoch > stored.epoch:
        if claim.seq == 0:
            return claim.state
        return EpochStartsAtZero(claim.producer_id, claim.epoch, claim.seq)
    if claim.seq <= stored.seq:
        return Duplicate(stored)
    if claim.seq == stored.seq + 1:
        return claim.state
    return SequenceGap(claim.producer_id, stored.seq + 1, claim.seq)
