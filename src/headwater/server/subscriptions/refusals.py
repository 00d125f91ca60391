"""Why a request to the control API is refused; `server.problems` maps each reason to a response."""

from msgspec import Struct


class BadBody(Struct, frozen=True):
    """The body or the query of a request can't be used."""

    reason: str


class NoResource(Struct, frozen=True):
    """Nothing exists at this path."""


class SubscriptionNotFound(Struct, frozen=True):
    """There is no subscription with this id."""

    subscription_id: str


class ConfigConflict(Struct, frozen=True):
    """A subscription with another configuration has this id."""

    subscription_id: str


class NotPullWake(Struct, frozen=True):
    """Only a pull-wake subscription can be claimed."""

    subscription_id: str


class WebhookRejected(Struct, frozen=True):
    """The webhook may not be called."""

    reason: str


class BadToken(Struct, frozen=True):
    """The token is expired, forged, or belongs to another subscription."""

    expired: bool


class BadAck(Struct, frozen=True):
    """An ack names no position of its stream."""

    stream: str
    reason: str


class TooManyKeys(Struct, frozen=True):
    """All recently replaced signing keys are still in use."""

    count: int
