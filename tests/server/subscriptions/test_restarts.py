"""A server that is killed during a wake, a lease and a retry continues where it stopped."""

import random
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.server.subscriptions.steps import Api, Webhook, eventually
from tests.support.effort import examples
from tests.support.server import ServerProcess

KILLS = examples(10, 100)


class Killable:
    """A server that is killed and started again on its data."""

    def __init__(self, folder: Path) -> None:
        self._options = (
            *("--allow-local-webhooks", "--store", str(folder)),
            *("--checkpoint-interval", "0.3"),
        )
        self.kills = 0
        self.start()

    def start(self) -> Api:
        self._server = ServerProcess(*self._options).start()
        self.api = Api(self._server.url)
        return self.api

    def kill_and_start(self) -> Api:
        self._server.kill()
        self.kills += 1
        return self.start()

    def stop(self) -> None:
        assert self._server.stop() == 0
        assert "Traceback" not in self._server.log()


@pytest.mark.kills
def test_a_restart_loses_no_wake_fences_stale_workers_and_keeps_retry_times(tmp_path: Path) -> None:
    server = Killable(tmp_path / "data")
    chance = random.Random(7)
    with Webhook(status=500) as broken, Webhook(body={"done": True}) as working:
        for number in range(KILLS):
            api = server.api
            api.create("wake/pool")
            api.pull("waking", "waking/**")
            api.pull("leased", "leased/*", lease_ttl_ms=1000)
            api.pull(f"held-{number}", f"held/{number}")
            api.hook("called", working.url, "called/*")
            assert api.hook(f"failing-{number}", broken.url, f"failing/{number}").status == 201
            for path in (f"leased/{number}", f"held/{number}", f"failing/{number}"):
                api.create(path, 1)
            old = api.claim("leased", "old").body
            holding = api.claim(f"held-{number}", "old").body
            failing = f"failing-{number}"
            retry = eventually(partial(_next_attempt, api, failing))
            calls = len(broken.calls)
            # In the middle of these, at another point each time:
            tail = api.create(f"waking/{number}", 1)
            called = api.create(f"called/{number}", 1)
            time.sleep(chance.uniform(0, 0.02))  # chance only: any moment will do
            api = server.kill_and_start()
            _a_lease_is_held(api, f"held-{number}", holding)
            _no_wake_is_lost(api, number, tail)
            _its_old_holder_is_fenced(api, old)
            _a_retry_keeps_its_time(api, broken, failing, retry, calls)
            eventually(partial(_is_acked, api, f"called/{number}", called))
            assert api.call("DELETE", api.sub(failing)).status == 204
    assert server.kills == KILLS
    server.stop()


def _next_attempt(api: Api, name: str) -> Any:
    return api.show(name)["delivery"]["next_attempt_at"]


def _is_acked(api: Api, path: str, offset: str) -> bool:
    return api.acked("called").get(path) == offset


def _no_wake_is_lost(api: Api, number: int, tail: str) -> None:
    generation = number + 1
    eventually(
        lambda: any(
            (event["subscription_id"], event["generation"]) == ("waking", generation)
            for event in api.events("wake/pool")
        )
    )
    claimed = api.claim("waking").body
    assert claimed["generation"] == generation
    listed = {item["path"]: item for item in claimed["streams"]}[f"waking/{number}"]
    assert (listed["tail_offset"], listed["has_pending"]) == (tail, True)
    assert api.ack("waking", claimed).body == {"ok": True, "next_wake": False}


def _a_lease_is_held(api: Api, name: str, holding: dict[str, Any]) -> None:
    """No other worker gets a lease that has not ended, and its holder acks."""
    reply = api.claim(name, "too early")
    assert (reply.status, reply.code) == (409, "ALREADY_CLAIMED")
    assert reply.body["error"]["current_holder"] == "old"
    assert api.ack(name, holding).body == {"ok": True, "next_wake": False}


def _its_old_holder_is_fenced(api: Api, old: dict[str, Any]) -> None:
    """After the lease has ended, another worker gets the work, and the old one can't ack."""

    def is_done_by_another() -> bool:
        """Return False if it can't be claimed yet, or if this lease ends too on a slow machine."""
        reply = api.claim("leased", "new")
        if reply.status != 200:
            return False
        new = reply.body
        assert new["generation"] > old["generation"]
        stale = api.ack("leased", old)
        assert (stale.status, stale.code) == (409, "FENCED")
        return bool(api.ack("leased", new).body == {"ok": True, "next_wake": False})

    eventually(is_done_by_another)


def _a_retry_keeps_its_time(api: Api, broken: Webhook, name: str, retry: str, calls: int) -> None:
    due = datetime.fromisoformat(retry).timestamp()
    call = eventually(
        lambda: next((c for c in broken.calls[calls:] if c.body["subscription_id"] == name), None)
    )
    assert call.at >= due - 0.01, "before its time"
    assert call.body["generation"] == 1
    eventually(lambda: api.show(name)["delivery"]["failed_attempts"] >= 2)
