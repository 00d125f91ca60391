"""The HTTP client for webhooks: one POST over a new connection, to an address that was checked.

The host is resolved once, and the connection goes to the address that was checked, so a host that
resolves to another address a moment later makes no difference. Redirects are not followed. The
time and the size of a response are limited.
"""

import asyncio
import ssl
from typing import Final, NamedTuple

import httptools

from headwater import __version__
from headwater.server.subscriptions.addresses import WebhookRules, WebhookUrl, check_address
from headwater.server.subscriptions.refusals import WebhookRejected

MAX_RESPONSE_BYTES: Final = 64 * 1024
_MAX_HEAD_BYTES: Final = 16 * 1024
_PIECE_BYTES: Final = 16 * 1024


class WebhookResponse(NamedTuple):
    """The response of a webhook."""

    status: int
    body: bytes


class CallFailed(NamedTuple):
    """Why a webhook could not be called, or did not respond."""

    reason: str


class WebhookClient:
    """Calls webhooks as far as the operator's rules allow."""

    def __init__(self, rules: WebhookRules, timeout: float, ca_file: str) -> None:
        self._rules = rules
        self._timeout = timeout
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None

    async def post(
        self, target: WebhookUrl, headers: dict[str, str], body: bytes, seconds: float
    ) -> WebhookResponse | CallFailed:
        """Send one request; must run in a task, and always ends within its time limit."""
        try:
            async with asyncio.timeout(min(seconds, self._timeout)):
                address = await self._resolve(target)
                if isinstance(address, CallFailed):
                    return address
                return await self._exchange(target, address, headers, body)
        except TimeoutError:
            return CallFailed("it did not respond in time")
        except ssl.SSLError as error:
            return CallFailed(f"TLS failed: {error.reason or error}")
        except (OSError, asyncio.IncompleteReadError) as error:
            return CallFailed(f"the connection failed: {error}")
        except httptools.HttpParserError:
            return CallFailed("its response is not HTTP")

    async def _resolve(self, target: WebhookUrl) -> str | CallFailed:
        """Return the first address of the host that may be called."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(target.host, target.port, type=1)
        except OSError as error:
            return CallFailed(f"'{target.host}' can't be resolved: {error.strerror or error}")
        refused: WebhookRejected | None = None
        for *_, socket_address in found:
            address = str(socket_address[0])
            refused = check_address(address, target, self._rules)
            if refused is None:
                return address
        why = refused.reason if refused is not None else "it has no address"
        return CallFailed(f"'{target.host}' may not be called: {why}")

    async def _exchange(
        self, target: WebhookUrl, address: str, headers: dict[str, str], body: bytes
    ) -> WebhookResponse | CallFailed:
        secure = target.scheme == "https"
        reader, writer = await asyncio.open_connection(
            address,
            target.port,
            ssl=self._context() if secure else None,
            server_hostname=target.host if secure else None,
        )
        try:
            writer.write(_head(target, headers, len(body)) + body)
            await writer.drain()
            return await _read_response(reader)
        finally:
            writer.transport.abort()  # the peer could delay an orderly close

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._ca_file or None)
        return self._tls


def _head(target: WebhookUrl, headers: dict[str, str], length: int) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.authority}",
        f"User-Agent: headwater/{__version__}",
        "Accept: application/json",
        "Connection: close",
        f"Content-Length: {length}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class _ParsedResponse:
    """What the parser has read of a response."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.has_headers = False
        self.complete = False

    def on_headers_complete(self) -> None:
        self.has_headers = True

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.complete = True


async def _read_response(reader: asyncio.StreamReader) -> WebhookResponse | CallFailed:
    parsed = _ParsedResponse()
    parser = httptools.HttpResponseParser(parsed)
    received = 0
    while not parsed.complete:
        piece = await reader.read(_PIECE_BYTES)
        if not piece:
            break  # without a length, the end of the connection ends the response
        received += len(piece)
        parser.feed_data(piece)
        if not parsed.has_headers and received > _MAX_HEAD_BYTES:
            return CallFailed("the headers of its response are too long")
        if len(parsed.body) > MAX_RESPONSE_BYTES:
            return CallFailed(f"its response is longer than {MAX_RESPONSE_BYTES} bytes")
    if not parsed.has_headers:
        return CallFailed("it closed the connection without a response")
    return WebhookResponse(parser.get_status_code(), bytes(parsed.body))
