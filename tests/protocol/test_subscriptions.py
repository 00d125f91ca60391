"""The state machine of subscriptions, as tables and as a random walk."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from headwater.protocol import subscriptions as s
from headwater.protocol.forks import ForkOrigin
from headwater.protocol.offsets import START, Offset
from headwater.protocol.subscriptions import Link, beginning

NOW = 1_000.0
PULL = s.Config("pull-wake", "a/*", (), None, "wake", 2_000, None)
HOOK = s.Config("webhook", "a/*", (), "https://x.example/", None, 2_000, None)
DUE = s.State(7, "due", "w_7", next_attempt_at=NOW)
LEASED = s.State(7, "leased", "w_7", "one", NOW + 2)


def asked(**changes: object) -> s.ConfigRequest:
    given = s.ConfigRequest("pull-wake", pattern="a/*", wake_stream="wake")
    return structs.replace(given, **changes)


class TestNormalForm:
    """`normalise` and the fingerprint."""

    def test_order_duplicates_and_outer_slashes_make_no_difference(self) -> None:
        one = s.normalise(asked(streams=["/b", "a/x", "b/"]), 100)
        two = s.normalise(asked(streams=["a/x", "b"]), 100)
        assert isinstance(one, s.Config)
        assert isinstance(two, s.Config)
        assert one.fingerprint() == two.fingerprint()

    @pytest.mark.parametrize(
        "change",
        [
            {"pattern": "b/*"},
            {"streams": ["x"]},
            {"wake_stream": "other"},
            {"lease_ttl_ms": 1000},
            {"description": "other"},
        ],
    )
    def test_every_field_changes_the_fingerprint(self, change: dict[str, object]) -> None:
        one, two = s.normalise(asked(), 100), s.normalise(asked(**change), 100)
        assert isinstance(one, s.Config)
        assert isinstance(two, s.Config)
        assert one.fingerprint() != two.fingerprint()

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"pattern": None}, "neither a pattern nor streams"),
            ({"lease_ttl_ms": 999}, "lease_ttl_ms"),
            ({"lease_ttl_ms": 600_001}, "lease_ttl_ms"),
            ({"wake_stream": None}, "needs wake_stream"),
            ({"wake_stream": "__ds/x"}, "reserved"),
            ({"streams": ["a//b"]}, "empty"),
            ({"streams": ["../b"]}, ".."),
            ({"streams": ["wake"]}, "wake stream"),
            ({"pattern": "x" * 200}, "longer than 100"),
            ({"description": "x" * 2000}, "description"),
            ({"type": "webhook"}, "webhook.url"),
        ],
    )
    def test_an_invalid_configuration_is_refused(
        self, change: dict[str, object], reason: str
    ) -> None:
        refused = s.normalise(asked(**change), 100)
        assert isinstance(refused, s.BadConfig)
        assert reason in refused.reason


class TestClaiming:
    """`claim`."""

    @pytest.mark.parametrize("phase", ["due", "waking"])
    def test_a_wake_is_claimed_with_its_generation(self, phase: s.Phase) -> None:
        state = s.State(7, phase, "w_7")
        claimed = s.claim(PULL, state, "one", "w_8", NOW, pending=True)
        assert claimed == LEASED

    @pytest.mark.parametrize(
        "state", [s.State(7), s.State(7, "dead"), structs.replace(LEASED, lease_until=NOW)]
    )
    def test_a_claim_without_a_wake_begins_one(self, state: s.State) -> None:
        claimed = s.claim(PULL, state, "one", "w_8", NOW, pending=True)
        assert claimed == s.State(8, "leased", "w_8", "one", NOW + 2)

    def test_a_held_lease_cannot_be_claimed(self) -> None:
        for worker in ("one", "two"):
            refused = s.claim(PULL, LEASED, worker, "w_8", NOW, pending=True)
            assert refused == s.AlreadyClaimed("one", 7)

    def test_without_pending_work_nothing_is_claimed(self) -> None:
        assert s.claim(PULL, DUE, "one", "w_8", NOW, pending=False) == s.NothingPending()


class TestFencing:
    """`fence`: token, generation and wake must all be current."""

    @pytest.mark.parametrize("state", [DUE, LEASED])
    def test_the_current_wake_is_accepted(self, state: s.State) -> None:
        assert s.fence(state, 7, 7, "w_7", NOW) is None

    @pytest.mark.parametrize(
        ("state", "token", "generation", "wake_id", "now"),
        [
            (LEASED, 6, 7, "w_7", NOW),
            (LEASED, 7, 6, "w_7", NOW),
            (LEASED, 7, 7, "w_6", NOW),
            (LEASED, 7, 7, "w_7", NOW + 2),
            (s.State(7), 7, 7, "w_7", NOW),
            (s.State(7), 7, 7, "", NOW),
            (s.State(7, "waking", "w_7"), 7, 7, "w_7", NOW),
            (s.State(7, "dead"), 7, 7, "", NOW),
        ],
    )
    def test_anything_else_is_fenced(
        self, state: s.State, token: int, generation: int, wake_id: str, now: float
    ) -> None:
        assert s.fence(state, token, generation, wake_id, now) == s.WakeFenced(7)


class TestDelivering:
    """`delivered` and `failed`."""

    def test_the_lease_of_a_webhook_starts_with_the_call(self) -> None:
        assert s.delivered(HOOK, DUE, "w_7", NOW) == s.State(7, "leased", "w_7", "webhook", NOW + 2)

    def test_a_wake_event_waits_to_be_claimed(self) -> None:
        assert s.delivered(PULL, DUE, "w_7", NOW) == s.State(7, "waking", "w_7")

    def test_an_outcome_of_an_older_wake_changes_nothing(self) -> None:
        assert s.delivered(HOOK, DUE, "w_6", NOW) is None
        assert s.delivered(HOOK, LEASED, "w_7", NOW) is None
        assert s.failed(DUE, "w_6", "no", NOW, 0.5, 9) is None

    def test_a_failure_is_retried_later_with_the_same_wake(self) -> None:
        state = s.failed(DUE, "w_7", "refused", NOW, 0.5, 9)
        assert state == s.State(
            7, "due", "w_7", attempts=1, next_attempt_at=NOW + 1, last_error="refused"
        )
        assert s.status(state) == "failed"
        assert s.deadline(state) == NOW + 1

    def test_a_subscription_is_dead_after_the_last_attempt(self) -> None:
        state = structs.replace(DUE, attempts=8)
        dead = s.failed(state, "w_7", "refused", NOW, 0.5, 9)
        assert dead == s.State(7, "dead", attempts=9, last_error="refused")
        assert (s.status(dead), s.deadline(dead)) == ("dead", None)

    @given(st.integers(1, 10_000), st.floats(0, 1))
    def test_delays_increase_from_one_second_to_sixty(self, attempts: int, chance: float) -> None:
        delay = s.retry_delay(attempts, chance)
        middle = min(60, 2 ** min(attempts - 1, 10))
        assert 1 <= delay <= 60
        assert 0.8 * middle <= delay <= 1.2 * middle

    def test_the_median_delay_doubles(self) -> None:
        delays = [s.retry_delay(attempt, 0.5) for attempt in range(1, 9)]
        assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


class TestLinks:
    """Pending messages of a link."""

    @pytest.mark.parametrize(
        ("acked", "tail", "pending"),
        [
            (START, Offset(3, 0), False),
            (START, Offset(3, 1), True),
            (Offset(3, 1), Offset(3, 1), False),
            (Offset(3, 1), Offset(3, 2), True),
            (Offset(3, 9), Offset(5, 0), False),
            (Offset(3, 9), Offset(5, 1), True),
        ],
    )
    def test_only_positions_after_the_acked_one_are_pending(
        self, acked: Offset, tail: Offset, pending: bool
    ) -> None:
        link = Link(acked, 3, explicit=False, glob=True)
        assert link.has_pending(tail) is pending

    def test_a_plain_stream_begins_at_the_start(self) -> None:
        assert beginning(None) == START


class Walk(RuleBasedStateMachine):
    """Workers, failures and time in any order: generations increase, a wake has one holder."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.state = s.State()
        self.holder: tuple[str, int, str] | None = None
        self.seen: dict[int, str] = {}
        self.wakes = 0

    def _next(self, state: s.State | None) -> None:
        if state is not None:
            assert state.generation >= self.state.generation
            self.state = state
        if self.state.wake_id:
            assert self.seen.setdefault(self.state.generation, self.state.wake_id) == (
                self.state.wake_id
            )

    def _id(self) -> str:
        self.wakes += 1
        return f"w_{self.wakes}"

    @rule()
    def wake(self) -> None:
        if self.state.phase == "idle":
            self._next(s.wake(self.state, self._id(), self.now))

    @rule(worker=st.sampled_from("abc"))
    def claim(self, worker: str) -> None:
        claimed = s.claim(PULL, self.state, worker, self._id(), self.now, pending=True)
        if isinstance(claimed, s.State):
            assert self.holder is None or s.fence(self.state, *self.holder_claims(), self.now)
            self.holder = (worker, claimed.generation, claimed.wake_id)
            self._next(claimed)
        else:
            assert claimed == s.AlreadyClaimed(self.state.holder, self.state.generation)

    def holder_claims(self) -> tuple[int, int, str]:
        assert self.holder is not None
        return self.holder[1], self.holder[1], self.holder[2]

    @rule(done=st.booleans())
    def ack(self, done: bool) -> None:
        if self.holder and s.fence(self.state, *self.holder_claims(), self.now) is None:
            after = s.to_idle(self.state) if done else s.extend(PULL, self.state, self.now)
            self._next(after)
            assert done == bool(s.fence(self.state, *self.holder_claims(), self.now))

    @rule(chance=st.floats(0, 1))
    def fail(self, chance: float) -> None:
        self._next(s.failed(self.state, self.state.wake_id, "no", self.now, chance, 4))

    @rule()
    def deliver(self) -> None:
        self._next(s.delivered(PULL, self.state, self.state.wake_id, self.now))

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if s.lease_is_over(self.state, self.now):
            self._next(s.to_idle(self.state))

    @invariant()
    def a_holder_has_a_wake(self) -> None:
        if self.state.phase in {"due", "waking", "leased"}:
            assert self.state.wake_id
        if self.state.phase == "leased":
            assert self.state.holder


