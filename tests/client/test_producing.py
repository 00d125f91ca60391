"""Whatever the network does, the outbox sends each item exactly once and in order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.client import Appended, Retry, SavedProducerState
from headwater.client._outbox import Outbox, OutboxOptions, OutgoingBatch
from headwater.errors import (
    ClientError,
    ConnectionLost,
    ProducerFenced,
    ProducerGap,
    ProducerReused,
    Undelivered,
)

URL = "http://host/v1/stream/x"
NEVER_GIVE_UP = Retry(attempts=10_000, first_delay=0.001, max_delay=0.002)


class Server:
    """The rules of PROTOCOL 5.2.1, and nothing else."""

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self.last = -1
        self.bodies: list[bytes] = []

    def receive(self, epoch: int, seq: int, body: bytes) -> Appended | ClientError:
        if epoch < self.epoch:
            error = ProducerFenced("no", url=URL, status=403, code="")
            error.current_epoch = self.epoch
            return error
        if epoch > self.epoch:
            assert seq == 0, "a new epoch begins with 0"
            self.epoch, self.last = epoch, -1
        if seq <= self.last:
            return Appended("1", duplicate=True, producer_seq=self.last)
        if seq > self.last + 1:
            gap = ProducerGap("no", url=URL, status=409, code="")
            gap.expected, gap.received = self.last + 1, seq
            return gap
        self.last = seq
        self.bodies.append(body)
        return Appended("1", producer_seq=seq)


def outbox(max_batch_items: int = 100, options: OutboxOptions | None = None) -> Outbox:
    given = options or OutboxOptions(linger=0, max_batch_items=max_batch_items)
    return Outbox(URL, "text/plain", SavedProducerState("p", 0, 0, 0), given)


def lost() -> ConnectionLost:
    return ConnectionLost(URL, "http://host", "reset")


def settle(box: Outbox, batch: OutgoingBatch, answer: Appended | ClientError, now: float) -> None:
    error = box.acknowledged(batch, answer) if isinstance(answer, Appended) else answer
    if error is not None:
        box.refused(batch, error, NEVER_GIVE_UP, 0.5, now)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 5),
    st.floats(0, 0.6),
    st.integers(-1, 4),
)
def test_each_item_is_appended_once_and_in_order(
    seed: int, count: int, in_flight: int, chance: float, known_epoch: int
) -> None:
    chooser = random.Random(seed)
    server = Server(known_epoch)
    options = OutboxOptions(linger=0, max_in_flight=in_flight, max_batch_items=2, auto_claim=True)
    box = outbox(options=options)
    batches = [box.add(b"%d," % number, lambda: 0.0)[0] for number in range(count)]
    box.flush()
    now, in_flight_batches = 0.0, list[OutgoingBatch]()
    for _ in range(20_000):
        if box.empty:
            break
        now += 0.01
        while (batch := box.next(now)) is not None:
            in_flight_batches.append(batch)
        assert len(in_flight_batches) <= in_flight
        # Any of those in flight arrives next: requests overtake each other.
        batch = in_flight_batches.pop(chooser.randrange(len(in_flight_batches)))
        request = box.call(batch).request
        if chooser.random() < chance:
            if chooser.random() < 0.5:
                server.receive(box.epoch, batch.seq, request.body)
            settle(box, batch, lost(), now)
        else:
            settle(box, batch, server.receive(box.epoch, batch.seq, request.body), now)
        if box.failed is not None:
            break
    if box.failed is not None:
        # It may only stop if continuing could append something twice.
        assert isinstance(box.failed, ProducerFenced)
        assert known_epoch >= 0
        return
    assert box.empty
    assert b"".join(server.bodies) == b"".join(b"%d," % number for number in range(count))
    assert all(batch.outcome() for batch in set(batches))
    assert (box.waiting_items, box.waiting_bytes) == (0, 0)


def test_the_first_batch_of_an_epoch_is_sent_alone() -> None:
    box = outbox(max_batch_items=1)
    for _ in range(4):
        box.add(b"x", lambda: 0.0)
    first = box.next(1)
    assert first is not None
    assert box.next(1) is None
    settle(box, first, Appended("1", producer_seq=0), 1)
    assert [batch.seq for batch in (box.next(1), box.next(1), box.next(1)) if batch] == [1, 2, 3]


def test_a_response_to_another_batch_is_a_lost_connection() -> None:
    box = outbox(max_batch_items=1)
    box.add(b"a", lambda: 0.0)
    box.add(b"b", lambda: 0.0)
    first = box.next(1)
    assert first is not None
    settle(box, first, Appended("1", producer_seq=0), 1)
    second = box.next(1)
    assert second is not None
    assert isinstance(box.acknowledged(second, Appended("1", producer_seq=0)), ConnectionLost)


def test_a_duplicate_of_a_batch_that_was_never_sent_is_an_error() -> None:
    box = outbox()
    box.add(b"a", lambda: 0.0)
    batch = box.next(1)
    assert batch is not None
    error = box.acknowledged(batch, Appended("1", duplicate=True, producer_seq=9))
    assert isinstance(error, ProducerReused)
    box.refused(batch, error, NEVER_GIVE_UP, 0.5, 1)
    with pytest.raises(ProducerReused):
        batch.outcome()


def test_a_failure_fails_all_later_batches() -> None:
    box = outbox(max_batch_items=1)
    batches = [box.add(b"x", lambda: 0.0)[0] for _ in range(3)]
    first = box.next(1)
    assert first is batches[0]
    box.fail(lost(), first)
    assert isinstance(batches[0].error(), ConnectionLost)
    assert all(isinstance(batch.error(), Undelivered) for batch in batches[1:])
    assert box.empty


def test_the_state_covers_all_accepted_items() -> None:
    box = outbox(max_batch_items=2)
    for number in range(5):
        box.add(b"%d" % number, lambda: 0.0)
    state = box.state()
    assert (state.items, state.next_seq) == (5, 3)
    assert [one.body for one in state.unconfirmed] == [b"01", b"23", b"4"]
    again = SavedProducerState.from_bytes(state.to_bytes())
    assert again == state
    restored = Outbox(URL, "text/plain", again, OutboxOptions())
    batch = restored.next(1)
    assert batch is not None
    assert restored.call(batch).request.body == b"01"
    with pytest.raises(ValueError, match="not the saved state"):
        SavedProducerState.from_bytes(b"nonsense")
