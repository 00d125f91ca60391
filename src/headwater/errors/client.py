"""What requests to a stream server raise; those that it refused have its status and code."""

from headwater.errors.base import HeadwaterError


class ClientError(HeadwaterError):
    """A request to a stream server has failed; `hint` says what to do next."""

    hint: str = "Try again, and look at the server's log if it stays."

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
        """The HTTP status, or None where there was no answer."""
        self.code = code
        """A stable name of the cause, where the server or this client gives one."""
        if hint is not None:
            self.hint = hint


class ClientClosed(ClientError):
    """The client was closed, so nothing was sent."""

    hint = "Make another client."

    def __init__(self, url: str) -> None:
        super().__init__("The client is closed; make another one.", url=url, code="client-closed")


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
    """The connection broke before the whole answer came: the request may have been carried out."""

    hint = "Try again."

    def __init__(self, url: str, origin: str, reason: str, advice: str = "Try again.") -> None:
        super().__init__(
            f"The connection to {origin} broke: {reason}. {advice}",
            url=url,
            code="connection-lost",
            hint=advice,
        )
        self.reason = reason


class UnexpectedAnswer(ClientError):
    """The answer does not follow the protocol: the URL may belong to another kind of server."""

    hint = "Check that the URL is that of a stream."


class BadData(UnexpectedAnswer):
    """What the stream holds is not what its content type says."""

    hint = "Read it as bytes, and look at who writes to the stream."

    def __init__(self, url: str, offset: str, reason: str) -> None:
        super().__init__(
            f"The data of {url} at offset {offset} can't be read: {reason}.",
            url=url,
            code="bad-data",
        )
        self.offset = offset


class ProducerError(ClientError):
    """The producer can't take or send an item."""


class ProducerClosed(ProducerError):
    """The producer was closed, or has failed for good, and takes nothing more."""

    hint = "Make another producer; its saved state goes on where this one stood."

    def __init__(self, url: str, why: str = "it was closed") -> None:
        super().__init__(
            f"The producer for {url} takes nothing more: {why}.", url=url, code="producer-closed"
        )


class QueueFull(ProducerError):
    """The producer's queue is full, and it was told not to wait."""

    hint = "Append later, make the queue larger, or let the producer wait with on_full='block'."

    def __init__(self, url: str, items: int, size: int) -> None:
        super().__init__(
            f"The producer for {url} has {items} items ({size} bytes) waiting, its limit.",
            url=url,
            code="queue-full",
        )


class Undelivered(ProducerError):
    """The item was not appended, because one before it failed; the cause is `__cause__`."""

    hint = "Look at the cause, then append the item with another producer."

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"The item was not appended to {url}, since one before it failed: {why}",
            url=url,
            code="undelivered",
        )


class LeaseLost(ClientError):
    """The worker's lease has gone to another worker: what it did since is not acked."""

    hint = "Nothing is to be done: the work is given to a worker again."

    def __init__(self, url: str, status: int | None = None) -> None:
        super().__init__(
            f"The lease of {url} is lost: the worker was silent for too long.",
            url=url,
            status=status,
            code="lease-lost",
        )


class RequestRefused(ClientError):
    """The server said no."""

    status: int

    def __init__(
        self, message: str, *, url: str, status: int, code: str, hint: str | None = None
    ) -> None:
        super().__init__(message, url=url, status=status, code=code, hint=hint)


class StreamNotFound(RequestRefused):
    """No stream is there: it never was, or it was deleted or has expired."""

    hint = "Create the stream, or check the path."


class StreamGone(RequestRefused):
    """The stream was deleted, and only its forks can still be read."""

    hint = "Read one of its forks, or use another path."


class OffsetGone(RequestRefused):
    """The offset is from a stream, or from data of it, that is gone."""

    hint = "Forget the saved offset, drop what was built from the stream, and read again from -1."


class StreamRecreated(OffsetGone):
    """The stream was deleted and created again: what was read belongs to the earlier one."""


class StreamExists(RequestRefused):
    """A stream with another configuration is there."""

    hint = "Use the stream as it is, or another path."


class StreamClosed(RequestRefused):
    """The stream is closed and takes no more appends."""

    hint = "Append to another stream: closing is for good."
    next_offset: str | None = None
    """Where the stream ends."""
    producer_epoch: int | None = None
    producer_seq: int | None = None
    """How far the stream had taken the appends of the producer that asked; None where untold."""


class ContentTypeMismatch(RequestRefused):
    """The stream holds another content type."""

    hint = "Append with the content type that head() tells."


class StreamSeqRegression(RequestRefused):
    """`Stream-Seq` is not greater than the last one."""

    hint = "Another writer was here: read on from where you stood, then use a greater seq."


class ProducerFenced(RequestRefused):
    """A newer session of this producer has taken over."""

    hint = "Stop this producer, or take over with a greater epoch (auto_claim=True does it)."
    current_epoch: int | None = None


class ProducerGap(RequestRefused):
    """The producer skipped a sequence number."""

    hint = "Start a new session with a greater epoch: the server has lost track of this one."
    expected: int | None = None
    received: int | None = None


class ProducerReused(RequestRefused):
    """Another writer has used this producer's id, epoch and number: the batch was not appended."""

    hint = "Restore the saved state, or start a new session with a greater epoch."


class BodyTooLarge(RequestRefused):
    """The body is over the server's limit."""

    hint = "Send it in smaller appends."


class Overloaded(RequestRefused):
    """The server asks to come back later."""

    hint = "Try again later."
    retry_after: float | None = None
    """Seconds to wait, where the server says."""


class ServerFailed(RequestRefused):
    """The server could not do it."""

    hint = "Look at the server's log, then try again."
    retry_after: float | None = None
    """Seconds to wait, where the server says."""
