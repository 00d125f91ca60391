"""Both clients, sync and async, on our server and on the public one."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from headwater import errors
from headwater.client import AsyncClient, AsyncWorker, Batch, Client, Live, Retry, Worker
from tests.client.conftest import live_reads
from tests.support.either import SERVERS, either_server
from tests.support.faults import FaultyProxy
from tests.support.patience import PATIENCE_SECONDS, until, wait_until
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess
from tests.support.stepped_server import SteppedServer

QUICK = Retry(attempts=5, first_delay=0.01, max_delay=0.05)


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with either_server(request.param) as server:
        yield server


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, retry=QUICK) as opened:
        yield opened


def test_reading_can_be_resumed_after_every_item(client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create()
    for start in range(0, 30, 10):
        stream.append_many(range(start, start + 10))
    pairs = list(stream.read().items_with_offsets())
    assert [item for item, _ in pairs] == list(range(30))
    for item, position in pairs:
        assert list(stream.read(str(position)).items()) == list(range(item + 1, 30))
    again = [str(position) for _, position in stream.read(str(pairs[4][1])).items_with_offsets()]
    assert list(stream.read(again[2]).items()) == list(range(8, 30))


def test_a_reading_has_views_of_bytes_text_items_and_batches(client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create("text/plain")
    for piece in (b"a\xc3", b"\xa4\n", b"z"):
        stream.append(piece)
    stream.close()
    assert b"".join(stream.read().bytes()) == "aä\nz".encode()
    assert "".join(stream.follow().text()) == "aä\nz"
    reading = stream.read()
    batches = list(reading)
    assert batches[-1].up_to_date
    assert batches[-1].closed
    assert reading.closed
    assert reading.offset == batches[-1].next_offset == stream.head().next_offset
    with pytest.raises(TypeError, match="text/plain"):
        list(stream.read().items())


def test_a_position_beyond_the_end_is_of_another_stream(client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create(data=1)
    with pytest.raises(errors.StreamRecreated) as caught:
        list(stream.read("-1,5"))
    assert "read again from -1" in caught.value.hint
    with pytest.raises(ValueError, match="is not an offset"):
        stream.read("-1,x")


@pytest.mark.parametrize("live", ["auto", "sse", "long-poll"])
def test_a_follower_is_stopped_from_another_thread(client: Client, path: str, live: Live) -> None:
    stream = client.stream(path)
    stream.create(data=1)
    with Proxy(client.base_url) as proxy, Client(proxy.url) as through:
        following = through.stream(path).follow(live=live)

        def stop() -> None:
            wait_until(lambda: live_reads(proxy), "following")
            following.stop()

        stopping = threading.Thread(target=stop)
        stopping.start()
        assert list(following.items()) == [1]  # otherwise it would never end
        stopping.join()
    assert list(stream.read(following.offset).items()) == []


@pytest.mark.parametrize("live", ["auto", "sse", "long-poll"])
def test_a_follower_is_stopped_from_another_task_or_cancelled(
    url: str, path: str, live: Live
) -> None:
    async def main(proxy: Proxy) -> None:
        async with AsyncClient(proxy.url) as client:
            stream = client.stream(path)
            await stream.create(data=1)
            following = stream.follow(live=live)

            async def collect() -> list[object]:
                return [item async for item in following.items()]

            collecting = asyncio.create_task(collect())
            await until(lambda: live_reads(proxy), "following")
            following.stop()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await collecting == [1]

            async def forever() -> None:
                async for _ in stream.follow(live=live):
                    pass

            before = live_reads(proxy)
            endless = asyncio.create_task(forever())
            await until(lambda: live_reads(proxy) > before, "following")
            endless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await endless
            assert (await stream.append(2)).next_offset

    with Proxy(url) as proxy:
        asyncio.run(main(proxy))


def test_header_functions_are_called_for_each_request(url: str, path: str) -> None:
    made: list[str] = []

    def token() -> str:
        made.append(f"token-{len(made)}")
        return made[-1]

    with Client(url, auth=token, params={"trace": lambda: str(len(made))}) as client:
        stream = client.stream(path)
        stream.create()
        stream.append(1)
        assert len(made) == 2

    async def fresh() -> str:
        await asyncio.sleep(0)
        return token()

    async def main() -> None:
        async with AsyncClient(url, auth=fresh, headers={"X-Trace": "1"}) as client:
            assert await client.stream(path).exists()

    asyncio.run(main())
    assert len(made) == 3


def test_long_poll_is_used_if_a_proxy_buffers_events(url: str, path: str) -> None:
    with (
        FaultyProxy(url, seed=0, chance=0) as faulty,
        Proxy(faulty.url) as proxy,
        Client(proxy.url, event_patience=0.5) as client,
    ):
        faulty.buffers_events = True
        stream = client.stream(path)
        stream.create(data=0)
        following = stream.follow(live="auto")
        items = following.items()
        assert next(items) == 0

        def append() -> None:
            wait_until(lambda: b"live=long-poll" in b"".join(proxy.requests), "polling")
            stream.append(1)

        appending = threading.Thread(target=append)
        appending.start()
        assert next(items) == 1
        appending.join()
        following.stop()


def test_every_operation_of_the_client_can_be_awaited(url: str, path: str) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            stream = client.stream(path)
            assert not await stream.exists()
            assert (await stream.create()).new
            first = await stream.append({"n": 1})
            await stream.append_many([2, 3], idempotent=True)
            await stream.append(4, seq="a")
            assert (await stream.head()).next_offset > first.next_offset
            pairs = [pair async for pair in stream.read().items_with_offsets()]
            assert [item for item, _ in pairs] == [{"n": 1}, 2, 3, 4]
            await stream.fork(f"{path}/fork", offset=first.next_offset)
            fork = client.stream(f"{path}/fork")
            assert [item async for item in fork.read().items()] == [{"n": 1}]
            assert (await stream.close(5)).closed
            with pytest.raises(errors.StreamClosed) as caught:
                await stream.append(6)
            error = caught.value
            assert (error.status, error.url) == (409, stream.url)
            assert error.hint
            assert error.code == "stream-closed"
            assert [item async for item in stream.follow().items()] == [{"n": 1}, 2, 3, 4, 5]
            await fork.delete()
            with pytest.raises(errors.StreamNotFound):
                await fork.head()

    asyncio.run(main())


def test_a_worker_claims_handles_and_acks(client: Client, path: str) -> None:
    wake, name = f"{path}/wake", path.replace("/", "-")
    client.stream(wake).create()
    client.subscriptions.create(name, pattern=f"{path}/jobs/*", wake_stream=wake)
    done: list[object] = []
    with Proxy(client.base_url) as proxy, Client(proxy.url, retry=QUICK) as through:
        worker = Worker(through, name, lambda _path, batch: done.extend(batch.items()))
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(lambda: live_reads(proxy), "waiting for wakes")
        client.stream(f"{path}/jobs/a").create()
        client.stream(f"{path}/jobs/a").append_many([1, 2])
        wait_until(lambda: done == [1, 2])
        client.stream(f"{path}/jobs/a").append(3)
        wait_until(lambda: done == [1, 2, 3])
        worker.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_heartbeats_extend_the_lease_of_a_slow_worker(path: str) -> None:
    name, job = "s", f"{path}/jobs/a"
    handed: list[object] = []
    with SteppedServer() as server, Client(server.url) as client:
        client.stream("wake").create()
        client.subscriptions.create(name, pattern=f"{path}/jobs/*", wake_stream="wake", lease=1.0)
        client.stream(job).create(data=1)

        def is_extended() -> bool:
            """Return whether the lease lasts for a whole second from now on."""
            shown = client.subscriptions.show(name)["delivery"]["lease_until"]
            return datetime.fromisoformat(shown).timestamp() >= server.clock() + 1.0

        def handle(_path: str, batch: Batch) -> None:
            for _ in range(3):
                server.advance(0.75)
                wait_until(is_extended, "a heartbeat")
            handed.extend(batch.items())

        assert Worker(client, name, handle).run_once() == 1
        assert handed == [1]


def test_a_worker_that_fails_releases_its_claim(client: Client, url: str, path: str) -> None:
    wake, name = f"{path}/wake", path.replace("/", "-")
    client.stream(wake).create()
    client.subscriptions.create(name, pattern=f"{path}/jobs/*", wake_stream=wake)
    client.stream(f"{path}/jobs/a").create()
    client.stream(f"{path}/jobs/a").append(1)

    def broken(_path: str, _batch: Batch) -> None:
        raise RuntimeError("the work failed")

    with pytest.raises(RuntimeError, match="the work failed"):
        _until_claimed(Worker(client, name, broken))
    done: list[object] = []

    async def main() -> None:
        async def handle(_path: str, batch: Batch) -> None:
            done.extend(batch.items())

        async with AsyncClient(url) as awaited:
            worker = AsyncWorker(awaited, name, handle)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await worker.run_once():  # noqa: ASYNC110 - another process is waited for
                    await asyncio.sleep(0.05)

    asyncio.run(main())
    assert done == [1]
    client.subscriptions.delete(name)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_worker_skips_a_stream_that_is_deleted_after_the_claim(
    client: Client, path: str, awaited: bool
) -> None:
    jobs = _subscribe_to_jobs(client, path)
    for job in jobs:
        client.stream(job).append("claimed")
    handled: list[str] = []

    def handle(job: str, _batch: Batch) -> None:
        if not handled:  # the first of three: delete the second
            other = next(each for each in jobs if each != job)
            client.stream(other).delete()
            jobs.remove(other)
        handled.append(job)

    assert _work(client, path, handle, awaited=awaited) == 2
    assert sorted(handled) == jobs
    # Its wake is over: nothing is claimed again.
    assert _work(client, path, handle, awaited=awaited) == 0


@pytest.mark.parametrize("awaited", [False, True])
def test_a_stream_that_is_replaced_after_the_claim_is_handled_from_its_beginning(
    server: ServerProcess, path: str, awaited: bool
) -> None:
    handled: list[str] = []
    with Client(server.url) as client:
        jobs = _subscribe_to_jobs(client, path)
        for job in jobs:
            client.stream(job).append("acked")
        _work(client, path, lambda _path, _batch: None, awaited=awaited)
        for job in jobs:
            client.stream(job).append("claimed")

        def handle(job: str, batch: Batch) -> None:
            if not handled:
                other = next(each for each in jobs if each != job)
                client.stream(other).delete()
                client.stream(other).create(data="replaced")
            handled.extend(batch.items())

        assert _work(client, path, handle, awaited=awaited) == 3
        assert handled == ["claimed", "claimed", "replaced"]
        assert _work(client, path, handle, awaited=awaited) == 0


@pytest.mark.parametrize("awaited", [False, True])
def test_a_stream_that_the_handler_does_not_find_stops_the_worker(
    client: Client, path: str, awaited: bool
) -> None:
    jobs = _subscribe_to_jobs(client, path)
    client.stream(jobs[0]).append(1)

    def handle(_path: str, _batch: Batch) -> None:
        client.stream(f"{path}/nowhere").append(1)

    with pytest.raises(errors.StreamNotFound, match="nowhere"):
        _work(client, path, handle, awaited=awaited)


def test_subscriptions_are_listed(server: ServerProcess, path: str) -> None:
    with Client(server.url) as client:
        client.stream(f"{path}/wake").create()
        name = path.replace("/", "-")
        client.subscriptions.create(name, streams=[f"{path}/a"], wake_stream=f"{path}/wake")
        assert name in [one["id"] for one in client.subscriptions]
        assert client.subscriptions.show(name)["type"] == "pull-wake"
    with pytest.raises(ValueError, match="either wake_stream or webhook"):
        client.subscriptions.create("x", pattern="*")


def test_subscriptions_and_workers_use_the_root_of_their_client() -> None:
    done: list[object] = []

    async def main(url: str) -> None:
        async with AsyncClient(url, root="/elsewhere/") as client:
            await client.subscriptions.create("s", pattern="jobs/*", wake_stream="wake")
            assert [one["id"] async for one in client.subscriptions] == ["s"]
            await client.stream("jobs/b").create(data=2)

            async def handle(_path: str, batch: Batch) -> None:
                done.extend(batch.items())

            assert await AsyncWorker(client, "s", handle).run_once() == 1
            await client.subscriptions.delete("s")

    with (
        ServerProcess("--root", "/elsewhere/") as server,
        Client(server.url, root="/elsewhere/") as client,
    ):
        client.stream("wake").create()
        client.subscriptions.create("s", pattern="jobs/*", wake_stream="wake")
        assert client.subscriptions.show("s")["wake_stream"] == "wake"
        assert [one["id"] for one in client.subscriptions] == ["s"]
        client.stream("jobs/a").create(data=1)
        worker = Worker(client, "s", lambda _path, batch: done.extend(batch.items()))
        assert worker.run_once() == 1
        client.subscriptions.delete("s")
        asyncio.run(main(server.url))
    assert done == [1, 2]


def _until_claimed(worker: Worker) -> None:
    wait_until(worker.run_once, "a claim")


def _subscribe_to_jobs(client: Client, path: str) -> list[str]:
    """Create three streams and a subscription to them; return the paths of the streams."""
    jobs = [f"{path}/jobs/{letter}" for letter in "abc"]
    wake = f"{path}/wake"
    client.stream(wake).create()
    client.subscriptions.create(_name(path), pattern=f"{path}/jobs/*", wake_stream=wake)
    for job in jobs:
        client.stream(job).create()
    return jobs


def _name(path: str) -> str:
    return path.replace("/", "-")


def _work(
    client: Client, path: str, handle: Callable[[str, Batch], object], *, awaited: bool
) -> int:
    """Have a worker of either kind do what is pending."""
    if not awaited:
        return Worker(client, _name(path), handle).run_once()

    async def in_thread(path: str, batch: Batch) -> None:
        await asyncio.to_thread(handle, path, batch)

    async def main() -> int:
        async with AsyncClient(client.base_url, retry=QUICK) as opened:
            return await AsyncWorker(opened, _name(path), in_thread).run_once()

    return asyncio.run(main())
