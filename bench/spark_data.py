"""The events that the Spark benchmarks read: in a stream, and in a file for Spark's own reader."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from headwater.client import Client

SCHEMA: Final = (
    "type string, key string, value struct<id: string, name: string, email: string, n: long,"
    " active: boolean, tags: array<string>>,"
    " headers struct<operation: string, timestamp: string, txid: string>"
)
"""Of the long events, for readers that look into them."""

_APPEND_BYTES: Final = 4_000_000
_KINDS: Final = ("user", "message", "reaction")
_LONG: Final = (
    '{"type":"%s","key":"%s:%d","value":{"id":"%s:%d","name":"Name %d",'
    '"email":"user%d@example.com","n":%d,"active":%s,"tags":["a","b"]},"headers":{"operation":"%s",'
    '"timestamp":"2025-01-15T10:%02d:%02dZ","txid":"tx-%d"}}'
)
_REMOVED: Final = (
    '{"type":"%s","key":"%s:%d","headers":{"operation":"delete",'
    '"timestamp":"2025-01-15T10:%02d:%02dZ","txid":"tx-%d"}}'
)
_SHORT: Final = (
    '{"type":"user","key":"user:%d","value":{"id":%d,"name":"Name %d","score":%d},'
    '"headers":{"operation":"%s","txid":"tx-%d"}}'
)


def long_events(keys: int = 400_000) -> Iterator[str]:
    """Make changes of about 240 bytes without an end, one in twenty a deletion."""
    chance = random.Random(1)
    for number in range(10**12):
        at = int(chance.random() * keys)
        kind = _KINDS[at % 3]
        transaction = number // 500
        minute, second = transaction // 60 % 60, transaction % 60
        if number % 20 == 19:
            yield _REMOVED % (kind, kind, at, minute, second, transaction)
            continue
        operation = "update" if number % 2 else "insert"
        active = "true" if at % 2 else "false"
        told = (kind, kind, at, kind, at, at, at, transaction, active, operation)
        yield _LONG % (*told, minute, second, transaction)


def short_events(keys: int) -> Iterator[str]:
    """Make changes of one type and of about 120 bytes without an end."""
    chance = random.Random(2)
    for number in range(10**12):
        at = number if number < keys else int(chance.random() * keys)
        operation = "insert" if number < keys else "update"
        yield _SHORT % (at, at, at, number, operation, number // 500)


def fill(
    url: str,
    stream: str,
    events: Iterator[str],
    *,
    size: int | None = None,
    count: int | None = None,
    file: Path | None = None,
) -> tuple[int, int]:
    """Append events until there are so many, or so many bytes; gives how many of both."""
    written = appended = 0
    with ExitStack() as held:
        target = held.enter_context(Client(url)).stream(stream)
        target.create()
        lines = held.enter_context(file.open("w")) if file is not None else None
        while (size is None or written < size) and (count is None or appended < count):
            part: list[str] = []
            length = 0
            while length < _APPEND_BYTES and (count is None or appended + len(part) < count):
                part.append(next(events))
                length += len(part[-1]) + 2
            target.append(f"[{','.join(part)}]".encode())
            if lines is not None:
                lines.write("\n".join(part) + "\n")
            written += length
            appended += len(part)
    return appended, written