TestWalk = Walk.TestCase


def test_a_fork_is_linked_from_where_it_diverged() -> None:
    assert beginning(ForkOrigin("source", Offset(3, 7), 0, 7)) == Offset(3, 7)


def test_a_webhook_subscription_keeps_its_url() -> None:
    request = s.ConfigRequest(
        "webhook", pattern="a/*", webhook=s.WebhookTarget("https://x.example/"), lease_ttl_ms=2_000
    )
    assert s.normalise(request, 100) == HOOK


def test_a_pull_wake_subscription_keeps_its_wake_stream() -> None:
    assert s.normalise(asked(lease_ttl_ms=2_000), 100) == PULL


def url_of(length: int) -> s.WebhookTarget:
    return s.WebhookTarget("https://x.example/".ljust(length, "x"))


@pytest.mark.parametrize(
    "change",
    [
        {"lease_ttl_ms": s.MIN_LEASE_MS},
        {"lease_ttl_ms": s.MAX_LEASE_MS},
        {"description": "x" * s.MAX_TEXT},
        {"type": "webhook", "webhook": url_of(s.MAX_URL)},
        {"streams": [f"s{number}" for number in range(s.MAX_STREAMS)]},
        {"pattern": "x" * 100},
    ],
)
def test_a_subscription_may_be_at_a_limit(change: dict[str, object]) -> None:
    assert isinstance(s.normalise(asked(**change), 100), s.Config)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"description": "x" * (s.MAX_TEXT + 1)}, "description is longer than 1024"),
        ({"type": "webhook", "webhook": url_of(s.MAX_URL + 1)}, "webhook.url is longer than 2048"),
        ({"streams": [f"s{number}" for number in range(s.MAX_STREAMS + 1)]}, "more than 10000"),
        ({"pattern": "x" * 101}, "longer than 100"),
    ],
)
def test_a_subscription_past_a_limit_is_refused(change: dict[str, object], reason: str) -> None:
    refused = s.normalise(asked(**change), 100)
    assert isinstance(refused, s.BadConfig)
    assert reason in refused.reason


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (s.State(7), "active"),
        (DUE, "active"),
        (structs.replace(DUE, attempts=1), "failed"),
        (s.State(7, "waking", "w_7"), "active"),
        (LEASED, "active"),
        (s.State(7, "dead", attempts=9), "dead"),
    ],
)
def test_the_status_follows_delivery(state: s.State, status: str) -> None:
    assert s.status(state) == status


