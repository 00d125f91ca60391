"""Errors as problem documents, paths that are refused, and the headers of every response."""

from http.client import HTTPConnection

import msgspec
import pytest

from headwater import errors
from headwater.protocol import subscriptions as wakes
from headwater.server.problems import refuse
from headwater.server.subscriptions import refusals
from headwater.storage.refusals import StoreFull
from tests.server.conftest import Serve
from tests.support.server import ServerProcess
from tests.support.wire import Answer, EventReader, Headers, Wire, build

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}


def producer(epoch: int | str, seq: int | str, name: str = "p") -> Headers:
    return JSON | {"Producer-Id": name, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


class TestProblems:
    """One document for each cause, with the headers of the protocol."""

    def test_a_missing_stream_gets_404(self, wire: Wire, path: str) -> None:
        for method in ("GET", "DELETE"):
            wire.ask(method, path).problem(404, "stream-not-found")
        wire.ask("POST", path, JSON, b"1").problem(404, "stream-not-found")
        assert wire.ask("HEAD", path).status == 404
        wire.ask("GET", f"{path}?offset=-1&live=sse").problem(404, "stream-not-found")

    def test_a_path_outside_of_the_root_gets_404(self, wire: Wire) -> None:
        for target in ("/", "/v1", "/v1/stream", "/v2/stream/x", "/favicon.ico"):
            wire.ask("GET", target).problem(404, "not-found")

    def test_another_configuration_gets_409(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON)
        document = wire.ask("PUT", path, TEXT).problem(409, "config-mismatch")
        assert "content type" in document["detail"]

    def test_an_append_to_a_closed_stream_gets_409(self, wire: Wire, path: str) -> None:
        created = wire.ask("PUT", path, JSON | {"Stream-Closed": "true"}, b"1")
        answer = wire.ask("POST", path, JSON, b"2")
        answer.problem(409, "stream-closed")
        assert answer.headers["stream-closed"] == "true"
        assert answer.headers["stream-next-offset"] == created.headers["stream-next-offset"]

    def test_a_closed_stream_reports_the_state_of_a_producer(self, wire: Wire, path: str) -> None:
        """The status alone does not show whether a repeated append was accepted before."""
        wire.ask("PUT", path, JSON)
        claim = {"Producer-Id": "p", "Producer-Epoch": "3", "Producer-Seq": "0"}
        assert wire.ask("POST", path, JSON | claim, b"1").status == 200
        assert wire.ask("POST", path, {"Stream-Closed": "true"}).status == 204
        for seq in ("0", "1"):
            answer = wire.ask("POST", path, JSON | claim | {"Producer-Seq": seq}, b"1")
            answer.problem(409, "stream-closed")
            assert answer.headers["producer-epoch"] == "3"
            assert answer.headers["producer-seq"] == "0"
        answer = wire.ask("POST", path, JSON | claim | {"Producer-Id": "q"}, b"1")
        answer.problem(409, "stream-closed")
        assert "producer-epoch" not in answer.headers

    def test_another_content_type_gets_409(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON)
        wire.ask("POST", path, TEXT, b"1").problem(409, "content-type-mismatch")
        wire.ask("POST", path, {}, b"1").problem(400, "missing-content-type")

    def test_an_empty_or_invalid_append_gets_400(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON)
        wire.ask("POST", path, JSON).problem(400, "empty-body")
        wire.ask("POST", path, JSON | {"Stream-Closed": "yes"}).problem(400, "empty-body")
        wire.ask("POST", path, JSON, b"[]").problem(400, "empty-array")
        wire.ask("POST", path, JSON, b'{"a": "b\nc"}').problem(400, "invalid-json")

    def test_a_sequence_that_does_not_increase_gets_409(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON)
        wire.ask("POST", path, JSON | {"Stream-Seq": "b"}, b"1")
        wire.ask("POST", path, JSON | {"Stream-Seq": "a"}, b"1").problem(
            409, "stream-seq-regression"
        )

    def test_producers(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON)
        accepted = wire.ask("POST", path, producer(1, 0), b"1")
        assert accepted.status == 200
        assert accepted.headers["producer-epoch"] == "1"
        assert accepted.headers["producer-seq"] == "0"
        assert wire.ask("POST", path, producer(1, 0), b"1").status == 204
        gap = wire.ask("POST", path, producer(1, 5), b"1")
        gap.problem(409, "producer-sequence-gap")
        assert gap.headers["producer-expected-seq"] == "1"
        assert gap.headers["producer-received-seq"] == "5"
        fenced = wire.ask("POST", path, producer(0, 0), b"1")
        fenced.problem(403, "producer-fenced")
        assert fenced.headers["producer-epoch"] == "1"
        wire.ask("POST", path, producer(2, 1), b"1").problem(400, "producer-epoch-start")
        for epoch, seq in ((-1, 0), ("x", 0), (0, 2**53), (0, "1e3"), ("", 0)):
            wire.ask("POST", path, producer(epoch, seq), b"1").problem(400, "bad-header")
        wire.ask("POST", path, JSON | {"Producer-Id": "p"}, b"1").problem(400, "bad-header")

    def test_offsets(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON, b'["first"]')
        tail = wire.ask("POST", path, JSON, b'["second"]').headers["stream-next-offset"]
        epoch, byte = tail.split("_")
        wire.ask("GET", f"{path}?offset={epoch}_{int(byte) - 1:016d}").problem(
            400, "offset-inside-message"
        )
        beyond = wire.ask("GET", f"{path}?offset={epoch}_{int(byte) + 1:016d}")
        beyond.problem(400, "offset-beyond-tail")
        assert beyond.headers["stream-next-offset"] == tail
        wire.ask("GET", f"{path}?offset={int(epoch) + 900:016d}_{byte}").problem(
            400, "offset-unknown"
        )
        for text in ("0", "-2", "nower", "1_2", "", "%00", "a,b", "9" * 300):
            wire.ask("GET", f"{path}?offset={text}").problem(400, "offset-malformed")
        wire.ask("GET", f"{path}?offset=-1&offset=now").problem(400, "repeated-parameter")
        wire.ask("GET", f"{path}?live=sse").problem(400, "missing-offset")
        wire.ask("GET", f"{path}?live=tv&offset=-1").problem(400, "unknown-live-mode")

    def test_expiry_headers(self, wire: Wire, path: str) -> None:
        for value in ("-1", "+1", "01", "1.5", "1e3", "x", "", "9" * 40):
            wire.ask("PUT", path, JSON | {"Stream-TTL": value}).problem(400, "bad-header")
        for value in ("tomorrow", "2030-01-01", "2030-13-01T00:00:00Z", "2030-01-01T00:00:00"):
            wire.ask("PUT", path, JSON | {"Stream-Expires-At": value}).problem(400, "bad-header")
        both = {"Stream-TTL": "5", "Stream-Expires-At": "2030-01-01T00:00:00Z"}
        wire.ask("PUT", path, JSON | both).problem(400, "bad-header")

    def test_forks(self, wire: Wire, path: str) -> None:
        tail = wire.ask("PUT", path, JSON, b"[1, 2]").headers["stream-next-offset"]
        fork = {"Stream-Forked-From": path}
        target = f"{path}/fork"
        beyond = tail[:17] + f"{int(tail[17:]) + 1:016d}"
        wire.ask("PUT", target, fork | {"Stream-Fork-Offset": beyond}).problem(
            400, "offset-beyond-tail"
        )
        wire.ask("PUT", target, fork | {"Stream-Fork-Offset": "x"}).problem(400, "offset-malformed")
        overshoot = {"Stream-Fork-Offset": "-1", "Stream-Fork-Sub-Offset": "3"}
        wire.ask("PUT", target, fork | overshoot).problem(400, "fork-sub-offset-overshoot")
        wire.ask("PUT", target, fork | {"Stream-Fork-Sub-Offset": "-1"}).problem(400, "bad-header")
        wire.ask("PUT", target, {"Stream-Fork-Offset": tail}).problem(400, "bad-header")
        wire.ask("PUT", target, fork | TEXT).problem(409, "content-type-mismatch")
        wire.ask("PUT", target, {"Stream-Forked-From": f"{path}/none"}).problem(
            404, "fork-source-not-found"
        )
        assert wire.ask("PUT", target, fork).status == 201
        assert wire.ask("GET", target).json() == [1, 2]
        assert wire.ask("DELETE", path).status == 204
        wire.ask("GET", path).problem(410, "stream-gone")
        wire.ask("DELETE", path).problem(410, "stream-gone")
        wire.ask("PUT", path, JSON).problem(409, "path-blocked")
        wire.ask("PUT", f"{path}/2", fork).problem(409, "fork-source-gone")


@pytest.mark.parametrize(
    ("refusal", "status", "code", "more"),
    [
        (refusals.BadBody("it is cut off"), 400, "invalid-request", {}),
        (refusals.NotPullWake("s"), 400, "invalid-request", {}),
        (refusals.WebhookRejected("it is local"), 400, "webhook-url-rejected", {}),
        (refusals.BadAck("p", "it is unknown"), 400, "invalid-offset", {}),
        (refusals.BadToken(expired=True), 401, "token-expired", {}),
        (refusals.BadToken(expired=False), 401, "token-invalid", {}),
        (refusals.SubscriptionNotFound("s"), 404, "subscription-not-found", {}),
        (refusals.NoResource(), 404, "not-found", {}),
        (refusals.ConfigConflict("s"), 409, "subscription-already-exists", {}),
        (refusals.TooManyKeys(9), 429, "too-many-keys", {}),
        (wakes.BadConfig("it has no streams"), 400, "invalid-request", {}),
        (wakes.NothingPending(), 409, "no-pending-work", {}),
        (wakes.WakeFenced(4), 409, "fenced", {"generation": 4}),
        (
            wakes.AlreadyClaimed("w", 3),
            409,
            "already-claimed",
            {"current_holder": "w", "generation": 3},
        ),
        (StoreFull("10 bytes are stored"), 429, "store-full", {}),
    ],
)
def test_the_control_api_repeats_a_problem_as_an_error(
    refusal: object, status: int, code: str, more: dict[str, object]
) -> None:
    response = refuse(refusal, control=True)
    document = msgspec.json.decode(response.joined())
    assert response.status == document["status"] == status
    assert document["code"] == code
    assert document["type"] == f"urn:headwater:problem:{code}"
    assert document["title"]
    assert document["detail"]
    name = code.upper().replace("-", "_")
    assert document["error"] == {"code": name, "message": document["detail"], **more}
    assert ((b"www-authenticate", b"Bearer") in _lower(response.headers)) == (status == 401)


def _lower(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.EventRefused("it has no type"), 400, "SCHEMA_VALIDATION_FAILED"),
        (errors.KeyFieldRefused("turn", "a|b"), 400, "SCHEMA_VALIDATION_FAILED"),
        (errors.UnknownContract("2.0", "1"), 400, "CONTRACT_VERSION_UNSUPPORTED"),
        (errors.RunQueryRefused("limit", "x", "a number"), 400, "BAD_QUERY"),
        (errors.RunNotFound("r"), 404, "RUN_NOT_FOUND"),
        (errors.RunDeleted("r"), 410, "RUN_DELETED"),
        (errors.RunLogDamaged("r", "event 3", "it is cut off"), 500, "RUN_LOG_DAMAGED"),
        (errors.RunStoreDamaged("runs.db", "it is no database"), 500, "RUN_STORE_DAMAGED"),
        (errors.CacheUnavailable("cache", "it is down"), 500, "CACHE_UNAVAILABLE"),
        (errors.RunStoreUnavailable("store", "it is down"), 503, "STORE_UNAVAILABLE"),
    ],
)
def test_run_errors_are_problems_with_the_code_of_the_contract(
    error: errors.RunError, status: int, code: str
) -> None:
    response = refuse(error)
    document = msgspec.json.decode(response.joined())
    assert response.status == document["status"] == status
    assert document["code"] == code
    assert document["detail"] == str(error)
    assert "error" not in document
    assert ((b"retry-after", b"1") in _lower(response.headers)) == (status == 503)


