"""Pull-wake: events in the wake stream, claims, acks, leases (PROTOCOL 7.2, 7.3)."""

import time
import urllib.request

import pytest

from tests.server.subscriptions.steps import Api, eventually


@pytest.fixture(autouse=True)
def _wake_stream(api: Api) -> None:
    api.create("wake/pool")


def wakes(api: Api) -> list[int]:
    return [event["generation"] for event in api.events("wake/pool")]


def test_an_append_writes_one_wake_event_until_it_is_claimed(api: Api) -> None:
    api.create("events/a")
    assert api.pull("s").status == 201
    before = time.time()
    api.append("events/a")
    (event,) = eventually(lambda: api.events("wake/pool"))
    assert event["type"] == "wake"
    assert event["subscription_id"] == "s"
    assert event["stream"] == "events/a"
    assert event["generation"] == 1
    assert int(before * 1000) <= event["ts"] <= time.time() * 1000
    api.append("events/a")
    api.create("events/b", 1)
    claimed = api.claim("s").body
    assert [item["path"] for item in claimed["streams"]] == ["events/a", "events/b"]
    assert wakes(api) == [1]


def test_existing_streams_are_linked_at_their_tail(api: Api) -> None:
    tail = api.create("events/old", 1, 2)
    api.create("other/old", 1)
    api.pull("s")
    assert api.acked("s") == {"events/old": tail}
    assert api.claim("s").code == "NO_PENDING_WORK"


def test_later_streams_are_linked_before_their_first_message(api: Api) -> None:
    api.pull("s")
    tail = api.create("events/new", 1)
    (stream,) = api.claim("s").body["streams"]
    assert stream == {
        "path": "events/new",
        "link_type": "glob",
        "acked_offset": "0000000000000000_0000000000000000",
        "tail_offset": tail,
        "has_pending": True,
    }


def test_a_fork_is_linked_at_its_fork_point(api: Api) -> None:
    tail = api.create("source", 1, 2)
    api.pull("s")
    fork(api, "events/fork", {"Stream-Forked-From": "/v1/stream/source"})
    assert api.acked("s")["events/fork"] == tail
    assert api.claim("s").code == "NO_PENDING_WORK"
    api.append("events/fork")
    assert api.claim("s").status == 200


