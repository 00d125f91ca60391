"""The rules of a state database without I/O: batches in, work for a backend out.

Changes go to the rows, or to the staged rows while a snapshot is open. `reset` empties both and
begins an epoch. Nothing is visible before it is committed, and what is committed together with an
offset is exactly what the stream holds up to it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct

from headwater.errors import InvalidEvent
from headwater.state.backend import Changes, Quarantined, Saved, Work
from headwater.state.decoding import Decoded, WireEvent, decode_pieces
from headwater.state.schemas import DROP, CollectionDef, StreamState
from headwater.state.values import decode_value

_Check: TypeAlias = Callable[[str, bytes], str | None]

MalformedPolicy: TypeAlias = Literal["quarantine", "drop", "stop"]

CHECKPOINT_EVENTS: Final = 50_000
"""A first load is saved every so many events, so that a crash does not throw it all away."""


class Incoming(Struct, frozen=True):
    """A batch as it was read from a stream."""

    data: bytes
    start: str
    """The offset that it was read at."""
    offset: str
    """The offset behind it."""
    up_to_date: bool = False
    skipped: int = 0
    """How many messages behind `start` are not in the data."""


class Notice(Struct, frozen=True):
    """Something that an application may want to know of, and that is not an error."""

    kind: Literal["epoch", "snapshot", "abandoned-snapshot", "unmatched-snapshot-end", "stopped"]
    position: str
    text: str


class Taken(Struct):
    """What a batch has brought."""

    duplicate: bool = False
    events: int = 0
    txids: list[str] = []
    notices: list[Notice] = []


class Fold:
    """Where a database stands, and what it has not committed yet."""

    _base: Literal["keep", "empty", "staged"]
    _changes: Changes
    _staged_base: Literal["keep", "empty"]
    _staged: Changes
    _quarantined: list[Quarantined]

    def __init__(
        self,
        saved: Saved,
        state: StreamState | None = None,
        *,
        malformed: MalformedPolicy = "quarantine",
    ) -> None:
        self._state = state
        self._malformed = malformed
        self._checks: Mapping[str, _Check | None] | None = None
        if state is not None:
            self._checks = {
                type_: each.violation if each.checks_values else None
                for type_, each in state.by_type.items()
            }
        self._held_txids: list[str] = []
        """Transactions of an open snapshot: not to be seen before it ends."""
        self.begin(saved)

    def begin(self, saved: Saved) -> None:
        """Stand where a backend stands, with nothing pending."""
        self.saved = saved
        """How far the last commit was."""
        self._offset = saved.offset
        self._up_to_date = saved.complete
        self.pending_events = 0
        self.pending_txids: list[str] = []
        self._epoch = saved.epoch
        self._snapshot_open = saved.snapshot_open
        self._stopped = dict(saved.stopped)
        self._dropped = saved.dropped
        self._clear_pending()

    @property
    def offset(self) -> str:
        """Where to read on: behind everything that was taken, committed or not."""
        return self._offset

    @property
    def has_news(self) -> bool:
        """Whether there is anything to commit."""
        return (
            self.pending_events > 0
            or self._offset != self.saved.offset
            or self._up_to_date != self.saved.complete
        )

    def take(self, batch: Incoming) -> Taken:
        """Apply a batch to what is pending; where it raises, all that is pending is forgotten."""
        if self._is_known(batch):
            return Taken(duplicate=True)
        try:
            taken = self._apply(batch)
        except BaseException:
            self.begin(self.saved)
            raise
        self._offset = batch.offset
        self._up_to_date = self._up_to_date or batch.up_to_date
        self.pending_events += taken.events
        self.pending_txids += taken.txids
        return taken

    def work(self, *, stream: str = "", incarnation: str = "") -> Work:
        """Give what is to be committed; `committed` follows once it is."""
        return Work(
            base=self._base,
            changes=self._changes,
            staged_base=self._staged_base,
            staged=self._staged,
            forget_quarantined=self._forget_quarantined,
            quarantined=self._quarantined,
            saved=Saved(
                stream=stream or self.saved.stream,
                incarnation=incarnation or self.saved.incarnation,
                fingerprint=self._state.fingerprint if self._state is not None else "",
                offset=self._offset,
                epoch=self._epoch,
                complete=self._up_to_date,
                snapshot_open=self._snapshot_open,
                stopped=dict(self._stopped),
                dropped=self._dropped,
            ),
        )

    def committed(self, work: Work) -> list[str]:
        """Forget what was pending, now that it is safe; gives its transactions."""
        txids = self.pending_txids
        self.begin(work.saved)
        return txids

    def _is_known(self, batch: Incoming) -> bool:
        """Tell a batch that was taken before.

        Offsets of one stream sort as they follow each other (PROTOCOL 8), but for the words for
        its two ends, which no batch ends at.
        """
        return batch.start != self._offset and batch.offset <= self._offset != "-1"

    def _apply(self, batch: Incoming) -> Taken:
        taken = Taken()
        index = batch.skipped
        for part in decode_pieces(batch.data):
            self._apply_part(part, batch.start, index, taken)
            index += len(part.events)
        taken.events = index - batch.skipped
        return taken

    def _apply_part(self, part: Decoded, start: str, index: int, taken: Taken) -> None:
        checks = self._checks
        stopped = self._stopped
        target = self._staged if self._snapshot_open else self._changes
        txids = self._held_txids if self._snapshot_open else taken.txids
        for place, event in enumerate(part.events, index):
            headers = event.headers
            operation = headers.operation
            if operation is UNSET:
                if headers.control is UNSET:
                    violation, message = part.violations[place - index]
                    self._keep_aside(
                        _position(start, place), violation.field, violation.reason, message
                    )
                elif headers.control != "up-to-date":
                    self._control(headers.control, _position(start, place), taken)
                    target = self._staged if self._snapshot_open else self._changes
                    txids = self._held_txids if self._snapshot_open else taken.txids
                continue
            if headers.txid is not UNSET:
                txids.append(headers.txid)
            type_ = event.type
            entities = target.get(type_)
            if entities is None:
                if checks is not None and type_ not in checks:
                    self._dropped += 1
                    continue
                entities = target[type_] = {}
            if stopped and type_ in stopped:
                continue
            if operation == "delete":
                entities[event.key] = None
                continue
            data = bytes(event.value)  # type: ignore[arg-type]  # the rules saw to it
            if checks is not None and (check := checks[type_]) is not None:
                reason = check(event.key, data)
                if reason is not None:
                    self._invalid(event, data, reason, _position(start, place), entities, taken)
                    continue
            entities[event.key] = data

    def _control(self, control: str, position: str, taken: Taken) -> None:
        if control == "reset":
            # STATE 4.2.2: all that was before is not valid any more, what is staged included.
            self._clear_pending()
            self._base, self._staged_base, self._forget_quarantined = "empty", "empty", True
            self._snapshot_open = False
            self._release_txids(taken)
            self._stopped.clear()
            self._epoch += 1
            taken.notices.append(Notice("epoch", position, f"epoch {self._epoch} has begun"))
        elif control == "snapshot-start":
            if self._snapshot_open:
                # Whoever wrote it began again: what it had written so far is part of no snapshot.
                text = "a snapshot began before the last one had ended, which is forgotten"
                taken.notices.append(Notice("abandoned-snapshot", position, text))
            self._snapshot_open = True
            self._staged, self._staged_base = {}, "empty"
        elif not self._snapshot_open:
            text = "a snapshot ended that had not begun"
            taken.notices.append(Notice("unmatched-snapshot-end", position, text))
        else:
            begun_here = self._staged_base == "empty"
            self._base = "empty" if begun_here else "staged"
            self._changes, self._staged = self._staged, {}
            self._staged_base = "empty"
            self._snapshot_open = False
            self._release_txids(taken)
            taken.notices.append(Notice("snapshot", position, "a snapshot has replaced the state"))

    def _release_txids(self, taken: Taken) -> None:
        taken.txids += self._held_txids
        self._held_txids = []

    def _invalid(
        self,
        event: WireEvent,
        data: bytes,
        reason: str,
        position: str,
        entities: dict[str, bytes | None],
        taken: Taken,
    ) -> None:
        """Do with a value that does not fit what its collection says."""
        assert self._state is not None  # noqa: S101 - without schemas nothing is invalid
        definition = self._state.by_type[event.type]
        policy = definition.on_invalid
        if policy == "stop":
            self._stopped[event.type] = (position, f"'{event.key}' does not fit: {reason}")
            taken.notices.append(Notice("stopped", position, f"{event.type}: {reason}"))
        elif policy == "drop":
            self._dropped += 1
        elif policy == "quarantine":
            self._quarantined.append(
                Quarantined(position, reason, event.type, event.key, _message(event, data))
            )
        else:
            self._fall_back(definition, event, data, reason, position, entities)

    def _fall_back(
        self,
        definition: CollectionDef[Any],
        event: WireEvent,
        data: bytes,
        reason: str,
        position: str,
        entities: dict[str, bytes | None],
    ) -> None:
        assert callable(definition.on_invalid)  # noqa: S101 - the other policies are words
        value = definition.on_invalid(decode_value(data), reason)
        if value is DROP:
            self._dropped += 1
            return
        try:
            other = definition.validator.encode(value)
            wrong = definition.violation(event.key, other)
        except ValueError as error:
            wrong = str(error)
        if wrong is not None:
            # What is no better than the event itself must not be taken for valid either.
            text = f"{reason}; the fallback's value does not fit: {wrong}"
            self._quarantined.append(
                Quarantined(position, text, event.type, event.key, _message(event, data))
            )
            return
        entities[event.key] = other

    def _keep_aside(self, position: str, field: str, reason: str, message: bytes) -> None:
        """Do with a message that is no event what the database says."""
        if self._malformed == "stop":
            raise InvalidEvent(position, field, reason)
        if self._malformed == "drop":
            self._dropped += 1
            return
        told = f"{field}: {reason}" if field else reason
        self._quarantined.append(Quarantined(position, told, "", "", message))

    def _clear_pending(self) -> None:
        self._base = "keep"
        self._changes = {}
        self._staged_base = "keep"
        self._staged = {}
        self._forget_quarantined = False
        self._quarantined = []


def _position(start: str, index: int) -> str:
    # As the client writes it: an offset, and how many messages to skip behind it.
    return f"{start},{index}" if index else start


def _message(event: WireEvent, data: bytes) -> bytes:
    shown = {
        "type": event.type,
        "key": event.key,
        "value": msgspec.Raw(data),
        "headers": msgspec.to_builtins(event.headers),
    }
    return msgspec.json.encode(shown)
