"""Standard input, cut into batches: what has arrived is sent soon, and memory stays bounded.

Input is read only while nothing is being sent, so what arrives meanwhile waits in the pipe and
makes the next batch larger. A slow server slows down the writer of the pipe instead of filling
this process.
"""

import os
import re
import select
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.cli._io import Interrupts, counted
from headwater.cli._progress import Progress
from headwater.client import join_messages
from headwater.protocol.content_types import JSON
from headwater.protocol.framing import check_json
from headwater.protocol.producers import ProducerClaim

if TYPE_CHECKING:
    from headwater.client import Appended, Stream

LINGER_SECONDS: Final = 0.02
MAX_MESSAGES: Final = 1000
MAX_BYTES: Final = 1024 * 1024
MAX_LINE_BYTES: Final = 32 * 1024 * 1024
_PIECE_BYTES: Final = 64 * 1024


class BadInput(Exception):
    """The input can't be sent; the message says why."""


class Batch(NamedTuple):
    """What one append carries."""

    body: bytes
    size: int
    """How many messages, or bytes, of the input it holds."""
    last: bool
    """Whether the input has ended behind it."""


class Cutter(ABC):
    """Collects input and cuts it into bodies, counted in messages or in bytes."""

    unit: str
    wrong: BadInput | None = None
    """Why nothing more can be taken, once that is so."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How much there is to be cut now."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether a batch must be cut before more is taken."""

    @abstractmethod
    def feed(self, piece: bytes) -> None:
        """Take a piece of the input."""

    @abstractmethod
    def end(self) -> None:
        """Take the end of the input."""

    @abstractmethod
    def cut(self, size: int | None = None) -> tuple[bytes, int]:
        """Make a body, and say how much it holds: all that fits, or exactly `size`."""


class JsonLines(Cutter):
    """Each line is one JSON message; empty lines are none."""

    unit = "messages"

    def __init__(self, skip: int = 0) -> None:
        self._skip = skip
        self._line_number = 0
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._messages: list[bytes] = []
        self._bytes = 0

    @property
    def waiting(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        return len(self._messages) >= MAX_MESSAGES or self._bytes >= MAX_BYTES

    def feed(self, piece: bytes) -> None:
        *lines, rest = piece.split(b"\n")
        for line in lines:
            self._partial.append(line)
            self._take(b"".join(self._partial))
            self._partial, self._partial_bytes = [], 0
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
            if self._partial_bytes > MAX_LINE_BYTES:
                self._refuse(f"is longer than {MAX_LINE_BYTES} bytes", self._line_number + 1)

    def end(self) -> None:
        if self._partial:
            self._take(b"".join(self._partial))
            self._partial = []

    def cut(self, size: int | None = None) -> tuple[bytes, int]:
        size = MAX_MESSAGES if size is None else size
        messages, self._messages = self._messages[:size], self._messages[size:]
        self._bytes = sum(map(len, self._messages))
        return join_messages(messages, JSON), len(messages)

    def _take(self, line: bytes) -> None:
        self._line_number += 1
        line = line.strip()
        if self.wrong is not None or not line:
            return
        if self._skip:
            self._skip -= 1
            return
        reason = check_json(line)
        if reason is not None:
            self._refuse(f"is not JSON: {reason}", self._line_number)
            return
        self._messages.append(line)
        self._bytes += len(line)

    def _refuse(self, what: str, line_number: int) -> None:
        self.wrong = self.wrong or BadInput(f"Line {line_number} of the input {what}.")


class Bytes(Cutter):
    """Bytes as they come, cut behind a line where there is one."""

    unit = "bytes"

    def __init__(self, skip: int = 0) -> None:
        self._skip = skip
        self._buffer = bytearray()

    @property
    def waiting(self) -> int:
        return len(self._buffer)

    @property
    def full(self) -> bool:
        return len(self._buffer) >= MAX_BYTES

    def feed(self, piece: bytes) -> None:
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        self._buffer += piece[skipped:]

    def end(self) -> None:
        return

    def cut(self, size: int | None = None) -> tuple[bytes, int]:
        if size is None:
            end = min(len(self._buffer), MAX_BYTES)
            size = self._buffer.rfind(b"\n", 0, end) + 1 or end
        body = bytes(self._buffer[:size])
        del self._buffer[:size]
        return body, len(body)


def batches(number: int, cutter: Cutter, first: int | None = None) -> Iterator[Batch]:
    """Read a file descriptor to its end; the first batch may have to hold exactly so much."""
    deadline: float | None = None
    while True:
        enough = cutter.full if first is None else cutter.waiting >= first
        late = first is None and deadline is not None and time.monotonic() >= deadline
        if enough or (late and cutter.waiting):
            yield Batch(*cutter.cut(first), last=False)
            first = None
            # What is left is the beginning of a line, or more than a batch: it gets its own time.
            deadline = time.monotonic() + LINGER_SECONDS
            continue
        piece = _read(number, deadline if cutter.waiting and first is None else None)
        if piece is None:
            continue
        if not piece:
            break
        if not cutter.waiting:
            deadline = time.monotonic() + LINGER_SECONDS
        cutter.feed(piece)
        if cutter.wrong is not None:
            break
    yield from _rest(cutter, first)


def _rest(cutter: Cutter, first: int | None) -> Iterator[Batch]:
    """Send what came before the end, or before what can't be sent."""
    if cutter.wrong is None:
        cutter.end()
    if first is not None and cutter.waiting < first:
        raise cutter.wrong or BadInput(
            f"The input ends {first - cutter.waiting} {cutter.unit} before the end of the "
            "unconfirmed batch: it is not the input of the command that was interrupted."
        )
    while cutter.waiting:
        body, size = cutter.cut(first)
        first = None
        yield Batch(body, size, last=not cutter.waiting and cutter.wrong is None)
    if cutter.wrong is not None:
        raise cutter.wrong


def _read(number: int, deadline: float | None) -> bytes | None:
    """Read what there is, waiting for it until a deadline: None where that has passed."""
    timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
    readable, _, _ = select.select([number], [], [], timeout)
    return os.read(number, _PIECE_BYTES) if readable else None


# Sending batches one after another, each exactly once.
#
# Every batch carries an idempotent producer's sequence number, so a retry never appends it twice.
# One question is left when the process itself ends before an answer came: whether that batch was
# appended. `Unconfirmed` names it, and sending the same messages under the same number settles
# it.

_FORM: Final = re.compile(r"([0-9A-Za-z-]{1,64}):(\d{1,15}):([1-9]\d{0,8})", re.ASCII)


class Unconfirmed(NamedTuple):
    """A batch that was sent without an answer."""

    producer_id: str
    seq: int
    size: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.seq}:{self.size}"


