"""Creating, confirming, reading, deleting, and explicit links (PROTOCOL 6)."""

import json
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.server.subscriptions.steps import Api, eventually
from tests.support.server import ServerProcess


def test_a_subscription_is_described_as_it_was_created(api: Api) -> None:
    tail = api.create("events/a", 1)
    made = api.pull("s ü", description="why", streams=["x/1"])
    assert made.status == 201
    assert made.headers["location"].endswith("/__ds/subscriptions/s%20%C3%BC")
    body = made.body
    assert body == api.show("s ü")
    assert (body["id"], body["subscription_id"]) == ("s ü", "s ü")
    assert (body["type"], body["pattern"], body["wake_stream"]) == (
        "pull-wake",
        "events/*",
        "wake/pool",
    )
    assert (body["webhook"], body["status"], body["description"]) == (None, "active", "why")
    assert body["created_at"].endswith("Z")
    assert body["streams"] == [
        {"path": "events/a", "link_type": "glob", "acked_offset": tail},
        {
            "path": "x/1",
            "link_type": "explicit",
            "acked_offset": "0000000000000000_0000000000000000",
        },
    ]


def test_a_confirmation_needs_the_same_configuration(api: Api) -> None:
    assert api.pull("s").status == 201
    assert api.pull("s").status == 200
    conflict = api.pull("s", description="other")
    assert (conflict.status, conflict.code) == (409, "SUBSCRIPTION_ALREADY_EXISTS")


@pytest.mark.parametrize(
    "body",
    [
        {"type": "carrier-pigeon", "pattern": "a"},
        {"type": "pull-wake", "wake_stream": "w"},
        {"type": "pull-wake", "pattern": "a/*"},
        {"type": "webhook", "pattern": "a/*"},
        {"type": "pull-wake", "pattern": "a/*", "wake_stream": "w", "lease_ttl_ms": 1},
        {"type": "pull-wake", "pattern": "__ds/**", "wake_stream": "w"},
        {"type": "pull-wake", "pattern": 1, "wake_stream": "w"},
        ["not an object"],
    ],
)
def test_an_invalid_configuration_is_refused(api: Api, body: object) -> None:
    refused = api.call("PUT", api.sub("s"), body)
    assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
    assert refused.headers["content-type"] == "application/problem+json"
    assert api.call("GET", api.sub("s")).code == "SUBSCRIPTION_NOT_FOUND"


def test_an_explicit_link_hides_the_glob_link_until_it_is_removed(api: Api) -> None:
    api.create("events/a", 1)
    api.pull("s", streams=["events/a"])
    assert api.show("s")["streams"][0]["link_type"] == "explicit"
    target = api.sub("s", "streams", "events%2Fa")
    assert api.call("DELETE", target).status == 204
    assert api.show("s")["streams"][0]["link_type"] == "glob"
    assert api.call("DELETE", target).status == 204
    assert api.call("POST", api.sub("s", "streams"), {"streams": ["events/a"]}).status == 204
    assert api.show("s")["streams"][0]["link_type"] == "explicit"
    assert api.call("DELETE", api.sub("s", "streams", "events", "a")).status == 204
    assert api.show("s")["streams"][0]["link_type"] == "glob"


def test_added_streams_are_linked_at_their_tail_and_wake(api: Api) -> None:
    api.create("wake/pool")
    tail = api.create("x/1", 1)
    api.pull("s", None, streams=["x/0"])
    add = {"streams": ["x/1", "/x/2/"]}
    for _ in range(2):
        assert api.call("POST", api.sub("s", "streams"), add).status == 204
    assert api.acked("s")["x/1"] == tail
    assert api.claim("s").code == "NO_PENDING_WORK"
    api.append("x/1")
    api.create("x/2", 1)
    claimed = eventually(lambda: (r := api.claim("s")).status == 200 and r.body)
    pending = [item["path"] for item in claimed["streams"] if item["has_pending"]]
    assert "x/1" in pending


