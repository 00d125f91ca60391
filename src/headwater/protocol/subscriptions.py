"""Subscriptions: what is asked for, and in which state waking a worker is (PROTOCOL 6, 7).

    idle ──wake──▶ due ──delivered──▶ waking ──claim──▶ leased      pull-wake
      ▲             │ ╰──accepted──────────────────────▶ leased      webhook
      │             ├──failed──▶ due, later ──too often──▶ dead
      ╰─────────────┴── done · release · lease over · nothing pending · re-armed

Each wake has the next generation and an id of its own. Only who shows both may ack, and only until
the state leaves that wake: everything else is fenced (PROTOCOL 7.3). The functions take a state and
give the next one or say why there is none; time, ids and chance come in.
"""

import hashlib
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct, structs

from headwater.protocol.forks import ForkOrigin
from headwater.protocol.offsets import START, Offset
from headwater.protocol.paths import parse_path, url_path

Phase = Literal["idle", "due", "waking", "leased", "dead"]
Kind = Literal["webhook", "pull-wake"]

MIN_LEASE_MS: Final = 1_000
MAX_LEASE_MS: Final = 600_000
DEFAULT_LEASE_MS: Final = 30_000
MAX_STREAMS: Final = 10_000
MAX_TEXT: Final = 1_024
MAX_URL: Final = 2_048
MAX_ID: Final = 255
_FIRST_RETRY: Final = 1.0
_LAST_RETRY: Final = 60.0
_JITTER: Final = 0.2
WEBHOOK_HOLDER: Final = "webhook"


# What is asked for


class WebhookTarget(Struct, frozen=True):
    """Where a webhook goes."""

    url: str


class ConfigRequest(Struct, frozen=True):
    """A subscription as a client writes it."""

    type: Kind
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: WebhookTarget | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = DEFAULT_LEASE_MS
    description: str | None = None


class Config(Struct, frozen=True):
    """A subscription as it was asked for, in its one normal form."""

    type: Kind
    pattern: str | None
    streams: tuple[str, ...]
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None

    @property
    def lease_seconds(self) -> float:
        return self.lease_ttl_ms / 1000

    def fingerprint(self) -> str:
        """Hash everything that has to agree for the same request (PROTOCOL 6.2)."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class BadConfig(Struct, frozen=True):
    """The subscription can't be made as it was asked for."""

    reason: str


def normalise(request: ConfigRequest, max_path: int) -> Config | BadConfig:
    """Bring a request into its normal form, or say what is wrong with it."""
    if request.pattern is None and not request.streams:
        return BadConfig("it names neither a pattern nor streams")
    if not MIN_LEASE_MS <= request.lease_ttl_ms <= MAX_LEASE_MS:
        return BadConfig(f"lease_ttl_ms must be from {MIN_LEASE_MS} to {MAX_LEASE_MS}")
    if len(request.description or "") > MAX_TEXT:
        return BadConfig(f"the description is longer than {MAX_TEXT} characters")
    streams = stream_paths(request.streams or [], max_path)
    if isinstance(streams, BadConfig):
        return streams
    pattern = request.pattern
    if pattern is not None:
        named = stream_path(pattern, max_path)
        if isinstance(named, BadConfig):
            return BadConfig(f"the pattern can't match: {named.reason}")
        pattern = named
    url = wake_stream = None
    if request.type == "webhook":
        if request.webhook is None:
            return BadConfig("a webhook subscription needs webhook.url")
        url = request.webhook.url
        if len(url) > MAX_URL:
            return BadConfig(f"webhook.url is longer than {MAX_URL} characters")
    else:
        if request.wake_stream is None:
            return BadConfig("a pull-wake subscription needs wake_stream")
        named = stream_path(request.wake_stream, max_path)
        if isinstance(named, BadConfig):
            return named
        wake_stream = named
        if wake_stream in streams:
            return BadConfig("its wake stream can't be one of its streams: each wake would wake it")
    return Config(
        request.type, pattern, streams, url, wake_stream, request.lease_ttl_ms, request.description
    )


def stream_path(text: str, max_path: int) -> str | BadConfig:
    """Check a stream-root-relative path; slashes around it are left off."""
    path = parse_path(url_path(text.strip("/"), "/"), "/", max_path)
    if isinstance(path, str):
        return path
    reason = getattr(path, "reason", "")
    return BadConfig(f"'{text[:200]}' can't name a stream: {reason}")


def stream_paths(texts: list[str], max_path: int) -> tuple[str, ...] | BadConfig:
    """Check paths, and put each of them once and in order."""
    if len(texts) > MAX_STREAMS:
        return BadConfig(f"it names more than {MAX_STREAMS} streams; add more of them later")
    found = set()
    for text in texts:
        path = stream_path(text, max_path)
        if isinstance(path, BadConfig):
            return path
        found.add(path)
    return tuple(sorted(found))


# States


