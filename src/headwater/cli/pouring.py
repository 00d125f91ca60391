"""Sending batches one after another, each exactly once.

Every batch carries an idempotent producer's sequence number, so a retry never appends it twice. One
question is left when the process itself ends before an answer came: whether that batch was
appended. `Unconfirmed` names it, and sending the same messages under the same number settles it.
"""

import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.cli.batches import Batch
from headwater.cli.interrupts import Interrupts
from headwater.cli.progress import Progress
from headwater.cli.values import counted
from headwater.protocol.producers import ProducerClaim

if TYPE_CHECKING:
    from headwater.client import Appended, Stream

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
