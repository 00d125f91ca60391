"""Content codings of requests and responses."""

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from tests.server.conftest import Serve
from tests.support.wire import Wire

TEXT = {"Content-Type": "text/plain"}
S = "/v1/stream/s"


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def unzstd(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        return reader.read()


def raw_deflate(data: bytes) -> bytes:
    worker = zlib.compressobj(wbits=-15)
    return worker.compress(data) + worker.flush()


CODINGS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "gzip": (gzip.compress, gzip.decompress),
    "deflate": (zlib.compress, zlib.decompress),
    "br": (lambda data: bytes(brotli.compress(data, quality=3)), brotli.decompress),
    "zstd": (zstd, unzstd),
}
each_coding = pytest.mark.parametrize("coding", CODINGS)


class TestRequests:
    """Bodies that come compressed."""

    @each_coding
    def test_a_compressed_body_is_stored_decompressed(
        self, wire: Wire, path: str, coding: str
    ) -> None:
        body = b"hello " * 10_000
        packed = CODINGS[coding][0](body)
        headers = TEXT | {"Content-Encoding": coding}
        assert wire.ask("PUT", path, headers, packed).status == 201
        assert wire.ask("POST", path, headers, packed).status == 204
        assert wire.ask("GET", path).body == body * 2

    def test_deflate_without_its_header_is_accepted(self, wire: Wire, path: str) -> None:
        headers = TEXT | {"Content-Encoding": "deflate"}
        assert wire.ask("PUT", path, headers, raw_deflate(b"hello")).status == 201
        assert wire.ask("GET", path).body == b"hello"

    def test_codings_are_decoded_from_the_last_to_the_first(self, wire: Wire, path: str) -> None:
        headers = TEXT | {"Content-Encoding": "br, identity, GZIP"}
        packed = gzip.compress(brotli.compress(b"hello"))
        assert wire.ask("PUT", path, headers, packed).status == 201
        assert wire.ask("GET", path).body == b"hello"

    @each_coding
    def test_a_decompression_bomb_is_refused_before_it_is_decompressed(
        self, serve: Serve, coding: str
    ) -> None:
        server = serve("--max-body-bytes", str(1024 * 1024))
        bomb = CODINGS[coding][0](bytes(200 * 1024 * 1024))
        with Wire(server.port) as wire:
            wire.ask("PUT", S, TEXT)
            before = server.rss()
            headers = TEXT | {"Content-Encoding": coding}
            wire.ask("POST", S, headers, bomb).problem(413, "body-too-large")
            assert server.rss() - before < 32 * 1024 * 1024
            assert wire.ask("GET", S).body == b""

    @each_coding
    @pytest.mark.parametrize("damage", ["cut", "garbage", "more"])
    def test_a_damaged_body_is_refused_and_stores_nothing(
        self, wire: Wire, path: str, coding: str, damage: str
    ) -> None:
        wire.ask("PUT", path, TEXT)
        packed = CODINGS[coding][0](b"".join(b"%d" % number for number in range(5000)))
        body = {
            "cut": packed[: len(packed) // 2],
            "garbage": b"this is not compressed at all",
            "more": packed + b"and something after it",
        }[damage]
        headers = TEXT | {"Content-Encoding": coding}
        wire.ask("POST", path, headers, body).problem(400, "corrupt-body")
        assert wire.ask("GET", path).body == b""

    def test_a_zstd_body_may_have_several_frames(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT)
        frames = b"".join(zstd(piece) for piece in (b"one ", b"", b"two"))
        headers = TEXT | {"Content-Encoding": "zstd"}
        assert wire.ask("POST", path, headers, frames).status == 204
        assert wire.ask("GET", path).body == b"one two"
        many = zstd(b"") * 100_000
        wire.ask("POST", path, headers, many).problem(400, "corrupt-body")

    def test_an_unknown_coding_gets_415(self, wire: Wire, path: str) -> None:
        answer = wire.ask("PUT", path, TEXT | {"Content-Encoding": "lzma"}, b"hello")
        answer.problem(415, "unsupported-content-coding")


class TestResponses:
    """Bodies that go compressed."""

    @each_coding
    def test_a_large_response_is_compressed_if_the_client_accepts_it(
        self, wire: Wire, path: str, coding: str
    ) -> None:
        body = b"hello " * 20_000
        wire.ask("PUT", path, TEXT, body)
        answer = wire.ask("GET", path, {"Accept-Encoding": coding})
        assert answer.headers["content-encoding"] == coding
        assert "accept-encoding" in answer.headers["vary"].lower()
        assert len(answer.body) < len(body) / 10
        assert CODINGS[coding][1](answer.body) == body

    def test_a_large_response_is_sent_uncompressed_otherwise(self, wire: Wire, path: str) -> None:
        body = b"hello " * 1000
        wire.ask("PUT", path, TEXT, body)
        for headers in ({}, {"Accept-Encoding": "identity"}, {"Accept-Encoding": "gzip;q=0"}):
            answer = wire.ask("GET", path, headers)
            assert answer.body == body
            assert "content-encoding" not in answer.headers

    def test_each_client_gets_the_coding_that_it_accepts(self, wire: Wire, path: str) -> None:
        body = b"hello " * 1000
        wire.ask("PUT", path, TEXT, body)
        for _ in range(2):
            for coding, (_, unpack) in CODINGS.items():
                answer = wire.ask("GET", path, {"Accept-Encoding": coding})
                assert unpack(answer.body) == body
            assert wire.ask("GET", path).body == body

    def test_a_response_of_less_than_1_kib_is_not_compressed(self, wire: Wire, path: str) -> None:
        wire.ask("PUT", path, TEXT, b"x" * 1023)
        answer = wire.ask("GET", path, {"Accept-Encoding": "gzip, br, zstd, deflate"})
        assert answer.body == b"x" * 1023
        assert "content-encoding" not in answer.headers

    def test_compression_can_be_turned_off(self, serve: Serve) -> None:
        server = serve("--no-compression")
        with Wire(server.port) as wire:
            wire.ask("PUT", S, TEXT, b"x" * 5000)
            assert wire.ask("GET", S, {"Accept-Encoding": "gzip"}).body == b"x" * 5000