def parse_unconfirmed(text: str) -> Unconfirmed | None:
    """Read what an interrupted command told, or None where it is not that."""
    match = _FORM.fullmatch(text)
    return Unconfirmed(match[1], int(match[2]), int(match[3])) if match else None


class Pour:
    """What has been sent of one input, and what is known of it."""

    def __init__(
        self,
        content_type: str,
        unit: str,
        *,
        skipped: int = 0,
        unconfirmed: Unconfirmed | None = None,
    ) -> None:
        self.confirmed = 0
        self.unconfirmed: Unconfirmed | None = unconfirmed
        self.last: Appended | None = None
        self._content_type = content_type
        self._unit = unit
        self._skipped = skipped
        self._producer_id = unconfirmed.producer_id if unconfirmed else f"cli-{uuid.uuid4()}"
        self._seq = unconfirmed.seq if unconfirmed else 0

    @property
    def position(self) -> int:
        """How much of the input is confirmed, from its start."""
        return self._skipped + self.confirmed

    def send(
        self,
        stream: "Stream",
        batches: Iterable[Batch],
        interrupts: Interrupts,
        progress: Progress,
        *,
        close: bool,
    ) -> None:
        """Send all batches; with `close`, the stream is closed in one step with the last."""
        for batch in batches:
            with interrupts.held():
                self._send(stream, batch, close=close and batch.last)
            progress.show(f"{counted(self.confirmed, self._unit)} appended")
        if close and not (self.last and self.last.closed):
            self.last = stream.close()

    def _send(self, stream: "Stream", batch: Batch, *, close: bool) -> None:
        self.unconfirmed = Unconfirmed(self._producer_id, self._seq, batch.size)
        self.last = stream.append(
            batch.body,
            content_type=self._content_type,
            producer=ProducerClaim(self._producer_id, 0, self._seq),
            close=close,
        )
        self.confirmed += batch.size
        self.unconfirmed = None
        self._seq += 1
