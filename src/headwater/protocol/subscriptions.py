"""Subscriptions: their configuration, their states, and their links to streams (PROTOCOL 6, 7).

    idle ──wake──▶ due ──delivered──▶ waking ──claim──▶ leased      pull-wake
      ▲             │ ╰──accepted──────────────────────▶ leased      webhook
      │             ├──failed──▶ due, later ──too often──▶ dead
      ╰─────────────┴── done · release · lease over · nothing pending · re-armed

Each wake has the next generation and an id of its own. An ack has to name both, and is accepted
only while the state is in that wake: all others are fenced (PROTOCOL 7.3). The functions take a
state and return the next one, or the reason why there is none. Time, ids and randomness are
arguments.

A link records for each stream of a subscription the position up to which it was processed
(PROTOCOL 6.1).
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


# Configuration


class WebhookTarget(Struct, frozen=True):
    """The destination of a webhook."""

    url: str


class ConfigRequest(Struct, frozen=True):
    """A subscription as a client describes it."""

    type: Kind
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: WebhookTarget | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = DEFAULT_LEASE_MS
    description: str | None = None


class Config(Struct, frozen=True):
    """The configuration of a subscription, in normal form."""

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
        """Hash everything that makes two requests equal (PROTOCOL 6.2)."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class BadConfig(Struct, frozen=True):
    """The requested configuration is invalid."""

    reason: str


def normalise(request: ConfigRequest, max_path: int) -> Config | BadConfig:
    """Return the normal form of a request, or what is wrong with it."""
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
    """Check a path relative to the stream root; slashes around it are removed."""
    path = parse_path(url_path(text.strip("/"), "/"), "/", max_path)
    if isinstance(path, str):
        return path
    reason = getattr(path, "reason", "")
    return BadConfig(f"'{text[:200]}' can't name a stream: {reason}")


def stream_paths(texts: list[str], max_path: int) -> tuple[str, ...] | BadConfig:
    """Check paths; return each of them once, in order."""
    if len(texts) > MAX_STREAMS:
        return BadConfig(f"it names more than {MAX_STREAMS} streams; add the others later")
    found = set()
    for text in texts:
        path = stream_path(text, max_path)
        if isinstance(path, BadConfig):
            return path
        found.add(path)
    return tuple(sorted(found))


# States


class State(Struct, frozen=True, omit_defaults=True):
    """The state of the current wake of a subscription."""

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
    """No messages are pending, so there is nothing to claim."""


class WakeFenced(Struct, frozen=True):
    """The request belongs to a wake that is over."""

    generation: int


def status(state: State) -> str:
    """Return the status of delivery as reported to clients (PROTOCOL 6.3)."""
    if state.phase == "dead":
        return "dead"
    return "failed" if state.phase == "due" and state.attempts else "active"


def deadline(state: State) -> float | None:
    """Return the time of the next timed transition, if there is one."""
    if state.phase == "leased":
        return state.lease_until
    return state.next_attempt_at if state.phase == "due" else None


def wake(state: State, wake_id: str, now: float) -> State:
    """Begin the next wake, to be delivered at once."""
    return State(state.generation + 1, "due", wake_id, next_attempt_at=now)


def to_idle(state: State) -> State:
    """End the wake; later requests for it are fenced."""
    return State(state.generation)


def lease_is_over(state: State, now: float) -> bool:
    """Return whether a lease has expired."""
    return state.phase == "leased" and state.lease_until <= now


def claim(
    config: Config, state: State, worker: str, wake_id: str, now: float, *, pending: bool
) -> State | AlreadyClaimed | NothingPending:
    """Grant the lease to a worker, for the current wake or a new one."""
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
    """Refuse a request that is not for the current wake (PROTOCOL 7.3).

    A webhook may call back before it has responded: its wake is then still due.
    """
    current = state.phase == "due" or (state.phase == "leased" and not lease_is_over(state, now))
    if current and token_generation == generation == state.generation and wake_id == state.wake_id:
        return None
    return WakeFenced(state.generation)


def extend(config: Config, state: State, now: float) -> State:
    """Extend the lease after a heartbeat of its worker."""
    return _leased(state, state.holder or WEBHOOK_HOLDER, now + config.lease_seconds)


def _leased(state: State, holder: str, until: float) -> State:
    return State(state.generation, "leased", state.wake_id, holder, until)


# Delivery


def delivered(config: Config, state: State, wake_id: str, started: float) -> State | None:
    """Return the state after a wake was delivered, or None if that wake is over."""
    if state.phase != "due" or state.wake_id != wake_id:
        return None
    if config.type == "webhook":
        return _leased(state, WEBHOOK_HOLDER, started + config.lease_seconds)
    return State(state.generation, "waking", wake_id)


def failed(
    state: State, wake_id: str, reason: str, now: float, chance: float, limit: int
) -> State | None:
    """Return the state after a failed delivery, to retry or give up; None if that wake is over."""
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
    """Return the delay after a failed attempt: 1 s to 60 s, with 20 % jitter (PROTOCOL 7.1)."""
    delay = min(_LAST_RETRY, _FIRST_RETRY * 2.0 ** min(attempts - 1, 16))
    return float(min(_LAST_RETRY, max(_FIRST_RETRY, delay * (1 + _JITTER * (2 * chance - 1)))))


# Links


class Link(NamedTuple):
    """The link of a subscription to one of its streams."""

    acked: Offset
    """The last processed position; everything after it is pending."""
    incarnation: int
    """The incarnation of the stream at the path; 0 while there is none."""
    explicit: bool
    glob: bool

    @property
    def type(self) -> str:
        return "explicit" if self.explicit else "glob"

    def has_pending(self, tail: Offset) -> bool:
        """Return whether there is something to process; an empty stream has nothing."""
        return tail > self.acked and tail.byte > 0


def beginning(origin: ForkOrigin | None) -> Offset:
    """Return the position at which a new stream is linked: before its own first byte.

    The bytes that a fork inherits were written before it existed.
    """
    return START if origin is None else origin.anchor