class State(Struct, frozen=True, omit_defaults=True):
    """Where a subscription is with waking its worker."""

    generation: int = 0
    phase: Phase = "idle"
    wake_id: str = ""
    holder: str = ""
    lease_until: float = 0.0
    attempts: int = 0
    """Deliveries of this wake that failed."""
    next_attempt_at: float = 0.0
    last_error: str = ""


class AlreadyClaimed(Struct, frozen=True):
    """Another worker holds the lease."""

    holder: str
    generation: int


class NothingPending(Struct, frozen=True):
    """There is nothing to do, so there is nothing to claim."""


class WakeFenced(Struct, frozen=True):
    """The request belongs to a wake that is over."""

    generation: int


def status(state: State) -> str:
    """Say how delivery goes, as clients are told (PROTOCOL 6.3)."""
    if state.phase == "dead":
        return "dead"
    return "failed" if state.phase == "due" and state.attempts else "active"


def deadline(state: State) -> float | None:
    """Tell when something has to happen by itself, if anything has."""
    if state.phase == "leased":
        return state.lease_until
    return state.next_attempt_at if state.phase == "due" else None


def wake(state: State, wake_id: str, now: float) -> State:
    """Begin the next wake, to be delivered at once."""
    return State(state.generation + 1, "due", wake_id, next_attempt_at=now)


def to_idle(state: State) -> State:
    """End the wake: whoever comes for it later is fenced."""
    return State(state.generation)


def lease_is_over(state: State, now: float) -> bool:
    """Tell whether a lease has run out."""
    return state.phase == "leased" and state.lease_until <= now


def claim(
    config: Config, state: State, worker: str, wake_id: str, now: float, *, pending: bool
) -> State | AlreadyClaimed | NothingPending:
    """Give the lease to a worker, for the wake that there is or a new one."""
    if state.phase == "leased" and not lease_is_over(state, now):
        return AlreadyClaimed(state.holder, state.generation)
    if not pending:
        return NothingPending()
    if state.phase not in {"due", "waking"}:
        state = wake(state, wake_id, now)
    return _leased(state, worker, now + config.lease_seconds)


def fence(
    state: State, token_generation: int, generation: int, wake_id: str, now: float
) -> WakeFenced | None:
    """Refuse whoever does not come for the present wake (PROTOCOL 7.3).

    A webhook may call back before it has answered: its wake is then still due.
    """
    current = state.phase == "due" or (state.phase == "leased" and not lease_is_over(state, now))
    if current and token_generation == generation == state.generation and wake_id == state.wake_id:
        return None
    return WakeFenced(state.generation)


def extend(config: Config, state: State, now: float) -> State:
    """Keep the lease: the worker has shown that it lives."""
    return _leased(state, state.holder or WEBHOOK_HOLDER, now + config.lease_seconds)


def _leased(state: State, holder: str, until: float) -> State:
    return State(state.generation, "leased", state.wake_id, holder, until)


# Delivery


def delivered(config: Config, state: State, wake_id: str, started: float) -> State | None:
    """A wake has reached its webhook, or its wake stream; None where it is over already."""
    if state.phase != "due" or state.wake_id != wake_id:
        return None
    if config.type == "webhook":
        return _leased(state, WEBHOOK_HOLDER, started + config.lease_seconds)
    return State(state.generation, "waking", wake_id)


def failed(
    state: State, wake_id: str, reason: str, now: float, chance: float, limit: int
) -> State | None:
    """A delivery has failed: try again later, or give up; None where the wake is over already."""
    if state.phase != "due" or state.wake_id != wake_id:
        return None
    attempts = state.attempts + 1
    if attempts >= limit:
        return State(state.generation, "dead", attempts=attempts, last_error=reason)
    return structs.replace(
        state,
        attempts=attempts,
        next_attempt_at=now + retry_delay(attempts, chance),
        last_error=reason,
    )


def retry_delay(attempts: int, chance: float) -> float:
    """Give the pause after a failed attempt, from 1 s to 60 s, give or take 20 % (PROTOCOL 7.1)."""
    delay = min(_LAST_RETRY, _FIRST_RETRY * 2.0 ** min(attempts - 1, 16))
    return float(min(_LAST_RETRY, max(_FIRST_RETRY, delay * (1 + _JITTER * (2 * chance - 1)))))


# Links: which streams a subscription follows, and how far each was processed (PROTOCOL 6.1).


class Link(NamedTuple):
    """One stream of one subscription."""

    acked: Offset
    """The last processed position; what lies behind it is pending."""
    incarnation: int
    """Which stream at the path it belongs to; 0 while there is none."""
    explicit: bool
    glob: bool

    @property
    def type(self) -> str:
        return "explicit" if self.explicit else "glob"

    def has_pending(self, tail: Offset) -> bool:
        """Tell whether something lies behind what was processed; an empty stream has nothing."""
        return tail > self.acked and tail.byte > 0


def beginning(origin: ForkOrigin | None) -> Offset:
    """Give where a stream that has just appeared is linked: before all that it wrote itself.

    What a fork has inherited was written before it appeared.
    """
    return START if origin is None else origin.anchor