@pytest.mark.parametrize(
    ("state", "deadline"),
    [
        (s.State(7), None),
        (DUE, NOW),
        (s.State(7, "waking", "w_7"), None),
        (LEASED, NOW + 2),
        (s.State(7, "dead"), None),
    ],
)
def test_a_lease_and_a_delivery_have_a_deadline(state: s.State, deadline: float | None) -> None:
    assert s.deadline(state) == deadline


@pytest.mark.parametrize("text", ["a/b", "/a/b", "a/b/", "//a/b//"])
def test_slashes_around_a_path_are_removed(text: str) -> None:
    assert s.stream_path(text, 100) == "a/b"
    assert s.stream_path(f"X{text.strip('/')}X", 100) == "Xa/bX"


def test_a_wake_is_due_at_once_with_the_next_generation() -> None:
    assert s.wake(s.State(6, "dead", attempts=9), "w_7", NOW) == DUE


def test_a_lease_is_extended_for_its_holder() -> None:
    assert s.extend(PULL, LEASED, NOW + 1) == s.State(7, "leased", "w_7", "one", NOW + 3)


def test_a_webhook_may_call_back_before_it_responds() -> None:
    assert s.extend(HOOK, DUE, NOW) == s.State(7, "leased", "w_7", "webhook", NOW + 2)


@pytest.mark.parametrize(
    ("explicit", "glob", "type_"),
    [(True, False, "explicit"), (False, True, "glob"), (True, True, "explicit")],
)
def test_an_explicit_link_has_its_type(explicit: bool, glob: bool, type_: str) -> None:
    assert Link(START, 3, explicit=explicit, glob=glob).type == type_


def test_an_empty_stored_state_is_idle() -> None:
    idle = s.State(0, "idle", "", "", 0.0, 0, 0.0, "")
    assert msgspec.json.decode(b"{}", type=s.State) == idle


def test_a_lease_lasts_thirty_seconds_by_default() -> None:
    config = s.normalise(asked(), 100)
    assert isinstance(config, s.Config)
    assert config.lease_seconds == 30