def test_a_deleted_subscription_takes_no_acks_and_a_new_one_fences_them(api: Api) -> None:
    api.create("wake/pool")
    api.create("events/a")
    api.pull("s")
    api.append("events/a")
    claimed = api.claim("s").body
    assert api.call("DELETE", api.sub("s")).status == 204
    assert api.call("DELETE", api.sub("s")).code == "SUBSCRIPTION_NOT_FOUND"
    for reply in (api.ack("s", claimed), api.release("s", claimed), api.claim("s")):
        assert (reply.status, reply.code) == (404, "SUBSCRIPTION_NOT_FOUND")
    api.pull("s")
    before = api.acked("s")
    api.append("events/a")
    again = api.claim("s").body
    assert again["generation"] == claimed["generation"]
    assert api.ack("s", claimed).code == "FENCED"
    assert api.acked("s") == before


def test_subscriptions_are_listed_page_by_page(api: Api) -> None:
    for number in range(5):
        api.pull(f"s{number}")
    first = api.call("GET", "__ds/subscriptions?limit=3").body
    assert [item["id"] for item in first["subscriptions"]] == ["s0", "s1", "s2"]
    second = api.call("GET", f"__ds/subscriptions?limit=3&after={first['next']}").body
    assert [item["id"] for item in second["subscriptions"]] == ["s3", "s4"]
    assert second["next"] is None
    for limit in ("0", "1001", "x", "9" * 5000):
        assert api.call("GET", f"__ds/subscriptions?limit={limit}").status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "__ds/nothing", 404),
        ("GET", "__ds/", 404),
        ("POST", "__ds/subscriptions/s", 405),
        ("GET", "__ds/subscriptions/s/claim", 405),
        ("GET", "__ds/subscriptions/none", 404),
        ("PUT", "__ds/stream", 404),
    ],
)
def test_other_resources_and_methods_are_refused(
    api: Api, method: str, path: str, status: int
) -> None:
    assert api.call(method, path).status == status


def test_a_webhook_subscription_cannot_be_claimed(api: Api) -> None:
    api.hook("s", "http://127.0.0.1:1/")
    assert (api.claim("s").status, api.claim("s").code) == (400, "INVALID_REQUEST")


def test_urls_begin_with_the_configured_public_url() -> None:
    options = ("--allow-local-webhooks", "--public-url", "https://streams.example.com/")
    with ServerProcess(*options) as server:
        body = Api(server.url).hook("s", "http://127.0.0.1:1/").body
    expected = "https://streams.example.com/v1/stream/__ds/jwks.json"
    assert body["webhook"]["signing"]["jwks_url"] == expected


def test_a_creation_completes_when_its_client_disconnects(api: Api) -> None:
    for number in range(50):
        connection = HTTPConnection(urlsplit(api.url).netloc)
        body = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "w"}
        path = f"/v1/stream/__ds/subscriptions/gone-{number}"
        connection.request("PUT", path, json.dumps(body))
        connection.close()
    api.pull("last")
    listed = api.call("GET", "__ds/subscriptions?limit=1000").body["subscriptions"]
    for item in listed:
        assert api.show(item["id"])["status"] == "active"


def test_links_without_a_subscription_are_removed_and_deletions_are_durable(tmp_path: Path) -> None:
    options = ("--store", str(tmp_path / "data"))
    with ServerProcess(*options) as server:
        api = Api(server.url)
        for number in range(30):
            api.create(f"events/{number}", 1)
        api.pull("kept")
        api.pull("gone")
        assert api.call("DELETE", api.sub("gone")).status == 204
        before = api.show("kept")
    with ServerProcess(*options) as server:
        api = Api(server.url)
        assert api.show("kept") == before
        assert api.call("GET", api.sub("gone")).status == 404
        assert api.pull("gone").status == 201
        assert len(api.acked("gone")) == 30
