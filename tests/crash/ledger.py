"""What the clients know: what they asked for, what was acknowledged, and what readers saw.

Every message says who wrote it and which one it is, and nothing else can follow from that but its
bytes. So the content of a stream shows what is missing, doubled, changed or out of order.
"""

import hashlib
import re
import threading
from enum import Enum
from functools import lru_cache
from typing import Final

from tests.support.wire import JSON

_MESSAGE: Final = re.compile(rb'(?:\{"w":")?([a-z0-9-]+)(?:","n":|:)(\d+)[,:]')
SEPARATOR: Final = b",\n"


class Step(Enum):
    """The progress of a request that its client knows of."""

    NOT_ASKED = 0
    ASKED = 1
    DONE = 2


@lru_cache(maxsize=1 << 18)
def message(path: str, kind: str, writer: str, number: int) -> bytes:
    """Write the one message that can have this number, as it is stored."""
    digest = hashlib.sha256(f"{path}/{writer}/{number}".encode()).hexdigest()
    padding = digest * (1 + int(digest[:2], 16) % 8)
    if kind == JSON:
        return b'{"w":"%b","n":%d,"x":"%b"},\n' % (writer.encode(), number, padding.encode())
    return b"%b:%d:%b\n" % (writer.encode(), number, padding.encode())


def stored(kind: str, body: bytes) -> bytes:
    """Return the stored bytes of a response with data."""
    if kind != JSON:
        return body
    assert body[:1] == b"[", body[:100]
    assert body[-1:] == b"]", body[-100:]
    return body[1:-1] + SEPARATOR if len(body) > 2 else b""


def wire_body(kind: str, data: bytes) -> bytes:
    """Write stored messages as the body of a request."""
    return b"[" + data[: -len(SEPARATOR)] + b"]" if kind == JSON else data


class Share:
    """What one writer has put into one stream: messages up to a number, in whole appends."""

    def __init__(self) -> None:
        self.done = 0
        """So many messages are acknowledged."""
        self.asked = 0
        """The number of messages if the append in flight happened."""


class Record:
    """One incarnation of a stream, as its clients know it."""

    def __init__(self, path: str, kind: str, prefix: bytes = b"") -> None:
        self.path = path
        self.kind = kind
        self.prefix = prefix
        """What a fork took over."""
        self.shares: dict[str, Share] = {}
        self.created = Step.NOT_ASKED
        self.closed = Step.NOT_ASKED
        self.deleted = Step.NOT_ASKED
        self.has_forks = False
        self.found_gone = 0
        """How often it was found to be gone for good."""
        self.marks: list[tuple[str, int]] = []
        """Offsets that one writer received, with the stored bytes before them."""
        self.seen = b""
        """The longest content that any reader saw."""
        self.seen_at: dict[str, int] = {"-1": 0}
        """Offsets that readers received, with the bytes before them."""
        self._lock = threading.Lock()

    def share(self, writer: str) -> Share:
        return self.shares.setdefault(writer, Share())

    def content_of(self, writer: str, first: int, upto: int) -> bytes:
        """Return the messages of a writer in a range of numbers."""
        return b"".join(
            message(self.path, self.kind, writer, number) for number in range(first, upto)
        )

    def saw(self, position: int, data: bytes, next_offset: str) -> str | None:
        """Note what a reader saw; gives what is wrong with it."""
        with self._lock:
            overlap = self.seen[position : position + len(data)]
            if overlap != data[: len(overlap)]:
                return f"{self.path}: bytes from {position} on are not what was seen before"
            if position + len(data) > len(self.seen):
                self.seen = self.seen[:position] + data
            known = self.seen_at.setdefault(next_offset, position + len(data))
            if known != position + len(data):
                return f"{self.path}: offset {next_offset} was at {known}, and is elsewhere now"
        return None

    def faults_of(self, content: bytes) -> list[str]:
        """Return the errors in the current content of the server."""
        if not content.startswith(self.seen):
            return [f"{self.path}: a reader saw {len(self.seen)} bytes that are not there any more"]
        if not content.startswith(self.prefix):
            return [f"{self.path}: the fork does not begin with what it took over"]
        counts = dict.fromkeys(self.shares, 0)
        position = len(self.prefix)
        while position < len(content):
            found = _MESSAGE.match(content, position)
            writer = found[1].decode() if found else ""
            if writer not in counts:
                return [f"{self.path}: no message begins at byte {position}"]
            expected = message(self.path, self.kind, writer, counts[writer])
            if not content.startswith(expected, position):
                number = int(found[2]) if found else -1
                place = f"where {counts[writer]} belongs, at byte {position}"
                return [f"{self.path}: message {number} of {writer} stands {place}"]
            counts[writer] += 1
            position += len(expected)
        return [
            f"{self.path}: {counts[writer]} messages of {writer} are there, {share.done} were "
            f"acknowledged, {share.asked} were sent"
            for writer, share in self.shares.items()
            if counts[writer] not in {share.done, share.asked}
        ]


class Ledger:
    """All streams, and everything that was found to be wrong."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self.wrong: list[str] = []
        self.requests = 0

    def add(self, record: Record) -> Record:
        with self._lock:
            self._records.append(record)
        return record

    def drop(self, record: Record) -> None:
        """Forget a stream: its path is used again."""
        with self._lock:
            self._records.remove(record)

    def records(self) -> list[Record]:
        with self._lock:
            return list(self._records)

    def complain(self, sentence: str) -> None:
        with self._lock:
            self.wrong.append(sentence)
