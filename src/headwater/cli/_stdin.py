"""Appending standard input in batches, each of them exactly once.

Input is sent soon after it arrives, and memory stays bounded: nothing is read while a request is in
flight, so input that arrives meanwhile waits in the pipe, and makes the next batch larger. A slow
server slows down the writer of the pipe instead of filling the memory of this process.

Every batch has the sequence number of an idempotent producer, so a retry never appends it twice. If
the process ends before a response arrives, it is unknown whether that batch was appended.
`SavedAppend` identifies the batch; the next process sends the same messages under the same number.
The state is saved before a batch is sent, so that it survives kill -9.
"""

import os
import select
import tempfile
import time
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headwater.cli._io import Interrupts, Target, counted, read_saved, save
from headwater.cli._progress import Progress
from headwater.client import is_transient, join_messages
from headwater.errors import RequestRefused
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
_NOT_DECIDED: Final = frozenset({401, 403})
"""Statuses that refuse the sender, not the batch: an earlier attempt may have been appended."""


class BadInput(Exception):
    """The input can't be sent, for the reason in the message."""


class InputBatch(NamedTuple):
    """The body of one append."""

    body: bytes
    size: int
    """Its size in messages or bytes of the input."""
    last: bool
    """Whether the input ends with this batch."""


class Cutter(ABC):
    """Collects input and cuts it into bodies, counted in messages or in bytes."""

    unit: str
    error: BadInput | None = None
    """Why no more input is accepted, or None."""

    def __init__(self, skip: int = 0) -> None:
        self.to_skip = skip
        """Messages or bytes of the input that are still to be skipped."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Messages or bytes that are ready to be cut."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether a batch must be cut before more input is read."""

    @abstractmethod
    def feed(self, piece: bytes) -> None:
        """Add a piece of the input."""

    @abstractmethod
    def end(self) -> None:
        """Complete the last message: the input has ended."""

    @abstractmethod
    def cut(self, size: int | None = None) -> tuple[bytes, int]:
        """Return a body of all that fits, or of exactly `size`, and the size of its content."""


class JsonLines(Cutter):
    """Cuts lines, each of which is one JSON message; empty lines are ignored."""

    unit = "messages"

    def __init__(self, skip: int = 0) -> None:
        super().__init__(skip)
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
            self._add(b"".join(self._partial))
            self._partial, self._partial_bytes = [], 0
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
            if self._partial_bytes > MAX_LINE_BYTES:
                self._refuse(f"is longer than {MAX_LINE_BYTES} bytes", self._line_number + 1)

    def end(self) -> None:
        if self._partial:
            self._add(b"".join(self._partial))
            self._partial = []

    def cut(self, size: int | None = None) -> tuple[bytes, int]:
        size = MAX_MESSAGES if size is None else size
        messages, self._messages = self._messages[:size], self._messages[size:]
        self._bytes = sum(map(len, self._messages))
        return join_messages(messages, JSON), len(messages)

    def _add(self, line: bytes) -> None:
        self._line_number += 1
        line = line.strip()
        if self.error is not None or not line:
            return
        if self.to_skip:
            self.to_skip -= 1
            return
        reason = check_json(line)
        if reason is not None:
            self._refuse(f"is not JSON: {reason}", self._line_number)
            return
        self._messages.append(line)
        self._bytes += len(line)

    def _refuse(self, what: str, line_number: int) -> None:
        self.error = self.error or BadInput(f"Line {line_number} of the input {what}.")


class Bytes(Cutter):
    """Cuts bytes as they arrive, after a line end if there is one."""

    unit = "bytes"

    def __init__(self, skip: int = 0) -> None:
        super().__init__(skip)
        self._buffer = bytearray()

    @property
    def waiting(self) -> int:
        return len(self._buffer)

    @property
    def full(self) -> bool:
        return len(self._buffer) >= MAX_BYTES

    def feed(self, piece: bytes) -> None:
        skipped = min(self.to_skip, len(piece))
        self.to_skip -= skipped
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


def batches(number: int, cutter: Cutter, first: int | None = None) -> Iterator[InputBatch]:
    """Read a file descriptor to its end; with `first`, the first batch has exactly that size."""
    deadline: float | None = None
    while True:
        enough = cutter.full if first is None else cutter.waiting >= first
        late = first is None and deadline is not None and time.monotonic() >= deadline
        if enough or (late and cutter.waiting):
            yield InputBatch(*cutter.cut(first), last=False)
            first = None
            # The rest, an incomplete line or the next batch, has a deadline of its own.
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
        if cutter.error is not None:
            break
    yield from _rest(cutter, first)


def _rest(cutter: Cutter, first: int | None) -> Iterator[InputBatch]:
    """Cut the remaining input: up to its end, or up to a line that can't be sent."""
    if cutter.error is None:
        cutter.end()
    if cutter.to_skip:
        raise cutter.error or _too_short(cutter, cutter.to_skip + (first or 0))
    if first is not None and cutter.waiting < first:
        raise cutter.error or _too_short(cutter, first - cutter.waiting)
    while cutter.waiting:
        body, size = cutter.cut(first)
        first = None
        yield InputBatch(body, size, last=not cutter.waiting and cutter.error is None)
    if cutter.error is not None:
        raise cutter.error


