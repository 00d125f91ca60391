"""One run as a stream: its messages, and what a writer must know of it.

A message is the stored event of the contract, with one field more: `append` says which append of
the stream it came with and whose that was. Appends are numbered by a producer that all writers
share. The server takes number n + 1 only behind n, so of two writers that know the same n one wins,
and the other is told that its number was there before: it reads what came and decides anew.
"""

from typing import Any, Final

import msgspec

from headwater.errors import RunLogDamaged
from headwater.runs.events import Document, StoredEvent, stored_body, stored_event_from_wire
from headwater.runs.reducer import status_after
from headwater.runs.store import AppendResult, RunInfo
from headwater.runs.values import RunStatus

PRODUCER: Final = "runs"
_FIELD: Final = "append"


class RunLog:
    """What was read of a run so far."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.offset = "-1"
        """Behind what was read."""
        self.keys: dict[str, int] = {}
        self.status = RunStatus.PENDING
        self.last_seq = 0
        self.next_append = 0
        self.last_writer = ""
        self._first: StoredEvent | None = None
        self._last: StoredEvent | None = None

    def take(self, message: dict[str, Any]) -> StoredEvent:
        """Take in the next message."""
        event = read_message(self.run_id, message)
        number, self.last_writer = message[_FIELD]
        self.next_append = number + 1
        self.keys[event.idempotency_key] = event.run_seq
        self.status = status_after(self.status, event.event_type)
        self.last_seq = event.run_seq
        self._first = self._first or event
        self._last = event
        return event

    def messages(
        self, documents: list[Document], at: str, writer: str
    ) -> tuple[list[bytes], list[AppendResult]]:
        """Number what is new of a batch, and say what becomes of each event if it is taken."""
        made: list[bytes] = []
        results: list[AppendResult] = []
        fresh: dict[str, int] = {}
        mark = msgspec.json.encode({_FIELD: [self.next_append, writer]})[1:-1]
        for document in documents:
            key = document.idempotency_key
            known = self.keys.get(key) or fresh.get(key)
            if known is not None:
                results.append(AppendResult.duplicate(known))
                continue
            seq = fresh[key] = self.last_seq + len(made) + 1
            made.append(b"{%b,%b" % (mark, stored_body(document.body, seq, at)[1:]))
            results.append(AppendResult.stored(seq))
        return made, results

    def info(self) -> RunInfo | None:
        """Describe the run; None before its first event."""
        if self._first is None or self._last is None:
            return None
        first, last = self._first.persisted_at, self._last.persisted_at
        return RunInfo(self.run_id, self.status, self.last_seq, first, last)


def read_message(run_id: str, message: Any) -> StoredEvent:
    """Read the event of a message."""
    try:
        wire = {name: value for name, value in message.items() if name != _FIELD}
        return stored_event_from_wire(wire)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise RunLogDamaged(run_id, "a message of the stream", str(error)) from error
