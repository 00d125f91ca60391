"""The lease of a worker, as the server's responses renew it."""

from headwater.client._http1 import Response
from headwater.client._subscriptions import Claim
from headwater.client._worker import Lease
from headwater.protocol.paths import DEFAULT_ROOT

URL = "http://host"
CLAIM = Claim(wake_id="w", generation=1, token="first", streams=[], lease_ttl_ms=30_000)


def test_an_ack_is_sent_with_the_newest_token() -> None:
    lease = Lease(URL, DEFAULT_ROOT, "s", CLAIM)
    heartbeat = lease.ack({})
    assert heartbeat.request.headers["Authorization"] == "Bearer first"
    body = b'{"ok": true, "next_wake": false, "token": "second"}'
    heartbeat.interpret(Response(URL, "POST", 200, {}, body))
    assert lease.ack({}).request.headers["Authorization"] == "Bearer second"
    assert lease.release().request.headers["Authorization"] == "Bearer second"


def test_an_ack_without_a_token_does_not_replace_the_token() -> None:
    lease = Lease(URL, DEFAULT_ROOT, "s", CLAIM)
    lease.ack({}, done=True).interpret(Response(URL, "POST", 200, {}, b'{"next_wake": true}'))
    assert lease.release().request.headers["Authorization"] == "Bearer first"
