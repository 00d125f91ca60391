"""A producer reports the result of each item, and never waits indefinitely."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from headwater import errors
from headwater.client import (
    NO_RETRY,
    Appended,
    AsyncClient,
    AsyncProducer,
    Client,
    Delivery,
    Producer,
    ProducerClaim,
    Retry,
    SavedProducerState,
    Stream,
)
from tests.support.either import SERVERS, either_server
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.proxy import Proxy
from tests.support.stepped_server import SteppedServer


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with either_server(request.param) as server:
        yield server


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as opened:
        yield opened


def items(stream: Stream) -> list[object]:
    return list(stream.read().items())


def test_each_item_has_a_future_and_a_callback(stream: Stream) -> None:
    reported: list[Delivery] = []
    with Producer(stream, "p") as producer:
        first = producer.append({"n": 1}, callback=reported.append)
        second = producer.append([1, 2])
        assert isinstance(first.result(60), Appended)
        assert second.result(60).next_offset >= first.result().next_offset
    assert reported[0].done()
    assert reported[0].exception() is None
    assert items(stream) == [{"n": 1}, [1, 2]]


def test_batches_are_limited_by_count_bytes_and_time(stream: Stream) -> None:
    def batches(count: int, *, items: int = 1000, size: int = 1000) -> int:
        with Producer(
            stream,
            f"p-{items}-{size}",
            linger=10,
            max_batch_items=items,
            max_batch_bytes=size,
        ) as producer:
            for number in range(count):
                producer.append(number)
            producer.flush()
            return producer.state().next_seq

    assert batches(10, items=5) == 2
    assert batches(10, size=6) == 4
    assert batches(10) == 1
    with Producer(stream, "timed", linger=0.05) as producer:
        assert producer.append(1).result(5).next_offset  # without a flush


def test_the_stream_is_closed_in_one_step_with_the_last_batch(stream: Stream) -> None:
    with Producer(stream, "p") as producer:
        producer.append("last")
        closed = producer.close(close_stream=True)
    assert closed is not None
    assert closed.closed
    batch = next(stream.read())
    assert batch.items() == ["last"]
    assert batch.closed
    assert producer.state().next_seq == 1  # one batch, not two


def test_a_closed_stream_is_reported_at_once_and_by_each_later_call(stream: Stream) -> None:
    stream.close()
    producer = Producer(stream, "p")
    delivery = producer.append(1)
    with pytest.raises(errors.StreamClosed) as caught:
        delivery.result(60)
    assert caught.value.hint
    with pytest.raises(errors.StreamClosed):
        producer.append(2)
    with pytest.raises(errors.StreamClosed):
        producer.flush(60)
    with pytest.raises(errors.StreamClosed):
        producer.close(timeout=60)
    with pytest.raises(errors.StreamClosed):
        producer.append(3)


def test_items_after_a_failed_one_fail_too(stream: Stream) -> None:
    producer = Producer(stream, "p", linger=10, max_batch_items=1)
    stream.close()
    deliveries: list[Delivery] = []

    def append_all() -> None:
        deliveries.extend(producer.append(number) for number in range(100_000))

    with pytest.raises(errors.StreamClosed):
        append_all()
    producer.abandon()
    assert deliveries
    kinds = {type(delivery.exception(10)) for delivery in deliveries}
    assert errors.StreamClosed in kinds
    assert kinds <= {errors.StreamClosed, errors.Undelivered}


def test_a_newer_session_fences_an_older_one(stream: Stream) -> None:
    old = Producer(stream, "p")
    old.append("old").result(60)
    with Producer(stream, "p", epoch=3) as new:
        new.append("new")
    with pytest.raises(errors.ProducerFenced) as caught:
        old.append("zombie").result(60)
    assert caught.value.current_epoch == 3
    old.abandon()
    with Producer(stream, "p", auto_claim=True) as claiming:
        claiming.append("claimed")
        claiming.flush(60)
        assert claiming.epoch == 4
    assert items(stream) == ["old", "new", "claimed"]


def test_a_gap_that_cannot_be_closed_is_an_error(stream: Stream) -> None:
    state = SavedProducerState("p", 0, 5, 0)
    producer = Producer(stream, "p", state=state)
    with pytest.raises(errors.ProducerGap) as caught:
        producer.append(1).result(60)
    assert (caught.value.expected, caught.value.received) == (0, 5)
    producer.abandon()


def test_numbers_used_by_another_process_are_an_error(stream: Stream) -> None:
    with Producer(stream, "p") as first:
        first.append(1)
    again = Producer(stream, "p")
    with pytest.raises(errors.ProducerReused, match="was not appended"):
        again.append(2).result(60)
    again.abandon()
    assert items(stream) == [1]


def test_a_full_queue_raises_or_waits_as_chosen(stream: Stream) -> None:
    producer = Producer(stream, "p", linger=10, max_queue=2, on_full="raise")
    producer.append(1)
    producer.append(2)
    with pytest.raises(errors.QueueFull):
        producer.append(3)
    producer.flush(60)
    producer.append(3)
    producer.close(timeout=60)
    with Producer(stream, "q", linger=0.01, max_queue=1) as waiting:
        for number in range(4, 8):
            waiting.append(number)
    assert items(stream) == list(range(1, 8))
    with pytest.raises(errors.ProducerClosed):
        waiting.append(9)


def test_an_unreachable_server_fails_the_deliveries(url: str, path: str) -> None:
    with Proxy(url) as proxy, Client(proxy.url, retry=Retry(attempts=3, first_delay=0.01)) as away:
        stream = away.stream(path)
        stream.create()
        producer = Producer(stream, "p", max_queue=1)
        proxy.down = True
        proxy.cut()
        lost = producer.append(1)
        with pytest.raises((errors.ConnectionLost, errors.Unreachable)):
            producer.append(2)  # waits for room in the queue, but not indefinitely
        assert lost.exception(10) is not None
        producer.abandon()


def test_a_saved_state_continues_without_a_duplicate(stream: Stream) -> None:
    saved: list[bytes] = []
    first = Producer(stream, "p", save=lambda state: saved.append(state.to_bytes()))
    first.append(1).result(60)
    first.append(2).result(60)
    first.abandon()
    # The last state was kept before the second batch was sent: its answer is not known to it.
    state = SavedProducerState.from_bytes(saved[-1])
    assert state.items == 2
    assert [one.seq for one in state.unconfirmed] == [1]
    with Producer(stream, "p", state=state) as second:
        second.append(3)
    assert items(stream) == [1, 2, 3]


def test_on_retry_gets_the_pause_before_each_new_attempt(url: str, path: str) -> None:
    pauses: list[float] = []
    retry = Retry(attempts=3, first_delay=0.01)
    with (
        Proxy(url) as proxy,
        Client(proxy.url, retry=retry, on_retry=lambda _error, pause: pauses.append(pause)) as away,
    ):
        stream = away.stream(path, content_type="application/json")
        proxy.down = True
        began = time.monotonic()
        producer = Producer(stream, "p")
        assert producer.append(1).exception(PATIENCE_SECONDS) is not None
        took = time.monotonic() - began
        producer.abandon()
    assert len(pauses) == 2
    assert all(pause > 0 for pause in pauses)
    assert sum(pauses) <= took


def test_each_batch_is_saved_once_and_in_order(url: str, path: str) -> None:
    saved: list[SavedProducerState] = []

    def save(state: SavedProducerState) -> None:
        time.sleep(0.01 / (state.next_seq % 3 + 1))  # a later one would overtake an earlier one
        saved.append(state)

    with Proxy(url) as proxy, Client(proxy.url, retry=Retry(first_delay=0.01)) as client:
        stream = client.stream(path)
        stream.create()
        producer = Producer(stream, "p", max_batch_items=1, save=save)
        producer.append(0).result(PATIENCE_SECONDS)
        proxy.lose_answers(2)
        with producer:
            for number in range(1, 10):
                producer.append(number)
        assert items(stream) == list(range(10))
    assert [state.next_seq for state in saved] == list(range(1, 11))
    assert [state.items for state in saved] == list(range(1, 11))


def test_restored_batches_are_not_saved_again(stream: Stream) -> None:
    saved: list[SavedProducerState] = []
    first = Producer(stream, "p", max_batch_items=1, linger=60)
    for number in range(3):
        first.append(number)
    state = first.state()
    first.abandon()
    with Producer(stream, "p", state=state, save=saved.append) as second:
        second.append(3)
    assert items(stream) == [0, 1, 2, 3]
    assert [state.items for state in saved] == [4]


def test_the_loop_is_not_blocked_while_a_state_is_saved(url: str, path: str) -> None:
    began, ended = threading.Event(), threading.Event()

    def save(_state: SavedProducerState) -> None:
        began.set()
        assert ended.wait(PATIENCE_SECONDS)

    async def main() -> None:
        async with AsyncClient(url) as client:
            stream = client.stream(path)
            await stream.create()
            async with AsyncProducer(stream, "p", save=save) as producer:
                delivery = await producer.append(1)
                await until(began.is_set, "saving")
                assert not delivery.done()
                ended.set()
                await delivery

    asyncio.run(main())


def test_nothing_is_saved_once_a_producer_has_ended(stream: Stream) -> None:
    began, ended = threading.Event(), threading.Event()

    def save(_state: SavedProducerState) -> None:
        began.set()
        time.sleep(0.1)
        ended.set()

    producer = Producer(stream, "p", save=save)
    lost = producer.append(1)
    assert began.wait(PATIENCE_SECONDS)
    producer.abandon()
    assert ended.is_set()
    assert isinstance(lost.exception(0), errors.ProducerClosed | errors.Undelivered)


def test_a_state_that_cannot_be_saved_stops_the_producer(stream: Stream) -> None:
    saved: list[SavedProducerState] = []

    def save(state: SavedProducerState) -> None:
        if saved:
            raise OSError("the disk is full")
        saved.append(state)

    producer = Producer(stream, "p", max_batch_items=1, save=save)
    producer.append(0).result(PATIENCE_SECONDS)
    lost = [producer.append(number) for number in range(1, 4)]
    for one in lost:
        assert "the disk is full" in str(one.exception(PATIENCE_SECONDS))
    producer.abandon()
    assert items(stream) == [0]
    assert len(saved) == 1


def test_a_producer_can_be_used_while_its_state_is_saved(stream: Stream) -> None:
    refused: list[object] = []
    producer: Producer

    def save(_state: SavedProducerState) -> None:
        with pytest.raises(errors.QueueFull):
            producer.append(2)  # waiting would be for this very call
        refused.append(2)
        producer.abandon()

    producer = Producer(stream, "p", max_queue=1, save=save)
    lost = producer.append(1)
    assert lost.exception(PATIENCE_SECONDS) is not None
    assert refused == [2]


def test_a_producer_that_is_not_closed_sends_its_items_at_exit(
    stream: Stream, tmp_path: Path
) -> None:
    saved = tmp_path / "state"
    program = f"""
