"""Webhooks: signed, retried, fenced, dead after too many failures (PROTOCOL 7.1)."""

import json
import re
import time
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.server.subscriptions.steps import Api, Call, Webhook, eventually
from tests.support.server import ServerProcess
from tests.support.stepped_server import SteppedServer


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def signer(api: Api, call: Call) -> str:
    """Verify a call as a receiver would, and return the id of the key."""
    found = re.fullmatch(r"t=(\d+),kid=([^,]+),ed25519=([\w-]+)", call.headers["webhook-signature"])
    assert found is not None
    (key,) = [
        key for key in api.call("GET", "__ds/jwks.json").body["keys"] if key["kid"] == found[2]
    ]
    public = Ed25519PublicKey.from_public_bytes(decoded(key["x"]))
    public.verify(decoded(found[3]), found[1].encode() + b"." + call.raw)
    with pytest.raises(InvalidSignature):
        public.verify(decoded(found[3]), found[1].encode() + b"." + call.raw + b" ")
    return str(found[2])


def signed_at(call: Call) -> int:
    """Read the time of a call's signature."""
    return int(call.headers["webhook-signature"].removeprefix("t=").partition(",")[0])


def test_a_call_is_signed_and_lists_the_changed_streams(api: Api, hook: Webhook) -> None:
    made = api.hook("s", hook.url)
    assert made.status == 201
    before = int(time.time())
    tail = api.create("events/a", 1)
    call = hook.wait_for(1)
    assert before <= signed_at(call) <= call.at
    assert signer(api, call) == made.body["webhook"]["signing"]["kid"]
    assert call.path == "/hook?x=1"
    assert call.headers["content-type"] == "application/json"
    body: dict[str, Any] = call.body
    assert body["subscription_id"] == "s"
    assert body["generation"] == 1
    assert body["callback_url"] == f"{api.url}/v1/stream/__ds/subscriptions/s/callback"
    (stream,) = body["streams"]
    assert (stream["path"], stream["tail_offset"]) == ("events/a", tail)


def test_done_acks_only_the_tails_that_the_call_listed(api: Api, hook: Webhook) -> None:
    hook.body = {"done": True}
    hook.gate.clear()
    api.hook("s", hook.url)
    first = api.create("events/a", 1)
    listed = hook.wait_for(1).body["streams"][0]
    assert listed["tail_offset"] == first
    second = api.append("events/a")
    hook.gate.set()
    again = hook.wait_for(2).body
    assert again["generation"] == 2
    assert again["streams"][0]["acked_offset"] == first
    eventually(lambda: api.acked("s") == {"events/a": second})
    assert len(hook.calls) == 2


def test_a_callback_may_arrive_before_the_response(api: Api, hook: Webhook) -> None:
    hook.gate.clear()
    api.hook("s", hook.url)
    api.create("events/a", 1)
    wake = hook.wait_for(1).body
    assert api.ack("s", wake, how="callback").body == {"ok": True, "next_wake": False}
    hook.gate.set()
    eventually(lambda: hook.taken)
    assert api.ack("s", wake, how="callback").code == "FENCED"  # queued after the response
    assert api.show("s")["delivery"]["phase"] == "idle"
    assert len(hook.calls) == 1
    api.append("events/a")
    assert hook.wait_for(2).body["generation"] == 2


def test_failures_are_retried_with_the_same_wake_and_growing_pauses(
    stepped: SteppedServer, hook: Webhook
) -> None:
    api = Api(stepped.url)
    hook.status = 500
    api.hook("s", hook.url)
    api.create("events/a", 1)
    hook.wait_for(1)
    failed = eventually(lambda: (shown := api.show("s"))["status"] == "failed" and shown)
    assert failed["delivery"]["failed_attempts"] == 1
    assert "500" in failed["delivery"]["last_error"]
    stepped.advance(1.0)
    hook.wait_for(2)
    eventually(lambda: api.show("s")["delivery"]["failed_attempts"] == 2)
    hook.status, hook.body = 200, {"done": True}
    stepped.advance(2.0)
    hook.wait_for(3)
    first, second, third = hook.calls
    assert {call.body["wake_id"] for call in hook.calls} == {first.body["wake_id"]}
    assert signed_at(second) - signed_at(first) == 1
    assert signed_at(third) - signed_at(second) == 2
    eventually(lambda: api.show("s")["status"] == "active")
    assert api.show("s")["delivery"]["failed_attempts"] == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", "302"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000, "longer than"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 60_000, "too long"),
        (b"nonsense\r\n\r\n", "not HTTP"),
        (b"", "without a response"),
    ],
    ids=["redirect", "long body", "long head", "nonsense", "nothing"],
)
def test_invalid_responses_count_as_failures(
    api: Api, hook: Webhook, answer: bytes, reason: str
) -> None:
    hook.raw_answer = answer
    api.hook("s", hook.url)
    api.create("events/a", 1)
    shown = eventually(lambda: (s := api.show("s"))["status"] == "failed" and s)
    assert reason in shown["delivery"]["last_error"]


