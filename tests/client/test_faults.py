"""Despite connection faults, each message arrives exactly once and in order."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from headwater.client import AsyncClient, AsyncProducer, Client, Live, Producer, Retry
from tests.support.either import SERVERS, either_server
from tests.support.faults import FAULTS, FaultyProxy

COUNT = 100_000
PATIENT = Retry(attempts=60, first_delay=0.002, max_delay=0.05)


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with either_server(
        request.param, "--sse-duration", "0.5", "--long-poll-timeout", "0.5"
    ) as server:
        yield server


def numbers(url: str, path: str) -> list[int]:
    with Client(url) as client:
        return list(client.stream(path).read().items())


def test_a_producer_appends_each_message_once_and_in_order(url: str, path: str) -> None:
    with FaultyProxy(url, seed=1, chance=0.3) as proxy:
        with Client(proxy.url, retry=PATIENT) as client:
            stream = client.stream(path)
            stream.create()
            # Small batches, so that hundreds of them are sent and meet every fault.
            with Producer(stream, "writer", max_batch_items=200) as producer:
                deliveries = [producer.append(number) for number in range(COUNT)]
            assert all(delivery.result(0) for delivery in deliveries)
        assert all(proxy.happened[fault] for fault in FAULTS), proxy.happened
    assert numbers(url, path) == list(range(COUNT))


def test_an_asynchronous_producer_appends_each_message_once_and_in_order(
    url: str, path: str
) -> None:
    async def produce(proxy_url: str) -> None:
        async with AsyncClient(proxy_url, retry=PATIENT) as client:
            stream = client.stream(path)
            await stream.create()
            async with AsyncProducer(stream, "writer", max_batch_items=200) as producer:
                for number in range(COUNT):
                    await producer.append(number)
                await producer.close(close_stream=True)

    with FaultyProxy(url, seed=2, chance=0.3) as proxy:
        asyncio.run(produce(proxy.url))
        assert all(proxy.happened[fault] for fault in FAULTS), proxy.happened
    assert numbers(url, path) == list(range(COUNT))
    with Client(url) as client:
        assert client.stream(path).head().closed


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_follower_sees_each_message_once_and_in_order(url: str, path: str, live: Live) -> None:
    with Client(url) as direct, FaultyProxy(url, seed=3, chance=0.3) as proxy:
        direct.stream(path).create()
        written: list[int] = []

        def write() -> None:
            with Producer(direct.stream(path), "writer", max_batch_items=200) as producer:
                # More than were asked for where a slow reader gets them all in a few answers.
                while len(written) < COUNT or sum(proxy.happened.values()) < 6:
                    producer.append(len(written))
                    written.append(len(written))
                    if len(written) % 1000 == 0:
                        producer.flush()
                producer.close(close_stream=True)

        writer = threading.Thread(target=write)
        writer.start()
        with Client(proxy.url, retry=PATIENT) as client:
            seen = list(client.stream(path).follow(live=live).items())
        writer.join()
    assert seen == written


def test_an_asynchronous_follower_sees_each_message_once_and_in_order(url: str, path: str) -> None:
    async def follow(proxy_url: str) -> list[int]:
        async with AsyncClient(proxy_url, retry=PATIENT) as client, AsyncClient(url) as direct:
            await direct.stream(path).create()

            async def write() -> None:
                async with AsyncProducer(
                    direct.stream(path), "writer", max_batch_items=200
                ) as producer:
                    for number in range(COUNT):
                        await producer.append(number)
                        if number % 1000 == 0:
                            await producer.flush()
                    await producer.close(close_stream=True)

            writer = asyncio.create_task(write())
            seen = [item async for item in client.stream(path).follow().items()]
            await writer
            return seen

    with FaultyProxy(url, seed=4, chance=0.3) as proxy:
        assert asyncio.run(follow(proxy.url)) == list(range(COUNT))
