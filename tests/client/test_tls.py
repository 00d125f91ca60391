"""TLS: trusted servers are used, untrusted ones are reported."""

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headwater import errors
from headwater.client import NO_RETRY, AsyncClient, Client
from tests.client.conftest import live_reads
from tests.support.patience import wait_until
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def url(proxy: Proxy, certificate: Path) -> Iterator[str]:
    """Put TLS before the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    port = int(proxy.url.rpartition(":")[2])

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def serve(plain: socket.socket) -> None:
        try:
            outer = context.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()
            return
        with outer, socket.create_connection(("127.0.0.1", port)) as inner:
            back = threading.Thread(target=carry, args=(inner, outer), daemon=True)
            back.start()
            carry(outer, inner)
            back.join()

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_both_clients_speak_tls(url: str, proxy: Proxy, certificate: Path, path: str) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    with Client(url, tls=trusting) as client:
        stream = client.stream(path)
        stream.create()
        for number in range(20):
            stream.append(number)
        following = stream.follow()

        def stop() -> None:
            wait_until(lambda: live_reads(proxy), "following")
            following.stop()

        stopping = threading.Thread(target=stop)
        stopping.start()
        assert list(following.items()) == list(range(20))
        stopping.join()

    async def main() -> list[int]:
        async with AsyncClient(url, tls=trusting) as client:
            return [item async for item in client.stream(path).read().items()]

    assert asyncio.run(main()) == list(range(20))


def test_an_untrusted_certificate_is_reported(url: str) -> None:
    with (
        Client(url, retry=NO_RETRY) as client,
        pytest.raises(errors.Unreachable, match="not trusted"),
    ):
        client.stream("x").head()

    async def main() -> None:
        async with AsyncClient(url, retry=NO_RETRY) as client:
            await client.stream("x").head()

    with pytest.raises(errors.Unreachable, match="not trusted"):
        asyncio.run(main())