def test_a_slow_response_times_out_with_the_lease(stepped: SteppedServer, hook: Webhook) -> None:
    api = Api(stepped.url)
    hook.gate.clear()
    api.hook("s", hook.url, lease_ttl_ms=5_000)
    api.create("events/a", 1)
    hook.wait_for(1)
    stepped.advance(4.5)
    assert api.show("s")["status"] == "active"
    stepped.advance(0.5)
    shown = eventually(lambda: (s := api.show("s"))["status"] == "failed" and s)
    assert "in time" in shown["delivery"]["last_error"]


def test_a_subscription_is_dead_after_too_many_failures_until_it_is_confirmed(
    hook: Webhook, tmp_path: Path
) -> None:
    options = ("--allow-local-webhooks", "--webhook-attempts", "2")
    hook.status = 503
    with ServerProcess(*options, "--store", str(tmp_path / "data")) as server:
        api = Api(server.url)
        api.hook("s", hook.url)
        api.create("events/a", 1)
        eventually(lambda: api.show("s")["status"] == "dead")
        wake = hook.wait_for(2).body
        assert api.ack("s", wake, how="callback").code == "FENCED"
        api.append("events/a")
        assert api.ack("s", wake, how="callback").code == "FENCED"  # queued after the append
        assert api.show("s")["status"] == "dead"
        assert len(hook.calls) == 2
    with ServerProcess(*options, "--store", str(tmp_path / "data")) as server:
        api = Api(server.url)
        shown = api.show("s")
        assert shown["status"] == "dead"
        assert shown["delivery"]["failed_attempts"] == 2
        hook.status, hook.body = 200, {"done": True}
        assert api.hook("s", hook.url).status == 200
        call = hook.wait_for(3)
        assert call.body["generation"] == 2
        assert call.body["callback_url"].startswith(server.url)
        eventually(lambda: api.show("s")["status"] == "active")


def test_rotated_keys_are_durable_and_stay_published(hook: Webhook, tmp_path: Path) -> None:
    options = ("--allow-local-webhooks", "--store", str(tmp_path / "data"))
    hook.body = {"done": True}
    with ServerProcess(*options) as server:
        api = Api(server.url)
        api.hook("s", hook.url)
        api.create("events/a", 1)
        first = signer(api, hook.wait_for(1))
        rotated = api.call("POST", "__ds/keys/rotate").body
        assert rotated["kid"] != first
        assert rotated["published"] == [rotated["kid"], first]
        assert signer(api, hook.calls[0]) == first
        api.append("events/a")
        assert signer(api, hook.wait_for(2)) == rotated["kid"]
    with ServerProcess(*options) as server:
        api = Api(server.url)
        api.append("events/a")
        assert signer(api, hook.wait_for(3)) == rotated["kid"]
        assert signer(api, hook.calls[0]) == first
    # The overlap of all replaced keys is over.
    with ServerProcess(*options, "--webhook-key-overlap", "0") as server:
        api = Api(server.url)
        assert signer(api, hook.calls[2]) == rotated["kid"]
        assert len(api.call("GET", "__ds/jwks.json").body["keys"]) == 1
        jwks = api.call("GET", "__ds/jwks.json")
        assert jwks.headers["content-type"] == "application/jwk-set+json"
        assert jwks.headers["cache-control"] == "public, max-age=300"
        assert json.dumps(jwks.body).count("private") == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://localhost/x"])
def test_local_webhooks_must_be_allowed(url: str) -> None:
    with ServerProcess() as server:
        refused = Api(server.url).hook("s", url)
    assert (refused.status, refused.code) == (400, "WEBHOOK_URL_REJECTED")
