"""Header names of the protocol, and strict parsers of their values (PROTOCOL 4, 5, 13.2)."""

import re
from datetime import datetime
from typing import Final

from msgspec import Struct

from headwater.protocol.expiry import NEVER, Expiry
from headwater.protocol.producers import MAX_INTEGER, ProducerClaim

STREAM_NEXT_OFFSET: Final = "Stream-Next-Offset"
STREAM_UP_TO_DATE: Final = "Stream-Up-To-Date"
STREAM_CLOSED: Final = "Stream-Closed"
STREAM_CURSOR: Final = "Stream-Cursor"
STREAM_SEQ: Final = "Stream-Seq"
STREAM_TTL: Final = "Stream-TTL"
STREAM_EXPIRES_AT: Final = "Stream-Expires-At"
STREAM_FORKED_FROM: Final = "Stream-Forked-From"
STREAM_FORK_OFFSET: Final = "Stream-Fork-Offset"
STREAM_FORK_SUB_OFFSET: Final = "Stream-Fork-Sub-Offset"
STREAM_INCARNATION: Final = "Stream-Incarnation"
"""An extension: changes when a stream is deleted and created again."""
STREAM_SSE_DATA_ENCODING: Final = "Stream-SSE-Data-Encoding"
PRODUCER_ID: Final = "Producer-Id"
PRODUCER_EPOCH: Final = "Producer-Epoch"
PRODUCER_SEQ: Final = "Producer-Seq"
PRODUCER_EXPECTED_SEQ: Final = "Producer-Expected-Seq"
PRODUCER_RECEIVED_SEQ: Final = "Producer-Received-Seq"

_PLAIN_INTEGER: Final = re.compile(r"0|[1-9]\d*", re.ASCII)
_DIGITS: Final = re.compile(r"\d{1,16}", re.ASCII)
_RFC3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_MAX_TTL: Final = 10**10


class BadHeader(Struct, frozen=True):
    """A header has an invalid value."""

    name: str
    value: str
    expected: str


def is_true(value: str | None) -> bool:
    """Return whether a presence header is set: any value but `true` counts as absent."""
    return value is not None and value.lower() == "true"


def parse_expiry(ttl: str | None, expires_at: str | None) -> Expiry | BadHeader:
    """Parse `Stream-TTL` or `Stream-Expires-At`."""
    if ttl is not None:
        if expires_at is not None:
            return BadHeader(STREAM_EXPIRES_AT, expires_at, "to be absent when Stream-TTL is set")
        seconds = parse_plain_integer(ttl, _MAX_TTL)
        if seconds is None:
            return BadHeader(STREAM_TTL, ttl, "whole seconds in plain decimal, such as 3600")
        return Expiry(ttl=seconds)
    if expires_at is None:
        return NEVER
    bad = BadHeader(STREAM_EXPIRES_AT, expires_at, "an RFC 3339 time, such as 2030-01-31T12:00:00Z")
    if _RFC3339.fullmatch(expires_at) is None:
        return bad
    try:
        return Expiry(
            expires_at=expires_at, instant=datetime.fromisoformat(expires_at.upper()).timestamp()
        )
    except (ValueError, OverflowError):
        return bad


def parse_plain_integer(text: str, limit: int) -> int | None:
    """Parse a non-negative integer without signs, leading zeros or exponents."""
    if len(text) > len(str(limit)) or _PLAIN_INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if value <= limit else None


def parse_producer(
    producer_id: str | None, epoch: str | None, seq: str | None
) -> ProducerClaim | BadHeader | None:
    """Parse the producer headers: either all three are sent or none is (PROTOCOL 5.2.1)."""
    if producer_id is None and epoch is None and seq is None:
        return None
    given = ((PRODUCER_ID, producer_id), (PRODUCER_EPOCH, epoch), (PRODUCER_SEQ, seq))
    for name, value in given:
        if value is None:
            return BadHeader(name, "", "to be sent together with the other two producer headers")
    if not producer_id:
        return BadHeader(PRODUCER_ID, "", "a non-empty text")
    numbers = []
    for name, value in given[1:]:
        number = int(value) if value and _DIGITS.fullmatch(value) else MAX_INTEGER + 1
        if number > MAX_INTEGER:
            return BadHeader(name, value or "", "a whole number from 0 to 2^53-1")
        numbers.append(number)
    return ProducerClaim(producer_id, numbers[0], numbers[1])
