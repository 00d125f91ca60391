"""Malformed requests, made from a seeded source of randomness."""

import json
from collections.abc import Callable
from random import Random
from typing import Final
from urllib.parse import quote_from_bytes

JSON_PATH: Final = b"/v1/stream/fuzz/json"
BYTES_PATH: Final = b"/v1/stream/fuzz/bytes"

_METHODS: Final = (b"GET", b"PUT", b"POST", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE")
_ODD_METHODS: Final = (b"get", b"G\x00T", b"", b"PRI", b"CONNECT", b"QUERY", b"M-SEARCH", b"X" * 50)
_HEADERS: Final = (
    b"Stream-Seq",
    b"Stream-TTL",
    b"Stream-Expires-At",
    b"Stream-Closed",
    b"Stream-Forked-From",
    b"Stream-Fork-Offset",
    b"Stream-Fork-Sub-Offset",
    b"Producer-Id",
    b"Producer-Epoch",
    b"Producer-Seq",
    b"If-None-Match",
    b"Accept-Encoding",
    b"Content-Type",
)
_CLOSING_HEADERS: Final = (b"Expect", b"Host", b"Upgrade", b"Connection", b"Keep-Alive", b"TE")
_NUMBERS: Final = (
    b"-1",
    b"0",
    b"00",
    b"1e308",
    b"NaN",
    b"9007199254740992",
    b"18446744073709551616",
    b"9" * 200,
    b"-9223372036854775809",
    b"0x10",
    b"1.5",
    b"+1",
    b" 1",
    "\u0663".encode(),
    b"1_000",
    b"",
)
_JSON: Final = (
    b"{",
    b"[",
    b"[1,]",
    b'{"a":}',
    b'"\\ud800"',
    b'"\xff"',
    b"nul",
    b"[" * 3000,
    b'{"a":' * 1500,
    b"1e99999",
    b"-",
    b'"\x00"',
    b"[]",
    b" ",
    b"\xef\xbb\xbf1",
    b"[1][2]",
    b'"a\nb"',
    b"9" * 300,
)
_CODINGS: Final = (b"gzip", b"deflate", b"br", b"zstd", b"lzma", b"gzip, gzip", b",", b"\xff")
_TIMES: Final = (
    b"2030-01-01T00:00:00Z",
    b"0000-00-00T00:00:00Z",
    b"9999-12-31T23:59:59+99:99",
    b"2030-02-30T00:00:00Z",
    b"1969-12-31T23:59:59-00:00",
    b"2030-01-01T00:00:00." + b"1" * 300 + b"Z",
    b"0001-01-01T00:00:00+23:59",
)


class Maker:
    """Makes one malformed request after another."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._framed: list[Callable[[], bytes]] = [
            self.bad_offset,
            self.bad_json,
            self.bad_numbers,
            self.bad_coding,
            self.odd_path,
            self.odd_fork,
        ]
        self._unframed: list[Callable[[], bytes]] = [
            self.random_bytes,
            self.broken_request_line,
            self.broken_headers,
            self.closing_header,
            self.bad_chunking,
            self.conflicting_lengths,
            self.odd_method,
            self.mutated,
            self.mutated,
        ]

    def framed(self) -> bytes:
        """Give a request that ends where it says, so that another may follow it."""
        return self._random.choice(self._framed)()

    def unframed(self) -> bytes:
        """Give one that is broken as HTTP, behind which nothing may be understood."""
        return self._random.choice(self._unframed)()

    def random_bytes(self) -> bytes:
        data = self._random.randbytes(self._random.randint(1, 120))
        return data + b"\r\n\r\n" if self._random.random() < 0.7 else data

    def broken_request_line(self) -> bytes:
        pick = self._random.choice
        version = pick((b"HTTP/1.1", b"HTTP/3", b"HTTP/1.", b"ICY", b"", b"HTTP/1.1 x"))
        gap = pick((b" ", b"  ", b"\t", b"", b"\r"))
        return gap.join((pick(_METHODS), self._junk(30), version)) + b"\r\nHost: x\r\n\r\n"

    def broken_headers(self) -> bytes:
        pick = self._random.choice
        line = pick(
            (
                b"no colon here",
                b": no name",
                b"Bad Name: x",
                b"X:\x00\x01",
                b" folded: x",
                b"X: a\rb",
                b"X: a\nY: b",
                self._junk(40) + b": " + self._junk(40),
                b"X: " + b"x" * self._random.randint(1, 3000),
            )
        )
        return b"GET %b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % (JSON_PATH, line)

    def closing_header(self) -> bytes:
        value = self._random.choice((b"close", b"upgrade", b"h2c", b"100-continue", b"x", b""))
        lines = [self._random.choice(_CLOSING_HEADERS) + b": " + value for _ in range(2)]
        return self._request(self._random.choice(_METHODS), JSON_PATH, lines)

    def bad_offset(self) -> bytes:
        random = self._random
        offset = random.choice(
            (
                b"%016d_%016d" % (random.randrange(10**16), random.randrange(10**16)),
                b"%016d_%016d" % (random.randrange(5), random.randrange(400)),
                b"%d_%d" % (random.randrange(10**20), random.randrange(10**20)),
                quote_from_bytes(random.choice(_NUMBERS)).encode(),
                b"%" + self._printable(3),
                self._printable(30),
            )
        )
        live = random.choice((b"", b"", b"&live=tv", b"&offset=-1", b"&live=false&cursor=x"))
        path = random.choice((JSON_PATH, BYTES_PATH))
        return self._request(b"GET", path + b"?offset=" + offset + live)

    def bad_json(self) -> bytes:
        body = self._random.choice(_JSON)
        if self._random.random() < 0.3:
            whole = json.dumps({"a": [1, 2, {"b": "c"}]}).encode()
            body = self._mutate(whole)
        method = self._random.choice((b"POST", b"PUT"))
        return self._request(method, JSON_PATH, [b"Content-Type: application/json"], body)

    def bad_numbers(self) -> bytes:
        random = self._random
        lines = [b"Content-Type: application/octet-stream"]
        for name in random.sample(_HEADERS, 3):
            value = random.choice((*_NUMBERS, *_TIMES, self._printable(20)))
            lines.append(name + b": " + value)
        body = random.choice((b"", b"x"))
        method = random.choice((b"POST", b"PUT", b"GET", b"HEAD"))
        return self._request(method, BYTES_PATH, lines, body)

    def bad_coding(self) -> bytes:
        lines = [
            b"Content-Type: application/octet-stream",
            b"Content-Encoding: " + self._random.choice(_CODINGS),
        ]
        body = self._random.randbytes(self._random.randint(1, 60))
        return self._request(b"POST", BYTES_PATH, lines, body)

    def bad_chunking(self) -> bytes:
        body = self._random.choice(
            (
                b"zz\r\nabc\r\n0\r\n\r\n",
                b"5\r\nabc\r\n0\r\n\r\n",
                b"-1\r\n\r\n",
                b"ffffffffffffffffff\r\nx",
                b"3\r\nabc\r\n0\r\nTrailer\r\n\r\n",
                b"3 ;x\r\nabc\r\n0\r\n\r\n",
                b"0\r\n\r\n",
                b"3\nabc\n0\n\n",
            )
        )
        coding = self._random.choice((b"chunked", b"gzip, chunked", b"chunked, gzip", b"identity"))
        return (
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
            b"Transfer-Encoding: %b\r\n\r\n%b" % (BYTES_PATH, coding, body)
        )

    def conflicting_lengths(self) -> bytes:
        lengths = [b"Content-Length: " + self._random.choice(_NUMBERS) for _ in range(2)]
        if self._random.random() < 0.5:
            lengths.append(b"Transfer-Encoding: chunked")
        return b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % (BYTES_PATH, b"\r\n".join(lengths))

    def odd_method(self) -> bytes:
        return self._request(self._random.choice(_ODD_METHODS + _METHODS[6:]), JSON_PATH)

    def odd_path(self) -> bytes:
        pieces = (b"..", b".", b"", b"%2e%2e", b"%2f", b"%00", b"%ff", b"\\", b"a", b"%", b"%zz")
        random = self._random
        path = b"/".join(random.choice(pieces) for _ in range(random.randint(1, 6)))
        root = random.choice((b"/v1/stream/", b"/v1/stream/", b"/", b"http://x/"))
        junk = self._printable(random.choice((5, 60, 2000)))
        return self._request(random.choice(_METHODS[:5]), root + path + junk)

    def odd_fork(self) -> bytes:
        random = self._random
        lines = [
            b"Stream-Forked-From: "
            + random.choice((JSON_PATH, BYTES_PATH, b"/", b"..", b"/v1/stream/%00", b"")),
            b"Stream-Fork-Offset: " + random.choice((b"-1", b"now", *_NUMBERS)),
            b"Stream-Fork-Sub-Offset: " + random.choice(_NUMBERS),
        ]
        return self._request(b"PUT", b"/v1/stream/fuzz/fork", lines)

    def mutated(self) -> bytes:
        whole = self._request(
            self._random.choice(_METHODS),
            JSON_PATH,
            [b"Content-Type: application/json", b"Producer-Id: p"],
            b'{"a": 1}',
        )
        return self._mutate(whole)

    def _request(
        self, method: bytes, target: bytes, lines: list[bytes] | None = None, body: bytes = b""
    ) -> bytes:
        head = [method + b" " + target + b" HTTP/1.1", b"Host: x", *(lines or [])]
        if body:
            head.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(head) + b"\r\n\r\n" + body

    def _mutate(self, data: bytes) -> bytes:
        random = self._random
        changed = bytearray(data)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(changed))
            what = random.random()
            if what < 0.4:
                changed[at] = random.randrange(256)
            elif what < 0.6:
                del changed[at : at + random.randint(1, 8)]
            elif what < 0.8:
                changed[at:at] = random.randbytes(random.randint(1, 8))
            else:
                changed[at:at] = changed[at // 2 : at]
            if not changed:
                changed = bytearray(b"\0")
        return bytes(changed)

    def _junk(self, most: int) -> bytes:
        return self._random.randbytes(self._random.randint(1, most))

    def _printable(self, most: int) -> bytes:
        length = self._random.randint(1, most)
        return bytes(self._random.choices(range(33, 127), k=length))