class TestPaths:
    """What can't name a stream."""

    @pytest.mark.parametrize(
        "target",
        [
            "/v1/stream/",
            "/v1/stream/..",
            "/v1/stream/.",
            "/v1/stream/a/../b",
            "/v1/stream/a/./b",
            "/v1/stream/../../etc/passwd",
            "/v1/stream/%2e%2e/b",
            "/v1/stream/%2E%2e",
            "/v1/stream/.%2e/b",
            "/v1/stream/a/%2e/b",
            "/v1/stream/a//b",
            "/v1/stream//a",
            "/v1/stream/a/",
            "/v1/stream/a%2fb",
            "/v1/stream/a%2F..%2Fb",
            "/v1/stream/a%5cb",
            "/v1/stream/a\\b",
            "/v1/stream/..\\..\\windows",
            "/v1/stream/..%5c..%5cwindows",
            "/v1/stream/a%00b",
            "/v1/stream/a%0ab",
            "/v1/stream/a%0d%0aSet-Cookie:x",
            "/v1/stream/a%7fb",
            "/v1/stream/%c0%ae%c0%ae/b",
            "/v1/stream/%ff",
            "/v1/stream/%ed%a0%80",
            "/v1/stream/%e2%80%ae",
            "/v1/stream/__ds",
            "/v1/stream/%5f%5fds/x",
            "/v1/stream/" + "x" * 1025,
            "/v1/stream/" + "%C3%A9" * 513,
        ],
    )
    def test_a_dangerous_path_gets_400(self, wire: Wire, target: str) -> None:
        for method in ("PUT", "GET", "POST", "DELETE"):
            wire.ask(method, target, JSON, b"1").problem(400, "bad-path")
        wire.ask("PUT", "/v1/stream/fork", {"Stream-Forked-From": target}).problem(400, "bad-path")

    def test_the_same_path_may_be_spelled_in_more_than_one_way(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", f"{path}/caf%C3%A9%20x", TEXT, b"hello")
        assert wire.ask("GET", f"{path}/c%61f%c3%a9%20x").body == b"hello"
        assert wire.ask("GET", f"{path}/cafe%20x").status == 404

    def test_raw_bytes_name_the_stream_that_their_escapes_name(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", f"{path}/caf%C3%A9", TEXT, b"hello")
        wire.send(f"GET {path}/café HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        answer = wire.answer()
        assert answer.status == 400 or answer.body == b"hello"

    def test_the_location_of_a_stream_is_its_url(self, wire: Wire, path: str) -> None:
        created = wire.ask("PUT", f"{path}/caf%C3%A9%20%25x", TEXT, b"hello")
        location = created.headers["location"]
        assert location.startswith("http://test/v1/stream/")
        assert wire.ask("GET", location.removeprefix("http://test")).body == b"hello"


class TestHeaders:
    """On every response (PROTOCOL 12.7)."""

    def check(self, headers: Headers) -> None:
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "cross-origin"
        assert headers["access-control-allow-origin"] == "*"
        assert "stream-next-offset" in headers["access-control-expose-headers"]
        assert headers["date"].endswith("GMT")

    def test_security_headers_are_on_every_kind_of_response(
        self, server: ServerProcess, path: str
    ) -> None:
        requests = [
            build("PUT", path, JSON, b"[1]"),
            build("PUT", path, JSON),
            build("POST", path, JSON, b"1"),
            build("GET", path),
            build("GET", path, {"If-None-Match": "*"}),
            build("GET", f"{path}?offset=now"),
            build("GET", f"{path}?offset=-1&live=long-poll"),
            build("OPTIONS", path),
            build("PATCH", path),
            build("GET", "/healthz"),
            build("GET", "/readyz"),
            build("GET", "/nowhere"),
            build("GET", "/v1/stream/.."),
            build("POST", path, JSON, b"{"),
            build("POST", path, JSON | {"Content-Encoding": "gzip"}, b"{"),
            build("POST", path, JSON | {"Content-Encoding": "what"}, b"{"),
            build("DELETE", path),
            build("GET", path),
            build("GET", path, {"Expect": "what"}),
        ]
        statuses = set()
        with Wire(server.port) as wire:
            for request in requests:
                wire.send(request)
                answer = wire.answer()
                statuses.add(answer.status)
                self.check(answer.headers)
        for refused in (b"NONSENSE\r\n\r\n", build("GET", path, {"X": "x" * 40_000})):
            with Wire(server.port) as wire:
                wire.send(refused)
                answer = wire.answer()
                statuses.add(answer.status)
                self.check(answer.headers)
        assert statuses >= {200, 201, 204, 304, 400, 404, 405, 415, 417, 431}

    def test_security_headers_are_on_event_streams(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, JSON | {"Stream-Closed": "true"})
        self.check(EventReader(wire, f"{path}?offset=-1&live=sse").headers)

    def test_a_preflight_allows_what_the_protocol_needs(self, wire: Wire, path: str) -> None:
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        answer = wire.ask("OPTIONS", path, asked)
        assert answer.status == 204
        for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
            assert method in answer.headers["access-control-allow-methods"]
        allowed = answer.headers["access-control-allow-headers"].lower()
        for name in (
            "content-type",
            "authorization",
            "if-none-match",
            "stream-seq",
            "stream-ttl",
            "stream-expires-at",
            "stream-closed",
            "stream-forked-from",
            "stream-fork-offset",
            "stream-fork-sub-offset",
            "producer-id",
            "producer-epoch",
            "producer-seq",
        ):
            assert name in allowed
        exposed = answer.headers["access-control-expose-headers"].lower()
        for name in (
            "stream-next-offset",
            "stream-cursor",
            "stream-up-to-date",
            "stream-closed",
            "stream-incarnation",
            "producer-epoch",
            "producer-expected-seq",
            "etag",
            "location",
        ):
            assert name in exposed

    def test_another_origin_can_be_chosen(self, serve: Serve) -> None:
        server = serve("--cors-origin", "https://app.example")
        with Wire(server.port) as wire:
            answer = wire.ask("GET", "/healthz")
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "origin" in answer.headers["vary"].lower()


class TestHealth:
    """`/healthz` and `/readyz`."""

    def test_a_server_that_runs_is_alive_and_ready(self, wire: Wire) -> None:
        for target in ("/healthz", "/readyz"):
            answer = wire.ask("GET", target)
            assert answer.status == 200
            assert answer.json()["status"]
            assert answer.headers["cache-control"] == "no-store"
            head: Answer = wire.ask("HEAD", target)
            assert head.status == 200
            wire.ask("POST", target).problem(405, "method-not-allowed")

    def test_an_ordinary_client_understands_the_server(
        self, server: ServerProcess, path: str
    ) -> None:
        client = HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            client.request("PUT", path, body=b"hello", headers=TEXT)
            with client.getresponse() as response:
                assert response.status == 201
            client.request("GET", path)
            with client.getresponse() as response:
                assert response.read() == b"hello"
        finally:
            client.close()
