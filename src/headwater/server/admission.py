"""Admission: limits on connections and on bytes of request bodies, for HTTP/1.1 and ASGI alike.

Bytes are counted while they are in memory: first as received, then as decoded. A request that
would exceed a limit is refused; requests that were admitted before are not affected.
"""

from typing import Final, NamedTuple


class TooLarge(NamedTuple):
    """The body exceeds the limit, as it was sent or once it is decoded."""

    limit: int


class Overload(NamedTuple):
    """The server is at one of its limits; the client may try again."""

    code: str
    detail: str
    retry_after: int = 1


_TOO_MANY_CONNECTIONS: Final = Overload(
    "too-many-connections",
    "Too many connections are open; try again, or reuse a connection.",
)
_TOO_MUCH_BUFFERED: Final = Overload(
    "too-much-buffered", "Too many request bodies are in memory; send this one again."
)


class Admission:
    """The connections and the request bytes of one server."""

    __slots__ = ("buffered", "connections", "max_body", "max_buffered", "max_connections")

    def __init__(self, max_connections: int, max_body: int, max_buffered: int) -> None:
        self.max_connections = max_connections
        self.max_body = max_body
        self.max_buffered = max_buffered
        self.connections = 0
        self.buffered = 0
        """Bytes of request bodies in memory."""

    def connect(self) -> Overload | None:
        """Count a connection, also one that is refused; `disconnect` follows in either case."""
        self.connections += 1
        return _TOO_MANY_CONNECTIONS if self.connections > self.max_connections else None

    def disconnect(self) -> None:
        """Stop counting a connection."""
        self.connections -= 1

    def hold(self) -> "Hold":
        """Return a hold for the bytes of one request body; it is empty at first."""
        return Hold(self)


class Hold:
    """The counted bytes of one request body; it belongs to the request."""

    __slots__ = ("_admission", "size")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.size = 0

    def expect(self, length: int) -> TooLarge | Overload | None:
        """Check an announced length before any of it arrives; nothing is counted yet."""
        admission = self._admission
        if length > admission.max_body:
            return TooLarge(admission.max_body)
        return _TOO_MUCH_BUFFERED if admission.buffered + length > admission.max_buffered else None

    def add(self, count: int) -> TooLarge | Overload | None:
        """Count bytes that were received or decoded; they stay counted if they are refused."""
        admission = self._admission
        self.size += count
        admission.buffered += count
        if self.size > admission.max_body:
            return TooLarge(admission.max_body)
        return _TOO_MUCH_BUFFERED if admission.buffered > admission.max_buffered else None

    def decoded(self) -> "Hold":
        """Return another hold, for the decoded body while both bodies are in memory."""
        return Hold(self._admission)

    def replace(self, decoded: "Hold") -> None:
        """Take over the bytes of the decoded body; those of the encoded one were freed."""
        self.release()
        self.size = decoded.size
        decoded.size = 0

    def release(self) -> None:
        """Stop counting; calling it again has no effect."""
        self._admission.buffered -= self.size
        self.size = 0
