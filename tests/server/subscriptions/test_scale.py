"""An append that matches none of ten thousand subscriptions costs almost nothing more."""

import asyncio
import json

from headwater.protocol.lifecycle import Append, Create
from headwater.server.app import Application
from headwater.server.messages import Head, Request, Response
from headwater.server.settings import Settings
from headwater.server.subscriptions.subscription import LINKS, PAGE
from headwater.storage.memory import MemoryStore
from tests.support.lines import counted_lines

SUBSCRIPTIONS = 10_000
STREAMS = 64
APPENDS = 640
HEADERS = {b"content-type": b"application/json", b"host": b"x"}


async def make(app: Application, name: str, pattern: str) -> None:
    body = {"type": "pull-wake", "pattern": pattern, "wake_stream": "wake"}
    head = Head("PUT", f"/v1/stream/__ds/subscriptions/{name}", "", HEADERS)
    response = await app.handle(Request(head, json.dumps(body).encode()))
    assert isinstance(response, Response)
    assert response.status == 201


def test_an_append_that_matches_none_of_ten_thousand_runs_the_same_lines_as_with_one() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await store.open()
        app = Application(store, Settings(store="memory"))
        await app.start()
        for number in range(STREAMS):
            await store.create(f"s/{number}", Create("application/json"), 1.0)
        request = Append("application/json", b'{"kind":"event"}')

        async def lines() -> int:
            with counted_lines() as counted:
                for number in range(APPENDS):
                    await store.append(f"s/{number % STREAMS}", request, 1.0)
            return next(counted)

        without = await lines()
        await make(app, "sub-0", "tenant-0/*/events/**")
        beside_one = await lines()
        for number in range(1, SUBSCRIPTIONS):
            await make(app, f"sub-{number}", f"tenant-{number}/*/events/**")
        assert 0 < beside_one - without < 15 * APPENDS  # to look up whether one matches
        assert await lines() == beside_one
        await app.stop()
        await store.close()

    asyncio.run(scenario())


def test_other_requests_are_served_while_a_glob_links_many_streams() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await store.open()
        app = Application(store, Settings(store="memory"))
        await app.start()
        for number in range(5_000):
            await store.create(f"s/{number}", Create("application/json", body=b"[1]"), 1.0)
        making = asyncio.create_task(make(app, "all", "s/*"))
        served = 0
        while not making.done():
            await store.create(f"s/later-{served}", Create("application/json", body=b"[1]"), 1.0)
            served += 1
            await asyncio.sleep(0)
        await making
        assert served > 20
        head = Head("GET", "/v1/stream/__ds/subscriptions/all", "", HEADERS)
        response = await app.handle(Request(head, b""))
        assert isinstance(response, Response)
        shown = json.loads(response.joined())
        assert len(shown["streams"]) == 5_000 + served
        await app.stop()
        await store.close()

    asyncio.run(scenario())


def test_other_requests_are_served_while_a_subscription_with_many_links_is_deleted() -> None:
    links = 30_000

    async def scenario() -> None:
        store = MemoryStore()
        await store.open()
        app = Application(store, Settings(store="memory"))
        await app.start()
        for number in range(links):
            await store.create(f"s/{number}", Create("application/json"), 1.0)
        await make(app, "all", "s/*")
        head = Head("DELETE", "/v1/stream/__ds/subscriptions/all", "", HEADERS)
        deleting = asyncio.create_task(app.handle(Request(head, b"")))
        served = 0
        while not deleting.done():
            await store.head("s/1", 1.0)
            served += 1
            await asyncio.sleep(0)
        assert (await deleting).status == 204
        assert served > links // PAGE
        assert await store.get_documents(LINKS) == {}
        await make(app, "all", "s/1")
        await app.stop()
        await store.close()

    asyncio.run(scenario())
