"""Errors of the client; a refused request carries the status and the code of the response."""

from headwater.errors.base import HeadwaterError


class ClientError(HeadwaterError):
    """A request to a stream server failed; `hint` suggests what to do next."""

    hint: str = "Try again; if the error persists, check the server's log."

    def __init__(
        self,
        message: str,
        *,
        url: str,
        status: int | None = None,
        code: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.url = url
        self.status = status
        """The HTTP status, or None without a response."""
        self.code = code
        """A stable name of the cause, if the server or the client gave one."""
        if hint is not None:
            self.hint = hint


class ClientClosed(ClientError):
    """The client was closed, so nothing was sent."""

    hint = "Create another client."

    def __init__(self, url: str) -> None:
        super().__init__("The client is closed; create another one.", url=url, code="client-closed")


class Unreachable(ClientError):
    """No connection could be made, so nothing was sent."""

    hint = "Start the server, or check the URL."

    def __init__(self, url: str, origin: str, reason: str) -> None:
        super().__init__(
            f"Can't reach {origin}: {reason}. Start the server, or check the URL.",
            url=url,
            code="unreachable",
        )
        self.reason = reason


class ConnectionLost(ClientError):
    """The connection broke before the response was complete; the request may have been executed."""

    hint = "Try again."

    def __init__(self, url: str, origin: str, reason: str, advice: str = "Try again.") -> None:
        super().__init__(
            f"The connection to {origin} broke: {reason}. {advice}",
            url=url,
            code="connection-lost",
            hint=advice,
        )
        self.reason = reason


class UnexpectedResponse(ClientError):
    """The response does not follow the protocol; the URL may belong to another kind of server."""

    hint = "Check that the URL names a stream."


class BadData(UnexpectedResponse):
    """The data of a stream does not match its content type."""

    hint = "Read the stream as bytes, and check what writes to it."

    def __init__(self, url: str, offset: str, reason: str) -> None:
        super().__init__(
            f"The data of {url} at offset {offset} can't be read: {reason}.",
            url=url,
            code="bad-data",
        )
        self.offset = offset


class ProducerError(ClientError):
    """The producer can't accept or send an item."""


class ProducerClosed(ProducerError):
    """The producer was closed or has failed permanently, and accepts no more items."""

    hint = "Create another producer; with the saved state it continues where this one stopped."

    def __init__(self, url: str, why: str = "it was closed") -> None:
        super().__init__(
            f"The producer for {url} accepts no more items: {why}.", url=url, code="producer-closed"
        )


class QueueFull(ProducerError):
    """The producer's queue is full, and the producer is configured not to wait."""

    hint = "Append later, make the queue larger, or let the producer wait with on_full='block'."

    def __init__(self, url: str, items: int, size: int) -> None:
        super().__init__(
            f"The queue of the producer for {url} is full: it holds {items} items ({size} bytes).",
            url=url,
            code="queue-full",
        )


class Undelivered(ProducerError):
    """The item was not appended because an earlier one failed; `__cause__` is that failure."""

    hint = "Resolve the cause, then append the item with another producer."

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"The item was not appended to {url} because an earlier one failed: {why}",
            url=url,
            code="undelivered",
        )


class LeaseLost(ClientError):
    """The worker lost its lease; its work since the last ack is not acked."""

    hint = "No action needed: another worker takes over."

    def __init__(self, url: str, status: int | None = None) -> None:
        super().__init__(
            f"The lease of {url} is lost: it expired before the worker extended it.",
            url=url,
            status=status,
            code="lease-lost",
        )


class RequestRefused(ClientError):
    """The server refused the request."""

    status: int

    def __init__(
        self, message: str, *, url: str, status: int, code: str, hint: str | None = None
    ) -> None:
        super().__init__(message, url=url, status=status, code=code, hint=hint)


class StreamNotFound(RequestRefused):
    """There is no stream at the URL: it was never created, was deleted, or has expired."""

    hint = "Create the stream, or check the path."


class StreamGone(RequestRefused):
    """The stream was deleted; only its forks can still be read."""

    hint = "Read one of its forks, or use another path."


class OffsetGone(RequestRefused):
    """The offset belongs to a stream, or to data of a stream, that no longer exists."""

    hint = "Discard the saved offset and what was built from the stream, and read again from -1."


class StreamRecreated(OffsetGone):
    """The stream was deleted and created again; the offset belongs to the earlier one."""


class StreamExists(RequestRefused):
    """A stream with another configuration exists at the URL."""

    hint = "Use the stream as it is, or another path."


class StreamClosed(RequestRefused):
    """The stream is closed and accepts no more appends."""

    hint = "Append to another stream: closing is permanent."
    next_offset: str | None = None
    """The end of the stream."""
    producer_epoch: int | None = None
    producer_seq: int | None = None
    """Last sequence number accepted from this producer, if the server reported it."""


class ContentTypeMismatch(RequestRefused):
    """The stream has another content type."""

    hint = "Append with the content type that head() returns."


class StreamSeqRegression(RequestRefused):
    """`Stream-Seq` is not greater than the last one."""

    hint = "Another writer has appended: read its messages, then use a greater seq."


class ProducerFenced(RequestRefused):
    """A newer session of this producer has taken over."""

    hint = "Stop this producer, or take over with a greater epoch (auto_claim=True does it)."
    current_epoch: int | None = None


class ProducerGap(RequestRefused):
    """The producer skipped a sequence number."""

    hint = "Start a new session with a greater epoch: the server has no record of this one."
    expected: int | None = None
    received: int | None = None


class ProducerReused(RequestRefused):
    """Another writer used this producer's id, epoch and sequence number; nothing was appended."""

    hint = "Restore the saved state, or start a new session with a greater epoch."


class BodyTooLarge(RequestRefused):
    """The body exceeds the server's limit."""

    hint = "Split the data into smaller appends."


class Overloaded(RequestRefused):
    """The server is overloaded and asks for a later retry."""

    hint = "Try again later."
    retry_after: float | None = None
    """Seconds to wait, if the server sent Retry-After."""


class ServerFailed(RequestRefused):
    """The server failed to process the request."""

    hint = "Check the server's log, then try again."
    retry_after: float | None = None
    """Seconds to wait, if the server sent Retry-After."""
