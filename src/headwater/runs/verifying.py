"""Holding a run's log against the contract, and its snapshot against its log."""

from collections.abc import Iterable

from headwater.runs.events import StoredEvent
from headwater.runs.reducer import Fold
from headwater.runs.values import RunSnapshot


class Verification:
    """Takes the events of a run as they are read, then its snapshot."""

    def __init__(self, run_id: str) -> None:
        self._fold = Fold(run_id)
        self._keys: dict[str, int] = {}
        self._last = 0
        self.count = 0
        self.broken: list[str] = []
        """What must never be."""
        self.notes: list[str] = []
        """What may be, and is worth knowing: gaps, and transitions that do not exist."""

    def take(self, events: Iterable[StoredEvent]) -> None:
        """Look at some events, in the order in which the store gives them."""
        for event in events:
            self.count += 1
            if event.run_seq <= self._last:
                self.broken.append(f"runSeq {event.run_seq} follows {self._last}")
            elif event.run_seq > self._last + 1:
                self.notes.append(f"a gap: {self._last + 1} to {event.run_seq - 1} are not there")
            first = self._keys.setdefault(event.idempotency_key, event.run_seq)
            if first != event.run_seq:
                self.broken.append(f"{event.run_seq} has the idempotency key of {first}")
            invalid = self._fold.apply(event)
            if invalid is not None:
                self.notes.append(f"INVALID_TRANSITION at {event.run_seq}: {invalid.reason}")
            self._last = max(self._last, event.run_seq)

    def compare(self, snapshot: RunSnapshot) -> None:
        """Hold a snapshot of the store against the log."""
        expected = self._fold.snapshot()
        if snapshot.last_event_seq > expected.last_event_seq:
            self.notes.append("the run went on while it was read; verify it again")
        elif snapshot != expected:
            self.broken.append(
                f"the snapshot at {snapshot.last_event_seq} is not what the log says "
                f"({snapshot.status}, not {expected.status}, or other steps)"
            )
