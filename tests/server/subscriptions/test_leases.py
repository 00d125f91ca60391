"""Leases of pull-wake and of webhooks: how they end and what extends them (PROTOCOL 7)."""

import asyncio
import json
from typing import Any

from headwater.server.app import Application
from headwater.server.messages import Head, Request, Response
from headwater.server.settings import Settings
from headwater.storage.memory import MemoryStore
from tests.server.subscriptions.steps import Api, Webhook, eventually
from tests.support.stepped_server import SteppedServer

LEASE_MS = 10_000


def claimed_work(api: Api) -> dict[str, object]:
    """Create pending work, and claim it."""
    api.create("wake/pool")
    api.create("events/a")
    api.pull("s", lease_ttl_ms=LEASE_MS)
    api.append("events/a")
    claimed: dict[str, object] = api.claim("s").body
    return claimed


def called_webhook(api: Api, hook: Webhook) -> dict[str, object]:
    """Create pending work, and wait for the call of a webhook that only accepts it."""
    api.hook("s", hook.url, lease_ttl_ms=LEASE_MS)
    api.create("events/a", 1)
    wake: dict[str, object] = hook.wait_for(1).body
    eventually(lambda: is_leased(api))
    return wake


def is_leased(api: Api) -> bool:
    return bool(api.show("s")["delivery"]["phase"] == "leased")


def wakes(api: Api) -> list[int]:
    return [event["generation"] for event in api.events("wake/pool")]


def test_a_lease_that_is_not_extended_ends_and_its_holder_is_fenced(
    stepped: SteppedServer,
) -> None:
    api = Api(stepped.url)
    claimed = claimed_work(api)
    stepped.advance(9.0)
    assert api.claim("s", "two").code == "ALREADY_CLAIMED"
    assert wakes(api) == [1]
    stepped.advance(1.0)
    eventually(lambda: wakes(api) == [1, 2])
    for done in (False, True):
        stale = api.ack("s", claimed, done=done)
        assert (stale.status, stale.code) == (409, "FENCED")
    second = api.claim("s", "two").body
    assert second["generation"] == 2
    assert api.ack("s", claimed).code == "FENCED"
    assert api.ack("s", second).status == 200


def test_acks_keep_a_lease_alive(stepped: SteppedServer) -> None:
    api = Api(stepped.url)
    claimed = claimed_work(api)
    for _ in range(3):
        stepped.advance(9.0)
        renewed = api.ack("s", claimed, acks={}, done=False)
        assert renewed.status == 200
        claimed["token"] = renewed.body["token"]
    assert api.claim("s", "two").code == "ALREADY_CLAIMED"
    assert api.ack("s", claimed).body == {"ok": True, "next_wake": False}


def test_a_callback_extends_and_ends_the_lease(stepped: SteppedServer, hook: Webhook) -> None:
    api = Api(stepped.url)
    wake = called_webhook(api, hook)
    for _ in range(3):
        stepped.advance(9.0)
        assert api.ack("s", wake, acks={}, done=False, how="callback").status == 200
    assert is_leased(api)
    assert len(hook.calls) == 1
    assert api.ack("s", wake, how="callback").body == {"ok": True, "next_wake": False}
    (stream,) = hook.calls[0].body["streams"]
    assert api.acked("s") == {"events/a": stream["tail_offset"]}
    assert api.ack("s", wake, how="callback").code == "FENCED"


def test_a_lease_without_callbacks_ends_and_wakes_again(
    stepped: SteppedServer, hook: Webhook
) -> None:
    api = Api(stepped.url)
    first = called_webhook(api, hook)
    stepped.advance(9.0)
    assert is_leased(api)
    assert len(hook.calls) == 1
    stepped.advance(1.0)
    second = hook.wait_for(2).body
    assert second["generation"] == 2
    assert second["wake_id"] != first["wake_id"]
    assert api.ack("s", first, how="callback").code == "FENCED"


class PassingClock:
    """A clock that advances whenever it is read."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_an_ack_extends_the_whole_lease_however_often_the_clock_is_read() -> None:
    """The lease ends after fewer and fewer reads of the clock: the ack is in time, or fenced."""

    async def ask(
        app: Application, method: str, path: str, body: object, token: str = ""
    ) -> tuple[int, Any]:
        headers = {
            b"content-type": b"application/json",
            b"host": b"x",
            b"authorization": f"Bearer {token}".encode(),
        }
        head = Head(method, f"/v1/stream/{path}", "", headers)
        response = await app.handle(Request(head, json.dumps(body).encode()))
        assert isinstance(response, Response)
        raw = response.joined()
        return response.status, json.loads(raw) if raw else None

    async def scenario() -> None:
        clock = PassingClock()
        store = MemoryStore()
        await store.open()
        app = Application(store, Settings(), clock)
        await app.start()
        await ask(app, "PUT", "events/a", ["a"])
        await ask(app, "PUT", "wake", [])
        config = {"type": "pull-wake", "wake_stream": "wake", "lease_ttl_ms": LEASE_MS}
        await ask(app, "PUT", "__ds/subscriptions/s", {**config, "streams": ["events/a"]})
        await ask(app, "POST", "events/a", ["b"])
        _, held = await ask(app, "POST", "__ds/subscriptions/s/claim", {"worker": "one"})
        work = {"wake_id": held["wake_id"], "generation": held["generation"], "acks": []}
        statuses: list[int] = []
        for reads in range(8, 0, -1):
            clock.step = LEASE_MS / 1000 / (reads - 0.5)
            status, acked = await ask(app, "POST", "__ds/subscriptions/s/ack", work, held["token"])
            clock.step = 0.0
            statuses.append(status)
            if status == 200:
                held["token"] = acked["token"]
                _, shown = await ask(app, "GET", "__ds/subscriptions/s", None)
                assert shown["delivery"]["holder"] == "one", statuses
        assert statuses == sorted(statuses)
        assert set(statuses) == {200, 409}
        await app.stop()
        await store.close()

    asyncio.run(scenario())
