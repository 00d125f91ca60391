"""The table of PROTOCOL 5.2.1, row by row and against a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.producers import (
    Duplicate,
    EpochStartsAtZero,
    Fenced,
    ProducerClaim,
    ProducerDecision,
    ProducerState,
    SequenceGap,
    decide_producer,
)

STORED = ProducerState(5, 3)


@pytest.mark.parametrize(
    ("stored", "epoch", "seq", "decision"),
    [
        (None, 0, 0, ProducerState(0, 0)),
        (None, 7, 0, ProducerState(7, 0)),
        (None, 0, 1, SequenceGap("p", 0, 1)),
        (STORED, 4, 0, Fenced("p", 4, 5)),
        (STORED, 4, 4, Fenced("p", 4, 5)),
        (STORED, 6, 0, ProducerState(6, 0)),
        (STORED, 9, 0, ProducerState(9, 0)),
        (STORED, 6, 1, EpochStartsAtZero("p", 6, 1)),
        (STORED, 5, 0, Duplicate(STORED)),
        (STORED, 5, 3, Duplicate(STORED)),
        (STORED, 5, 4, ProducerState(5, 4)),
        (STORED, 5, 5, SequenceGap("p", 4, 5)),
    ],
)
def test_every_row_of_the_table_is_decided(
    stored: ProducerState | None, epoch: int, seq: int, decision: ProducerDecision
) -> None:
    assert decide_producer(stored, ProducerClaim("p", epoch, seq)) == decision


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60))
def test_random_claims_agree_with_a_model(claims: list[tuple[int, int]]) -> None:
    """The model keeps every pair that was accepted; the rule keeps only the last."""
    accepted: list[tuple[int, int]] = []
    stored: ProducerState | None = None
    for epoch, seq in claims:
        decision = decide_producer(stored, ProducerClaim("p", epoch, seq))
        newest = max(accepted)[0] if accepted else -1
        in_order = [s for e, s in accepted if e == epoch]
        fits = seq == len(in_order)
        if (epoch, seq) in accepted and epoch == newest:
            assert isinstance(decision, Duplicate)
            assert decision.producer == max(accepted)
        elif epoch >= newest and fits:
            assert decision == ProducerState(epoch, seq)
            accepted.append((epoch, seq))
            stored = ProducerState(epoch, seq)
        elif epoch < newest:
            assert decision == Fenced("p", epoch, newest)
        elif epoch > newest >= 0:
            assert decision == EpochStartsAtZero("p", epoch, seq)
        else:
            assert decision == SequenceGap("p", len(in_order), seq)
    assert len(set(accepted)) == len(accepted)