from pathlib import Path
from headwater.client import Client, Producer
stream = Client({stream.client.base_url!r}).stream({stream.url!r})
saved = Path({str(saved)!r})
save = lambda state: saved.write_bytes(state.to_bytes())
producer = Producer(stream, "p", linger=60, save=save)
producer.append(1)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stderr == b""
    assert items(stream) == [1]
    assert SavedProducerState.from_bytes(saved.read_bytes()).items == 1


def test_invalid_options_are_refused_at_once(stream: Stream) -> None:
    for options in (
        {"max_batch_bytes": 0},
        {"max_batch_items": 0},
        {"max_in_flight": 0},
        {"max_queue": 0},
        {"linger": -1},
        {"epoch": -1},
        {"on_full": "drop"},
    ):
        with pytest.raises(ValueError, match="is not allowed"):
            Producer(stream, "p", **options)
    with pytest.raises(ValueError, match="producer_id"):
        Producer(stream, "")
    with Producer(stream, "p") as producer, pytest.raises(TypeError):
        producer.append(object())


def test_several_threads_share_a_producer(stream: Stream) -> None:
    with Producer(stream, "p") as producer:

        def write(start: int) -> None:
            for number in range(start, start + 1000):
                producer.append(number)

        threads = [threading.Thread(target=write, args=(n * 1000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = items(stream)
    assert sorted(found, key=lambda n: int(str(n))) == list(range(4000))
    for start in range(0, 4000, 1000):
        mine = [n for n in found if isinstance(n, int) and start <= n < start + 1000]
        assert mine == sorted(mine)


def test_the_asynchronous_producer_works_the_same(url: str, path: str) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            stream = client.stream(path)
            await stream.create()
            reported: list[bool] = []
            async with AsyncProducer(stream, "p") as producer:
                first = await producer.append(1, callback=lambda one: reported.append(one.done()))
                assert (await first).next_offset
                await producer.append(2)
                await producer.flush()
                state = producer.state()
                assert (state.next_seq, state.items) == (2, 2)
                closed = await producer.close(close_stream=True)
                assert closed is not None
                assert closed.closed
            assert reported == [True]
            late = AsyncProducer(stream, "q")
            delivery = await late.append(3)
            with pytest.raises(errors.StreamClosed):
                await asyncio.wait_for(_awaited(delivery), PATIENCE_SECONDS)
            with pytest.raises(errors.StreamClosed):
                await late.append(4)
            await late.abandon()
            assert [item async for item in stream.read().items()] == [1, 2]

    asyncio.run(main())


async def _awaited(delivery: Awaitable[object]) -> object:
    return await delivery


def test_an_idempotent_append_is_repeated_without_a_duplicate(url: str, path: str) -> None:
    retry = Retry(attempts=5, first_delay=0.01)
    with Proxy(url) as proxy, Client(proxy.url, retry=retry) as client:
        stream = client.stream(path)
        stream.create()
        proxy.lose_answers(2)
        assert stream.append("once", idempotent=True).duplicate
        assert not stream.append("twice", idempotent=True).duplicate
        assert items(stream) == ["once", "twice"]


def test_a_producer_does_not_wait_until_idle_connections_are_closed(path: str) -> None:
    # The server closes none: its time stands still.
    with SteppedServer() as server, Client(server.url, retry=NO_RETRY) as idle:
        stream = idle.stream(path)
        stream.create()
        stream.append(0, producer=ProducerClaim("other", 0, 0))
        with Producer(stream, "p") as producer:
            producer.append(1)
        assert items(stream) == [0, 1]