def _too_short(cutter: Cutter, missing: int) -> BadInput:
    return BadInput(
        f"The input ends {counted(missing, cutter.unit)} before the position at which the "
        "interrupted command stopped: it is not the input of that command."
    )


def _read(number: int, deadline: float | None) -> bytes | None:
    """Read the available input; returns None if nothing arrives before a deadline."""
    timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
    readable, _, _ = select.select([number], [], [], timeout)
    return os.read(number, _PIECE_BYTES) if readable else None


class SavedBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch that was sent, and is not acknowledged."""

    producer_id: str
    seq: int
    size: int
    checksum: int
    """CRC-32 of the body: other data under the same number would be lost silently."""


class SavedAppend(Struct, frozen=True, forbid_unknown_fields=True):
    """The state of an append from standard input, as a file of --resume holds it."""

    stream: str
    """Path of the stream's URL."""
    unit: str
    """The unit of `position` and of the batch's size: messages or bytes."""
    position: int = 0
    """Messages or bytes of the input that are confirmed."""
    unconfirmed: SavedBatch | None = None


def load_append(path: Path) -> SavedAppend | None:
    """Return the saved state of an append, or None if nothing has been saved yet."""
    content = read_saved(path, "the position")
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=SavedAppend)
    except msgspec.DecodeError:
        raise click.ClickException(
            f"{path} does not hold the position of an append; delete it to start from the "
            "beginning of the input, or name another file."
        ) from None


class ResumableAppend:
    """Appends one input in batches, and records the confirmed position."""

    def __init__(
        self, target: Target, content_type: str, cutter: Cutter, file: Path | None
    ) -> None:
        saved = load_append(file) if file is not None else None
        self._check(saved, target, cutter, file)
        self.saved = saved or SavedAppend(target.path, cutter.unit)
        self.resumed_at = self.saved.position
        self.last: Appended | None = None
        self.file = file
        self._content_type = content_type
        self._cutter = cutter
        self._producer_id = f"cli-{uuid.uuid4()}"
        self._seq = 0
        cutter.to_skip = self.saved.position

    @property
    def unit(self) -> str:
        """What sizes count: messages or bytes."""
        return self._cutter.unit

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier command has sent part of the input."""
        return self.resumed_at > 0 or self.saved.unconfirmed is not None

    @property
    def confirmed(self) -> int:
        """Messages or bytes that this command has appended."""
        return self.saved.position - self.resumed_at

    def send(
        self,
        stream: "Stream",
        number: int,
        interrupts: Interrupts,
        progress: Progress,
        *,
        close: bool,
    ) -> None:
        """Send a file descriptor to its end; with `close`, the last append closes the stream."""
        unconfirmed = self.saved.unconfirmed
        for batch in batches(number, self._cutter, unconfirmed.size if unconfirmed else None):
            with interrupts.deferred():
                self._send(stream, batch, close=close and batch.last)
            progress.show(f"{counted(self.confirmed, self.unit)} appended")
        if close and not (self.last and self.last.closed):
            self.last = stream.close()

    def finish(self) -> None:
        """Save the state in which the command ends."""
        if self.file is not None:
            self._save(self.file)

    def interrupt(self) -> Path | None:
        """Save the state for the next command, and return the file; None if there is no state."""
        if self.file is None:
            if not self.saved.position and self.saved.unconfirmed is None:
                return None
            number, name = tempfile.mkstemp(prefix="headwater-append-", suffix=".json")
            os.close(number)
            self.file = Path(name)
        self._save(self.file)
        return self.file

    def _send(self, stream: "Stream", batch: InputBatch, *, close: bool) -> None:
        claim = self._claim(batch)
        try:
            self.last = stream.append(
                batch.body, content_type=self._content_type, producer=claim, close=close
            )
        except RequestRefused as error:
            if not is_transient(error) and error.status not in _NOT_DECIDED:
                self.saved = replace(self.saved, unconfirmed=None)
            raise
        position = self.saved.position + batch.size
        self.saved = replace(self.saved, position=position, unconfirmed=None)

    def _claim(self, batch: InputBatch) -> ProducerClaim:
        """Number a batch, and save the state before it is sent."""
        checksum = zlib.crc32(batch.body)
        unconfirmed = self.saved.unconfirmed
        if unconfirmed is not None:
            if unconfirmed.checksum != checksum:
                raise BadInput(
                    f"The input differs from that of the interrupted command after its first "
                    f"{counted(self.saved.position, self.unit)}."
                )
        else:
            unconfirmed = SavedBatch(self._producer_id, self._seq, batch.size, checksum)
            self._seq += 1
            self.saved = replace(self.saved, unconfirmed=unconfirmed)
            if self.file is not None:
                self._save(self.file)
        return ProducerClaim(unconfirmed.producer_id, 0, unconfirmed.seq)

    def _save(self, file: Path) -> None:
        save(file, msgspec.json.encode(self.saved), "the position")

    @staticmethod
    def _check(
        saved: SavedAppend | None, target: Target, cutter: Cutter, file: Path | None
    ) -> None:
        if saved is None:
            return
        if saved.stream != target.path:
            raise click.UsageError(f"{file} holds the position of an append to {saved.stream}.")
        if saved.unit != cutter.unit:
            raise click.UsageError(
                f"{file} counts {saved.unit}: the interrupted command was run "
                f"{'with' if saved.unit == JsonLines.unit else 'without'} --json-lines."
            )