def fork(api: Api, path: str, headers: dict[str, str]) -> None:
    request = urllib.request.Request(f"{api.url}/v1/stream/{path}", method="PUT", headers=headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


def test_an_ack_is_stored_and_never_moves_back(api: Api) -> None:
    first = api.create("events/a", 1)
    api.pull("s")
    second = api.append("events/a")
    claimed = api.claim("s").body
    assert api.ack("s", claimed, done=False).body["next_wake"] is False
    assert api.acked("s") == {"events/a": second}
    assert api.ack("s", claimed, acks={"events/a": first}).body["ok"] is True
    assert api.acked("s") == {"events/a": second}


def test_an_ack_of_a_part_leaves_the_rest_pending(api: Api) -> None:
    api.create("events/a")
    api.pull("s")
    first = api.append("events/a")
    claimed = api.claim("s").body
    api.append("events/a")
    reply = api.ack("s", claimed, acks={"events/a": first})
    assert reply.body == {"ok": True, "next_wake": True}
    eventually(lambda: wakes(api) == [1, 2])
    again = api.claim("s").body
    assert again["generation"] == 2
    assert again["streams"][0]["acked_offset"] == first


@pytest.mark.parametrize("offset", ["x", "0000000000000001_9999999999999999", "-1"])
def test_a_request_with_an_invalid_offset_acks_nothing(api: Api, offset: str) -> None:
    tail = api.create("events/a")
    api.pull("s")
    info = api.append("events/a")
    claimed = api.claim("s").body
    bad = info.partition("_")[0] + "_9999999999999999" if "999" in offset else offset
    reply = api.ack("s", claimed, acks={"events/a": bad})
    assert (reply.status, reply.code) == (400, "INVALID_OFFSET")
    assert api.acked("s") == {"events/a": tail}
    assert api.ack("s", claimed).status == 200


def test_only_one_worker_holds_the_lease(api: Api) -> None:
    api.create("events/a")
    api.pull("s")
    api.append("events/a")
    claimed = api.claim("s", "one").body
    for worker in ("one", "two"):
        busy = api.claim("s", worker)
        assert (busy.status, busy.code) == (409, "ALREADY_CLAIMED")
        assert busy.body["error"]["current_holder"] == "one"
        assert busy.body["error"]["generation"] == claimed["generation"]


def test_a_released_wake_is_announced_again(api: Api) -> None:
    api.create("events/a")
    api.pull("s")
    api.append("events/a")
    claimed = api.claim("s").body
    assert api.release("s", claimed).status == 204
    eventually(lambda: wakes(api) == [1, 2])
    assert api.release("s", claimed).code == "FENCED"
    assert api.claim("s", "two").body["generation"] == 2


@pytest.mark.parametrize("change", ["wake_id", "generation", "token", "none", "other"])
def test_token_generation_and_wake_must_all_match(api: Api, change: str) -> None:
    api.create("events/a")
    api.pull("s")
    api.pull("t", description="other")
    before = api.acked("s")
    api.append("events/a")
    claimed = api.claim("s").body
    other = api.claim("t").body
    wrong = {
        "wake_id": {**claimed, "wake_id": "w_other"},
        "generation": {**claimed, "generation": 9},
        "token": {**claimed, "token": claimed["token"][:-3] + "abc"},
        "none": {**claimed, "token": None},
        "other": {**claimed, "token": other["token"]},
    }[change]
    reply = api.ack("s", wrong)
    expected = (409, "FENCED") if change in {"wake_id", "generation"} else (401, "TOKEN_INVALID")
    assert (reply.status, reply.code) == expected
    assert api.acked("s") == before


def test_a_stream_that_is_created_again_is_pending_from_its_beginning(api: Api) -> None:
    api.create("events/a", 1, 2, 3)
    api.pull("s", streams=["events/a"])
    assert api.call("DELETE", "events/a").status == 204
    tail = api.create("events/a", 9)
    (stream,) = api.claim("s").body["streams"]
    assert stream["acked_offset"].endswith("_0000000000000000")
    assert stream["tail_offset"] == tail
    assert stream["link_type"] == "explicit"


def test_a_deleted_stream_needs_no_ack(api: Api) -> None:
    api.create("events/a")
    api.pull("s")
    api.append("events/a")
    claimed = api.claim("s").body
    api.call("DELETE", "events/a")
    assert api.ack("s", claimed).body == {"ok": True, "next_wake": False}
    assert api.acked("s") == {}


def test_a_wake_with_nothing_pending_ends_at_a_claim_and_the_next_append_wakes(api: Api) -> None:
    api.create("events/a")
    api.pull("s")
    api.append("events/a")
    eventually(lambda: wakes(api) == [1])
    api.call("DELETE", "events/a")
    assert api.claim("s").code == "NO_PENDING_WORK"
    api.create("events/b", 1)
    eventually(lambda: wakes(api) == [1, 2])


def test_a_pattern_that_matches_its_wake_stream_does_not_wake_itself(api: Api) -> None:
    api.pull("s", "**")
    api.create("events/a", 1)
    claimed = api.claim("s").body
    assert [item["path"] for item in claimed["streams"]] == ["events/a"]
    assert api.ack("s", claimed).body == {"ok": True, "next_wake": False}


def test_a_wake_stream_that_is_created_later_gets_the_event_then(api: Api) -> None:
    api.pull("s", wake_stream="wake/later")
    api.create("events/a", 1)
    eventually(lambda: api.show("s")["status"] == "failed")
    assert "wake/later" in api.show("s")["delivery"]["last_error"]
    api.create("wake/later")
    assert eventually(lambda: api.events("wake/later"))[0]["generation"] == 1
    eventually(lambda: api.show("s")["status"] == "active")
