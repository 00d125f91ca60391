"""Listings of streams, split points and changes."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.conftest import Serve
from tests.support.barrier import barrier
from tests.support.wire import Wire, build

JSON = {"Content-Type": "application/json"}
DS = "/v1/stream/__ds"


@pytest.fixture
def room(path: str) -> str:
    """A path prefix that no other test uses."""
    return path.removeprefix("/v1/stream/")


def put(wire: Wire, path: str, body: bytes = b"") -> None:
    assert wire.ask("PUT", f"/v1/stream/{quote(path)}", JSON, body).status == 201


def listed(wire: Wire, query: str) -> dict[str, Any]:
    answer = wire.ask("GET", f"{DS}/streams?{query}")
    assert answer.status == 200, answer.body
    found = answer.json()
    assert isinstance(found, dict)
    return found


def paths(page: dict[str, Any]) -> list[str]:
    return [stream["path"] for stream in page["streams"]]


class TestStreams:
    """`__ds/streams`."""

    def test_a_stream_is_described_as_it_is(self, wire: Wire, room: str) -> None:
        put(wire, f"{room}/a b", b"[1]")
        wire.ask("POST", f"/v1/stream/{room}/a%20b", {"Stream-Closed": "true"})
        (found,) = listed(wire, f"glob={room}/*")["streams"]
        head = wire.ask("HEAD", f"/v1/stream/{room}/a%20b").headers
        assert found == {
            "path": f"{room}/a b",
            "content_type": "application/json",
            "tail": head["stream-next-offset"],
            "incarnation": head["stream-incarnation"],
            "closed": True,
        }

    def test_globs_select_streams(self, wire: Wire, room: str) -> None:
        for name in ("a", "a/1", "a/1/x", "b/1"):
            put(wire, f"{room}/{name}")
        assert paths(listed(wire, f"glob={room}/*/1")) == [f"{room}/a/1", f"{room}/b/1"]
        assert paths(listed(wire, f"glob={room}/a/**")) == [
            f"{room}/{name}" for name in ("a", "a/1", "a/1/x")
        ]
        assert paths(listed(wire, f"glob={room}/a/1")) == [f"{room}/a/1"]
        assert paths(listed(wire, f"glob={room}/none")) == []

    def test_pages_follow_one_another(self, wire: Wire, room: str) -> None:
        names = [f"{room}/{number:02d}/{kind}" for number in range(12) for kind in ("x", "y")]
        for name in names:
            put(wire, name)
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = listed(wire, f"glob={room}/*/y&limit=5&after={quote(after)}")
            found += paths(page)
            after = page["next"]
        assert found == names[1::2]

    def test_invalid_parameters_are_refused(self, wire: Wire) -> None:
        for query in ("limit=0", "limit=1001", "limit=x", "glob=a//b", "glob=__ds/x"):
            wire.ask("GET", f"{DS}/streams?{query}").problem(400, "bad-parameter")
        wire.ask("GET", f"{DS}/streams?glob=a&glob=b").problem(400, "repeated-parameter")
        wire.ask("POST", f"{DS}/streams", JSON, b"{}").problem(405, "method-not-allowed")


class TestSplits:
    """`__ds/splits`."""

    def test_pieces_can_be_read_independently(self, wire: Wire, room: str) -> None:
        put(wire, room, json.dumps(["x" * (number % 50) for number in range(500)]).encode())
        answer = wire.ask("GET", f"{DS}/splits/{room}?bytes=1000").json()
        offsets = answer["offsets"]
        assert answer["next"] is None
        assert len(offsets) > 10
        assert offsets[-1] == answer["tail"]
        counts = [len(wire.ask("GET", f"/v1/stream/{room}?offset={at}").json()) for at in offsets]
        assert counts == sorted(set(counts), reverse=True)
        assert counts[0] == 500

    def test_a_range_is_split_page_by_page(self, wire: Wire, room: str) -> None:
        put(wire, room, b"[1,2,3,4,5,6]")
        everything = wire.ask("GET", f"{DS}/splits/{room}?bytes=1").json()["offsets"]
        part = wire.ask(
            "GET", f"{DS}/splits/{room}?bytes=1&limit=2&from={everything[1]}&to={everything[5]}"
        ).json()
        assert part["offsets"] == everything[1:4]
        assert part["next"] == everything[3]

    def test_invalid_splits_are_refused(self, wire: Wire, room: str) -> None:
        put(wire, room, b'["long enough"]')
        at = f"{DS}/splits/{room}"
        inside = "_".join([wire.ask("GET", at).json()["tail"][:16], "0" * 15 + "3"])
        wire.ask("GET", f"{at}?from={inside}").problem(400, "offset-inside-message")
        wire.ask("GET", f"{at}?to={inside}").problem(400, "offset-inside-message")
        wire.ask("GET", f"{at}?from=nowhere").problem(400, "offset-malformed")
        wire.ask("GET", f"{at}?from=now").problem(400, "bad-parameter")
        wire.ask("GET", f"{at}?bytes=0").problem(400, "bad-parameter")
        wire.ask("GET", f"{at}/none").problem(404, "stream-not-found")
        wire.ask("GET", f"{DS}/splits/a//b").problem(400, "bad-path")


class TestChanges:
    """`__ds/changes`."""

    def test_only_streams_changed_after_the_cursor_are_listed(self, wire: Wire, room: str) -> None:
        put(wire, f"{room}/a")
        first = wire.ask("GET", f"{DS}/changes?glob={room}/*").json()
        assert first["streams"] is None
        nothing = wire.ask(
            "GET", f"{DS}/changes?glob={room}/*&after={first['cursor']}&wait_ms=0"
        ).json()
        assert nothing["streams"] == []
        put(wire, f"{room}/b")
        wire.ask("POST", f"/v1/stream/{room}/a", JSON, b"1")
        put(wire, f"{room}/deep/c")
        changed = wire.ask("GET", f"{DS}/changes?glob={room}/*&after={first['cursor']}").json()
        assert paths(changed) == [f"{room}/a", f"{room}/b"]
        head = wire.ask("HEAD", f"/v1/stream/{room}/a").headers
        assert changed["streams"][0]["tail"] == head["stream-next-offset"]
        wire.ask("DELETE", f"/v1/stream/{room}/b")
        changed = wire.ask("GET", f"{DS}/changes?glob={room}/*&after={changed['cursor']}").json()
        assert (changed["streams"], changed["gone"]) == ([], [f"{room}/b"])

    def test_a_waiting_request_is_answered_at_once(self, serve: Serve) -> None:
        server = serve("--long-poll-timeout", "3600")
        with Wire(server.port) as wire, Wire(server.port) as other:
            put(wire, "s")
            cursor = wire.ask("GET", f"{DS}/changes?glob=s&glob=t").json()["cursor"]
            wire.send(build("GET", f"{DS}/changes?glob=s&glob=t&after={cursor}"))
            barrier(server.port)
            put(other, "unrelated")
            put(other, "t")
            assert paths(wire.answer().json()) == ["t"]

    def test_a_cursor_of_another_session_returns_null(self, wire: Wire) -> None:
        for cursor in ("", "abc-3", "nonsense", "1-" + "9" * 40):
            assert wire.ask("GET", f"{DS}/changes?after={cursor}").json()["streams"] is None

    def test_a_stopping_server_answers_waiting_requests(self, serve: Serve) -> None:
        server = serve("--long-poll-timeout", "3600")
        with Wire(server.port) as wire:
            cursor = wire.ask("GET", f"{DS}/changes").json()["cursor"]
            wire.send(build("GET", f"{DS}/changes?after={cursor}"))
            barrier(server.port)
            assert server.stop() == 0
            assert wire.answer().json()["streams"] == []
