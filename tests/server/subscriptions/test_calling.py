"""Calling a webhook over TLS, and only at addresses that were checked."""

import asyncio
import datetime as dt
import ipaddress
import ssl
from ipaddress import ip_network
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headwater.server.subscriptions.addresses import WebhookRules, WebhookUrl, check_url
from headwater.server.subscriptions.webhooks import CallFailed, WebhookClient, WebhookResponse

LOOPBACK = WebhookRules(networks=(ip_network("127.0.0.0/8"), ip_network("::1/128")))


class Receiver:
    """Counts connections and requests, and answers `{"done": true}`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self._tls = tls

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head + await reader.readexactly(2))
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b'e\r\n{"done": true}\r\n0\r\n\r\n')
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Create a self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    file, key_file = folder / "cert.pem", folder / "key.pem"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key_file)
    return file, context


def target(url: str, rules: WebhookRules) -> WebhookUrl:
    checked = check_url(url, rules)
    assert isinstance(checked, WebhookUrl), checked
    return checked


def test_a_webhook_is_called_over_tls_where_the_operator_allows_its_network(
    tmp_path: Path,
) -> None:
    certificate, context = make_certificate(tmp_path)

    async def scenario() -> None:
        async with Receiver(context) as receiver:
            at = target(f"https://127.0.0.1:{receiver.port}/a?b=c", LOOPBACK)
            webhooks = WebhookClient(LOOPBACK, 5, str(certificate))
            answer = await webhooks.post(at, {"X-Test": "1"}, b"{}", 5)
            assert answer == WebhookResponse(200, b'{"done": true}')
            (request,) = receiver.requests
            assert request.startswith(b"POST /a?b=c HTTP/1.1\r\n")
            assert b"Host: 127.0.0.1:%d\r\n" % receiver.port in request
            assert request.endswith(b"X-Test: 1\r\n\r\n{}")

    asyncio.run(scenario())


def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    _, context = make_certificate(tmp_path)

    async def scenario() -> None:
        async with Receiver(context) as receiver:
            at = target(f"https://127.0.0.1:{receiver.port}/", LOOPBACK)
            answer = await WebhookClient(LOOPBACK, 5, "").post(at, {}, b"{}", 5)
            assert isinstance(answer, CallFailed)
            assert "TLS" in answer.reason
            assert receiver.requests == []

    asyncio.run(scenario())


def test_a_public_name_that_resolves_to_loopback_is_not_connected_to() -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            # Treated as a public name: its address is known only when it is resolved for the call.
            at = WebhookUrl("https", "localhost", receiver.port, "/", local=False)
            answer = await WebhookClient(WebhookRules(allow_local=True), 5, "").post(
                at, {}, b"{}", 5
            )
            assert isinstance(answer, CallFailed)
            assert "local network" in answer.reason
            assert receiver.connections == 0

    asyncio.run(scenario())


def test_a_refused_connection_is_reported() -> None:
    async def scenario() -> None:
        rules = WebhookRules(allow_local=True)
        at = target("http://127.0.0.1:1/", rules)
        answer = await WebhookClient(rules, 5, "").post(at, {}, b"{}", 5)
        assert isinstance(answer, CallFailed)
        assert "connection failed" in answer.reason

    asyncio.run(scenario())


def test_an_unknown_host_is_reported() -> None:
    async def scenario() -> None:
        at = target("https://nowhere.invalid/", WebhookRules())
        answer = await WebhookClient(WebhookRules(), 5, "").post(at, {}, b"{}", 5)
        assert isinstance(answer, CallFailed)
        assert "resolved" in answer.reason

    asyncio.run(scenario())
